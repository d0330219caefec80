"""The instrumented build of the dense kernels: it compiles as the normal one does, reads the clock, and it alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.jit.artifact import Artifact
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.lab.profiling.trace import ACTIVITIES, BUFFER_BYTES, TRACKS
from fp8gemm.lab.profiling.traced import traced_request
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from tests.jit.sass import disassemble, disassemblers
from tests.jit.test_kernels import faults_of
from tests.thirds import third_of

pytestmark = pytest.mark.usefixtures("known_kernels")

_CLOCK = re.compile(r"SR_CLOCK|SR_GLOBALTIMER")
_SYMBOL = b"fp8gemm_trace\0"
_TRACE = Path(__file__).resolve().parents[2] / "include" / "fp8gemm" / "trace"


def wanted() -> list[tuple[Problem, TileConfig]]:
    """Every config of the common problem, and of each other kind of output the largest tile, one in rotation, and the
    largest of which the consumers share K."""
    pairs = [(Problem(1, 7168, 2048), config) for config in candidate_configs(StoreKind.TMA, k=2048)]
    for i, (output, scaling, store) in enumerate(itertools.product(OutputType, Scaling, StoreKind)):
        problem = Problem(1, 2112, 7168, output, store, scaling, Addend.FLOAT32, Addend.BFLOAT16)
        configs = sorted(candidate_configs(store, output, scaling), key=lambda config: -config.block_m * config.block_n)
        sharing = [config for config in configs if config.warpgroups_k > 1]
        pairs += [(problem, configs[0]), (problem, configs[5 * i % len(configs)]), (problem, sharing[0])]
    return list(dict.fromkeys(pairs))


def test_the_instrumented_kernels_do_not_spill_and_lose_no_overlap(cache: Path) -> None:
    requests = [traced_request(*pair) for pair in wanted()]
    artifacts = build_many(third_of(requests, lambda request: request.label))
    faults = {artifact.request.label: found for artifact in artifacts if (found := faults_of(artifact))}
    assert faults == {}


@pytest.fixture
def listing(tmp_path: Path) -> Callable[[Artifact], str]:
    """The disassembly of an artifact."""
    tools = list(disassemblers())
    if not tools:
        pytest.skip("no nvdisasm on PATH, in the package nvidia-cuda-nvdisasm or in triton")

    def read(artifact: Artifact) -> str:
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(artifact.cubin)
        found = next((text for tool in tools if (text := disassemble(tool, cubin)) is not None), None)
        if found is None:
            pytest.skip(f"no disassembler here reads a cubin of NVRTC {artifact.nvrtc_version}")
        return found

    return read


def test_only_the_instrumented_kernel_reads_the_clock(cache: Path, listing: Callable[[Artifact], str]) -> None:
    pairs = wanted()
    pairs = third_of(dict.fromkeys([*pairs[::4], *[pair for pair in pairs if pair[1].warpgroups_k > 1][::3]]), repr)
    normal = build_many([kernel_request(*pair) for pair in pairs])
    traced = build_many([traced_request(*pair) for pair in pairs])
    for (problem, config), plain, recording in zip(pairs, normal, traced, strict=True):
        without_marks, with_marks = listing(plain), listing(recording)
        assert not _CLOCK.search(without_marks), plain.request.label
        assert _SYMBOL not in plain.cubin and _SYMBOL in recording.cubin
        # One mark at the beginning and one at the end of each track, and two or more in between.
        tracks = 4 if problem.store is StoreKind.TMA else 3
        reads = _CLOCK.findall(with_marks)
        assert reads.count("SR_GLOBALTIMER") >= 2 * tracks, recording.request.label
        assert reads.count("SR_CLOCK") >= 4 * tracks, recording.request.label
        assert _barriers(with_marks) == _barriers(without_marks), recording.request.label
        assert plain.key != recording.key and config.label in recording.request.label


def _barriers(text: str) -> int:
    """Instructions that wait at a barrier of the CTA."""
    return len(re.findall(r"\bBAR\.", text))


def test_the_buffer_has_the_size_that_the_host_reads() -> None:
    """The device asserts that its struct has this size."""
    assert f"static_assert(sizeof(TraceBuffer) == {BUFFER_BYTES}," in (_TRACE / "recorder.cuh").read_text()


def test_the_host_knows_tracks_and_activities_in_the_devices_order() -> None:
    text = (_TRACE / "tracer.cuh").read_text()

    def enumerators(name: str) -> list[str]:
        body = re.search(rf"enum class {name} : uint32_t \{{(.*?)\}};", text, re.DOTALL)
        assert body is not None
        return re.findall(r"\bk([A-Z]\w*)", re.sub(r"///<.*", "", body[1]))

    def camel(name: str) -> str:
        return "".join(word.capitalize() for word in name.split())

    assert enumerators("Track") == [camel(name) for name in TRACKS]
    assert enumerators("Activity") == ["Begin", *(camel(name) for name in ACTIVITIES[1:])]
