"""The instructions of the compiled dense kernels: those that drive Hopper's units are there, those that stall not."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8gemm.lab.labels import labelled_config
from fp8gemm.tuning.candidates import candidate_configs
from fp8gemm.tuning.l2 import streamed_rows
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from fp8gemm.tuning.tiles import TILES
from tests.first_steps import first_steps, steps_of_tile
from tests.jit.dense import Kernel, compiled, one_wave_in_flight
from tests.jit.sass import find, find_in_waves
from tests.thirds import third_of

pytestmark = pytest.mark.usefixtures("known_kernels")

TMA, PREDICATED = StoreKind.TMA, StoreKind.PREDICATED
FLOAT16, FLOAT32 = OutputType.FLOAT16, OutputType.FLOAT32


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    directory = tmp_path_factory.mktemp("sass")
    wanted = [(Problem(1, 7168, 2048), config) for config in candidate_configs(TMA)]
    by_rows = Problem(1, 7168, 2048, FLOAT32, TMA, Scaling.ROW)
    of_rows = candidate_configs(TMA, FLOAT32, Scaling.ROW)
    wanted += [(by_rows, config) for config in of_rows if Scaling.BLOCK not in TILES[config.tile].scalings]
    twice = Problem(1, 7168, 2048, store=PREDICATED)
    wanted.append((twice, labelled_config("128x192", twice)))  # the main loop, for each of its borders
    # And, in a rotation of tiles and cluster shapes, the other store and a short K.
    others = [(Problem(1, 7168, 2048, store=PREDICATED), config) for config in list(candidate_configs(PREDICATED))[::4]]
    others += [(Problem(1, 576, 144), config) for config in list(candidate_configs(TMA))[1::4]]
    others += [(Problem(1, 576, 1904), config) for config in list(candidate_configs(TMA))[::2]]  # chunks and a rest
    for output, scaling, store in itertools.product((FLOAT16, FLOAT32), Scaling, StoreKind):
        problem = Problem(1, 7168, 2048, output, store, scaling, Addend.FLOAT32, Addend.BFLOAT16)
        others += [(problem, config) for config in list(candidate_configs(store, output, scaling))[2::5]]
    wanted += third_of(others, repr)
    return compiled(wanted, directory)


def failing(kernels: list[Kernel], holds: Callable[[Kernel], bool]) -> list[str]:
    return [kernel.label for kernel in kernels if not holds(kernel)]


def test_tensor_cores_are_used_with_the_shape_of_a_wave(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        opcodes = {text.split()[0] for text in kernel.find("QGMMA|HGMMA|IGMMA|BGMMA|HMMA|IMMA|QMMA")}
        return opcodes == {f"QGMMA.64x{kernel.config.wave_cols}x32.F32.E4M3.E4M3"}

    assert failing(kernels, holds) == []
    every = [*candidate_configs(TMA), *candidate_configs(TMA, OutputType.FLOAT32, Scaling.ROW)]
    assert {kernel.config.wave_cols for kernel in kernels} == {config.wave_cols for config in every}


def test_a_wave_is_four_multiplications_of_which_the_first_starts_afresh(kernels: list[Kernel]) -> None:
    """128 of K, then promotion: sums that stay longer in the tensor core lose bits."""

    def holds(kernel: Kernel) -> bool:
        multiplications = kernel.find("QGMMA")
        afresh = [text for text in multiplications if "!UPT" in text]
        last_of_group = [text for text in multiplications if "gsb0" in text]
        count = len(multiplications)
        return len(afresh) == len(last_of_group) == count // 4 and count % 4 == 0

    assert failing(kernels, holds) == []


def test_the_main_loop_is_its_chunks_and_a_copy_of_them_for_each_border(kernels: list[Kernel]) -> None:
    """No more code than is meant, which compiles fast; and no less: the compiler has not made a loop of a chunk."""
    assert failing(kernels, lambda kernel: len(kernel.find("QGMMA")) == 4 * waves_of_code(kernel)) == []
    assert {kernel.loops for kernel in kernels} == {1, 2, 4}
    assert {len(kernel.pieces) for kernel in kernels} == {1, 2, 4}


def waves_of_code(kernel: Kernel) -> int:
    return sum(kernel.pieces) * kernel.waves


def test_nothing_is_in_flight_between_chunks_and_inside_them_as_many_waves_as_fit(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        waits = Counter(text.split()[-1] for text in kernel.find(r"WARPGROUP\.DEPBAR\.LE gsb0"))
        if kernel.config.waves_in_flight == 1:
            return waits == {"0x0": waves_of_code(kernel)}
        return waits == +Counter({"0x0": kernel.landings, "0x1": waves_of_code(kernel) - len(kernel.pieces)})

    assert failing(kernels, holds) == []
    assert {kernel.config.waves_in_flight for kernel in kernels} == {1, 2}


def test_operands_are_loaded_by_tma_and_shared_by_multicast_in_clusters_only(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        loads = kernel.find(r"UTMALDG\.2D")
        shared = [text for text in loads if "MULTICAST" in text.split()[0]]
        streamed = [text for text in loads if "desc[" in text]  # with a hint to L2
        boxes = 4 if kernel.problem.scaling is Scaling.ROW else 3
        blocks, sharers = kernel.config.warpgroups_k, kernel.config.cluster_m * kernel.config.cluster_n
        # Ahead of the roles, and in the load role, which of one tile, where K is divided, may find nothing left.
        of_kernel = kernel.config, kernel.problem.k_blocks
        all_ahead = kernel.config.split_k > 1 and first_steps(*of_kernel) == steps_of_tile(*of_kernel)
        places = len(loads) // (blocks * boxes)
        # Where B may leave L2 first, there are two copies of both; and a loop's first turn may stand ahead of it.
        streams = streamed_rows(kernel.problem, kernel.config) > 0
        return (
            places in ((4, 5) if streams else (1, 2) if all_ahead else (2,))
            and len(loads) == places * blocks * boxes
            and len(shared) == places * blocks * (sharers - 1)
            and len(streamed) == 2 * blocks * streams
        )

    assert failing(kernels, holds) == []
    assert {streamed_rows(kernel.problem, kernel.config) > 0 for kernel in kernels} == {False, True}
    assert {kernel.config.cluster_size for kernel in kernels} == {1, 2, 4}


def test_the_output_is_stored_as_asked(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        tma, direct = bool(kernel.find(r"UTMASTG\.2D")), bool(kernel.find(r"STG\."))
        by_matrix, by_pair = bool(kernel.find(r"STSM\.")), bool(kernel.find(r"STS\.64"))
        if kernel.problem.store is PREDICATED:
            return (tma, direct, by_matrix, by_pair) == (False, True, False, False)
        wide = kernel.problem.output is FLOAT32
        return (tma, direct, by_matrix, by_pair) == (True, False, not wide, wide)

    assert failing(kernels, holds) == []


def test_outputs_are_rounded_by_the_conversion_of_their_type(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        found = {text.split()[0].removesuffix("_RELU") for text in kernel.find(r"F2FP\.")}
        wanted = {"bfloat16": {"F2FP.BF16.F32.PACK_AB"}, "float16": {"F2FP.F16.F32.PACK_AB"}, "float32": set()}
        return found == wanted[kernel.problem.output.value]

    assert failing(kernels, holds) == []


def test_only_what_is_added_is_loaded_past_tma(kernels: list[Kernel]) -> None:
    """Scales of blocks are read by the consumers too; scales of rows arrive by TMA."""

    def holds(kernel: Kernel) -> bool:
        adds = (kernel.problem.c, kernel.problem.bias) != (Addend.NONE, Addend.NONE)
        return bool(kernel.find(r"LDG\.")) == (adds or kernel.problem.scaling is Scaling.BLOCK)

    assert failing(kernels, holds) == []


@pytest.mark.parametrize(("k", "is_held"), [(8320, True), (16384, True), (16512, False)])
def test_a_main_loop_with_one_wave_in_flight_loads_no_weight_scales_of_up_to_128_k_blocks(
    k: int, is_held: bool, tmp_path: Path
) -> None:
    for kernel in compiled([(Problem(1, 7168, k), tile) for tile in one_wave_in_flight()], tmp_path):
        waves = [place for place, text in enumerate(kernel.instructions) if re.match(r"QGMMA|WARPGROUP\.DEPBAR", text)]
        loads = find(kernel.instructions[waves[0] : waves[-1]], r"LDG\.")
        assert (not loads) == is_held and not kernel.find("LDL|STL"), kernel.label


def test_upper_halves_of_descriptors_are_not_written_anew(kernels: list[Kernel]) -> None:
    """They are a constant. Written for both operands of each WGMMA but a wave's first they are 1.5 to a WGMMA."""

    def holds(kernel: Kernel) -> bool:
        anew = find_in_waves(kernel.instructions, r"UMOV \S+ 0x40000040")
        return len(anew) <= 0.3 * len(kernel.find("QGMMA")) and "0x40000040" in " ".join(kernel.instructions)

    assert failing(kernels, holds) == []


def test_few_instructions_stand_between_the_first_two_multiplications_of_a_k_block(tmp_path: Path) -> None:
    """Where scales are ahead. What the next stage needs comes behind the second, not between them: 16 instructions."""
    problems = [Problem(1, 7168, k) for k in (1536, 7168, 16384)]
    wanted = [(problem, labelled_config(label, problem)) for label in ("128x256", "256x128") for problem in problems]
    for kernel in compiled(wanted, tmp_path):
        places = [place for place, text in enumerate(kernel.instructions) if text.startswith("QGMMA")]
        of_k_block = 4 * kernel.waves
        firsts, seconds = places[::of_k_block], places[1::of_k_block]
        between = [second - first - 1 for first, second in zip(firsts, seconds, strict=True)]
        assert statistics.median(between) < 12, (kernel.label, between)


def test_nothing_moves_to_uniform_registers_between_the_multiplications_of_a_wide_wave(tmp_path: Path) -> None:
    """Also beside C and a bias."""
    wide = [config for config in one_wave_in_flight(FLOAT32) if config.wave_cols >= 160]
    for c, k in itertools.product((Addend.NONE, Addend.FLOAT32), (1904, 7296)):
        problem = Problem(1, 7168, k, FLOAT32, c=c, bias=c)
        for kernel in compiled([(problem, config) for config in wide], tmp_path):
            assert find_in_waves(kernel.instructions, "R2UR") == [], kernel.label


def test_nothing_lives_in_local_memory(kernels: list[Kernel]) -> None:
    assert failing(kernels, lambda kernel: not kernel.find(r"LDL|STL")) == []


def test_registers_move_from_the_load_warps_to_the_consumers(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        changes = [text.split()[0] for text in kernel.find("USETMAXREG")]
        if kernel.config.warpgroups == 1:  # which has enough
            return not changes
        return len(changes) == 2 and "DEALLOC" in " ".join(changes) and "TRY_ALLOC" in " ".join(changes)

    assert failing(kernels, holds) == []


def test_no_gpu_wide_fence_in_the_main_loop(kernels: list[Kernel]) -> None:
    """A release at cluster scope where a stage is handed back compiles to one, and cost a third of the speed."""
    fence = re.compile(r"MEMBAR\.\w+\.(GPU|SYS)|CCTL\.IVALL")

    def holds(kernel: Kernel) -> bool:
        places = [i for i, text in enumerate(kernel.instructions) if text.startswith("QGMMA")]
        loop = kernel.instructions[places[0] : places[-1] + 1]
        # Blocks of the loop may be listed past its last multiplication, and nothing elsewhere needs one.
        return not any(map(fence.match, loop)) and not kernel.find(r"MEMBAR\.\w+\.(GPU|SYS)")

    assert failing(kernels, holds) == []


def test_only_warpgroups_that_share_k_meet_at_named_barriers(kernels: list[Kernel]) -> None:
    """Both wait at each of two. Barrier 0 is that of the whole CTA."""

    def holds(kernel: Kernel) -> bool:
        named = {"0x1, 0x100", "0x2, 0x100"} if kernel.config.warpgroups_k == 2 else set()
        return {text.split(maxsplit=1)[1] for text in kernel.find(r"BAR\.")} - {"0x0"} == named

    assert failing(kernels, holds) == []
    assert {kernel.config.warpgroups_k for kernel in kernels} == {1, 2}


def test_only_clusters_pay_for_cluster_barriers(kernels: list[Kernel]) -> None:
    def holds(kernel: Kernel) -> bool:
        return len(kernel.find("UCGABAR_ARV")) == (1 if kernel.config.cluster_size > 1 else 0)

    assert failing(kernels, holds) == []
