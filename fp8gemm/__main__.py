"""``python -m fp8gemm``: the command line where nothing is installed."""

import sys

from fp8gemm.cli import main

sys.exit(main())
