"""Processes for the faults of the cache: forked from the test, so that they have its patches; killed if they hang."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60.0
OTHER_USER, THIRD_USER = 12345, 23456

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """A process that runs a function; `result` waits for what it returns."""

    pid: int
    pipe: int

    def kill(self) -> None:
        """End it now, by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def exit_code(self) -> int:
        """How it ended: minus the signal's number if one killed it."""
        self._read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def result(self) -> Any:
        """What its function returned; what it raised is raised here as text."""
        raw = self._read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert code == 0 and raw, f"the process ended with code {code}"
        succeeded, value = pickle.loads(raw)
        assert succeeded, value
        return value

    def _read(self) -> bytes:
        """All that it sends until its end."""
        parts, deadline = [], time.monotonic() + LIMIT_S
        while True:
            ready, _, _ = select.select([self.pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise AssertionError(f"the process has not ended within {LIMIT_S:g} s")
            part = os.read(self.pipe, 1 << 16)
            if not part:
                os.close(self.pipe)
                return b"".join(parts)
            parts.append(part)


def start(work: Callable[[], object]) -> Child:
    """Run a function in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    try:  # nothing of the test's own process may run in here, not even its clean-up
        os.close(reading)
        try:
            outcome = True, work()
        except BaseException:
            outcome = False, traceback.format_exc()
        with open(writing, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    finally:
        os._exit(99)


def run(work: Callable[[], object]) -> Any:
    """What a function returns in a process of its own."""
    return start(work).result()


def die_before_call(step: int, *names: str) -> None:
    """From now on end this process before its call number ``step`` of these functions of `os`."""
    calls = iter(range(1000))

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls) == step:
                os._exit(1)
            return function(*args, **kwargs)

        return call

    for name in names:
        setattr(os, name, dying(getattr(os, name)))


def become(user: int) -> None:
    """Act as another user from now on, with no group and no way back."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def own_mounts() -> None:
    """From now on this process, which must have no other thread, mounts for itself alone; OSError if it may not."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)


def other_machine(name: str) -> None:
    """Give this process's machine another name, for this process alone; root may."""
    _call("unshare", _CLONE_NEWUTS)
    _call("sethostname", name.encode(), len(name))


def mount_small(place: Path, options: str) -> None:
    """Mount a file system of limited size, such as ``size=16k`` or ``nr_inodes=4``."""
    place.mkdir(mode=0o700, exist_ok=True)
    text = f"mode=0700,{options}".encode()
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(0), text)


def mount_read_only(place: Path) -> None:
    """Make a directory a file system that cannot be written."""
    path = os.fsencode(place)
    _call("mount", path, path, None, ctypes.c_ulong(_MS_BIND), None)
    _call("mount", b"none", path, None, ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | _MS_RDONLY), None)


def mount_file(source: Path, over: Path) -> None:
    """Let a file appear in the place of another."""
    _call("mount", os.fsencode(source), os.fsencode(over), None, ctypes.c_ulong(_MS_BIND), None)


def require_mounts() -> None:
    """Skip the test where no process may mount."""

    def attempt() -> str:
        try:
            own_mounts()
        except OSError as error:
            return str(error)
        return ""

    problem = run(attempt)
    if problem:
        pytest.skip(f"this machine lets no process have mounts of its own: {problem}")


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
