"""The console script ``fp8gemm``, and ``python -m fp8gemm``: the command line where nothing is installed."""

import sys

from fp8gemm.cli.interrupts import loading


def main() -> int:
    """Run the command line; the exit code."""
    with loading():
        from fp8gemm.cli import main as cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
