"""Warmups that are killed, beside ones that check, prune, seal and verify the same cache directory. Needs no GPU.

All are real processes at random times. Meanwhile this process reads every kernel as a loader does. Nothing may ever be
torn, no process may end with a traceback or an exit code that is not documented, and a warmup in the end finds or makes
all. Runs from a checkout; exit code 1 if any of that does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.cache.entry import label_and_key  # noqa: E402
from fp8gemm.cache.store import Store  # noqa: E402

ASKED = ("--nk", "128x128", "--max-m", "64", "--chip", "h200", "--calls", "layer")
EXPECTED = {"warmup": (0, 1, 4), "check": (0, 4), "prune": (0, 1), "seal": (0, 1), "verify": (0, 1)}
"""Exit codes; 1 of a warmup is a directory that was sealed meanwhile, 4 one out of which kernels were removed."""

_KILLED = -9
_TIMEOUT_S = 120


class Chaos:
    """One run in one directory.

    Attributes:
        counts: of what happened.
        faults: what must not have happened.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()

    def run(self, seconds: float, warmups: int) -> None:
        """Everything beside everything, then one of each."""
        loops: list[Callable[[], object]] = [*[self.warm] * warmups, self.check, self.prune, self.seal, self.verify]
        threads = [threading.Thread(target=self._repeat, args=(loop,)) for loop in [*loops, self.read]]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        self._open()
        self._must("warmup", "warmup", *ASKED, "--cache-dir", str(self.place))
        self._must("check", "warmup", *ASKED, "--check", "--cache-dir", str(self.place))
        self.read()
        self._must("seal", "cache", "seal", str(self.place), "--anew")
        self._must("verify", "cache", "verify", str(self.place))
        self._must("check", "warmup", *ASKED, "--check", "--cache-dir", str(self.place))
        left = [path.name for path in self.place.iterdir() if path.name.startswith(".")]
        if left:
            self._fault(f"left in the end: {left}")
        self._open()

    def warm(self) -> None:
        """A warmup, of which every other one is killed."""
        after = self._between(0.3, 3.0) if self._between(0, 1) < 0.5 else None
        self._process("warmup", "warmup", *ASKED, "--cache-dir", str(self.place), kill_after=after)

    def check(self) -> None:
        """A look, which never writes."""
        self._process("check", "warmup", *ASKED, "--check", "--cache-dir", str(self.place))

    def prune(self) -> None:
        """Most of the kernels go."""
        self._stop.wait(self._between(0.5, 3.0))
        self._process("prune", "cache", "prune", str(self.place), "--max-bytes", f"{self._between(10, 150):.0f}K")

    def seal(self) -> None:
        """A seal, which is killed at times, and broken after a while."""
        self._stop.wait(self._between(0.5, 3.0))
        after = self._between(0.3, 1.0) if self._between(0, 1) < 0.3 else None
        self._process("seal", "cache", "seal", str(self.place), "--anew", kill_after=after)
        self._stop.wait(self._between(0.0, 1.0))
        self._open()

    def verify(self) -> None:
        """What it calls damaged is torn."""
        self._stop.wait(self._between(0.0, 1.0))
        told = self._process("verify", "cache", "verify", str(self.place), "--json")
        for directory in json.loads(told)["directories"] if told else ():
            damaged = [problem for problem in directory["problems"] if "is damaged" in problem]
            self._count("damaged", len(damaged))
            self.faults += damaged

    def read(self) -> None:
        """Each kernel that is there, as a loader reads it."""
        store = Store([self.place])
        with suppress(FileNotFoundError):
            for label, key in filter(None, map(label_and_key, os.listdir(self.place))):
                found = store.find(label, key)
                self._count("loaded" if found.entry else "gone")
                self._count("torn", len(found.damaged))
                self.faults += [f"{label}: {damage.reason}" for damage in found.damaged]
        time.sleep(0.01)

    def _repeat(self, loop: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                loop()
            except Exception as error:
                self._fault(f"{type(error).__name__}: {error}")
                return

    def _must(self, name: str, *words: str) -> None:
        before = self.counts[f"{name} 0"]
        self._process(name, *words)
        if self.counts[f"{name} 0"] == before:
            self._fault(f"the last {name} failed")

    def _process(self, name: str, *words: str, kill_after: float | None = None) -> str:
        """What a command printed; nothing if it was killed."""
        command = [sys.executable, "-m", "fp8gemm", *words]
        here = {key: value for key, value in os.environ.items() if not key.startswith("FP8GEMM_")}
        process = subprocess.Popen(
            command, env={**here, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, told = process.communicate(timeout=kill_after or _TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, told = process.communicate()
            if kill_after is None:
                self._fault(f"{name} has not ended within {_TIMEOUT_S} s")
        code = process.returncode
        self._count("processes")
        self._count(f"{name} killed" if code == _KILLED else f"{name} {code}")
        if code != _KILLED and (code not in EXPECTED[name] or "Traceback" in told):
            self._fault(f"{name} ended with code {code}: {told[-500:]}")
        return out if code != _KILLED else ""

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            self.place.chmod(0o700)

    def _between(self, least: float, most: float) -> float:
        with self._lock:
            return self.random.uniform(least, most)

    def _count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self.counts[what] += times

    def _fault(self, what: str) -> None:
        with self._lock:
            self.faults.append(what)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print one JSON object for each run; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run, default 60")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED", help="a run for each")
    parser.add_argument("--warmups", type=int, default=3, help="beside each other, default 3")
    options = parser.parse_args(argv)
    failed = False
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="fp8gemm-chaos-") as directory:
            chaos = Chaos(Path(directory) / "cache", seed)
            chaos.run(options.seconds, options.warmups)
        failed |= bool(chaos.faults)
        print(json.dumps({"seed": seed, "counts": dict(sorted(chaos.counts.items())), "faults": chaos.faults}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
