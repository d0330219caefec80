"""Looks into one kernel on this machine's Hopper GPU; ``--help`` lists the options. Runs from a checkout."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

if __name__ == "__main__":
    _here = Path(__file__).resolve().parent
    # In place of this folder, for the reason given below.
    sys.path[:] = [str(_here.parent), *(path for path in sys.path if path != str(_here))]
    from fp8gemm.cli.profile import main

    sys.exit(main())
else:
    # NOTE: The standard library has a module of this name, which cProfile imports, and this folder comes first in the
    # search path of every script in it. Whoever imports `profile` gets what he means.
    _spec = importlib.util.spec_from_file_location(__name__, Path(sysconfig.get_path("stdlib"), "profile.py"))
    assert _spec is not None and _spec.loader is not None
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
