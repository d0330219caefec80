"""Times fp8gemm and its peers on this machine's Hopper GPU; ``--help`` lists the options. Runs from a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fp8gemm.benchmark.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
