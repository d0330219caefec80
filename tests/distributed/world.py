"""Processes that are the ranks of a world, on gloo and the CPU: each runs all checks, one after the other.

``python -m tests.distributed.world RANK RANKS DIRECTORY KEPT ONLY`` is one of them. Behind each check ranks tell each
other whether it held; when it did not for one of them, all stop, because what they would say next may not belong
together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = "skipped: "
LIMIT_S, COLLECTIVE_S = 180.0, 40.0
"""Of a world, and of one call of torch.distributed."""


@dataclass(frozen=True)
class Rank:
    """What a check is given.

    Attributes:
        number, ranks: of this process, and how many there are.
        kept: a directory that outlives the world, the same for all worlds.
    """

    number: int
    ranks: int
    kept: Path

    def mesh(self, *sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """Of all ranks, of one dimension without ``sizes``."""
        return init_device_mesh("cpu", sizes or (self.ranks,), mesh_dim_names=names)


Check = Callable[[Rank], None]


def environment() -> dict[str, str]:
    """Of a process that is a rank."""
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def start(ranks: int, directory: Path, kept: Path, only: str = "") -> list[subprocess.Popen[str]]:
    """The processes of a world, which meet in an empty ``directory`` and write there what they found: in all checks
    that are for so many, or in the one that has this name."""
    return spawn("tests.distributed.world", ranks, directory, str(kept), only, env=environment())


def spawn(module: str, ranks: int, directory: Path, *words: str, env: Mapping[str, str]) -> list[subprocess.Popen[str]]:
    """A process for each rank, of a module that is told the rank, how many there are, the directory, and words."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(ranks), str(directory), *words],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def outcomes(processes: list[subprocess.Popen[str]], directory: Path, *, limit_s: float = LIMIT_S) -> dict[str, str]:
    """What went wrong in each check that was begun, in words; nothing if it held on all ranks."""
    end = time.monotonic() + limit_s
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=max(end - time.monotonic(), 1.0))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(f"killed after {limit_s} s\n{process.communicate()[0]}")
    found: dict[str, str] = {}
    for rank, printed in enumerate(said):
        path = directory / f"{rank}.json"
        of_rank: Mapping[str, str] = json.loads(path.read_text()) if path.is_file() else {"the world": printed}
        for name, wrong in of_rank.items():
            found[name] = found.get(name, "") + (f"rank {rank}: {wrong}\n" if wrong else "")
        if processes[rank].returncode:
            # In what it had begun last, or on its way out.
            last = list(of_rank)[-1]
            found[last] += f"rank {rank} ended with {processes[rank].returncode}:\n{printed[-2000:]}\n"
    return found


def held(
    checks: Mapping[str, Callable[[], None]], rank: int, ranks: int, directory: Path, store: dist.FileStore
) -> bool:
    """Whether all checks held on all ranks. What went wrong in each is written; one that fails is the last."""
    found: dict[str, str] = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = ""
        except pytest.skip.Exception as skipped:
            found[name] = f"{SKIPPED}{skipped}"
        except Exception:
            found[name] = traceback.format_exc()
        (directory / f"{rank}.json").write_text(json.dumps(found))
        store.set(f"{name} on {rank}", "failed" if found[name] and not found[name].startswith(SKIPPED) else "held")
        if any(store.get(f"{name} on {other}") != b"held" for other in range(ranks)):
            return False
    return True


def main(rank: int, ranks: int, directory: Path, kept: Path, only: str) -> None:
    """Run all checks that are for a world of this size, or one."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=COLLECTIVE_S)
    store = dist.FileStore(str(directory / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    from tests.distributed.checks import CHECKS, DYING  # here, because each imports much

    checks = {only: DYING} if only == DYING.__name__ else CHECKS[ranks]
    calls = {name: partial(check, Rank(rank, ranks, kept)) for name, check in checks.items()}
    if not held(calls, rank, ranks, directory, store):
        os._exit(1)  # a group of which some ranks are elsewhere would not be left
    dist.destroy_process_group()
    # Once in some forty processes gloo's threads abort while the interpreter ends, when all is said and done.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
