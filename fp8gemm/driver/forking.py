"""CUDA does not survive a fork: the child has its parent's handles, and no driver that knows them."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fp8gemm.errors import UnsupportedDeviceError

lost = False
"""Whether this process was forked from one that had started CUDA. To look at it costs a call next to nothing."""

_started = False


def note_start() -> None:
    """This process has started CUDA."""
    global _started
    _started = True


def refuse() -> NoReturn:
    """Say what there is to say where CUDA is `lost`.

    Raises:
        UnsupportedDeviceError: always.
    """
    raise UnsupportedDeviceError(
        f"CUDA cannot be used in process {os.getpid()}: it was forked from one that had already started CUDA, and CUDA "
        "does not survive a fork. Start such processes by multiprocessing's 'spawn' or 'forkserver', or fork before "
        "the first use of CUDA."
    )


def _look_in_child() -> None:
    global lost
    # torch may have started CUDA by itself; another thread may be in the middle of importing it.
    torch_has_lost_it = getattr(sys.modules.get("torch.cuda"), "_is_in_bad_fork", bool)
    lost = lost or _started or torch_has_lost_it()


os.register_at_fork(after_in_child=_look_in_child)
