"""``fp8gemm warmup`` from a checkout; ``--help`` lists the options. Like the command it does without torch."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.argv[0] = "fp8gemm"  # by which the package knows its command, for which it leaves torch alone

from fp8gemm.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["warmup", *sys.argv[1:]]))
