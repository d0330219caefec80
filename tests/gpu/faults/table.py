"""The list of faults in kernels and inputs that must not hurt, and the tests that show it of each."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/gpu/faults"
ORDER = "tests/gpu/test_quantize_order.py"
CONTIGUOUS, MASKED, COLUMNS = "tests/gpu/test_grouped.py", "tests/gpu/test_masked.py", "tests/gpu/test_k_grouped.py"


@dataclass(frozen=True)
class Fault:
    """A fault by its number.

    Attributes:
        what: in a few words.
        files: files of this directory whose functions ``test_fault_<number>_...`` are its tests.
        more: node ids of other tests that belong to it.
        limit_s: seconds within which all of them end, several times what they need.
    """

    number: int
    what: str
    files: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    limit_s: float = 120.0

    @property
    def nodes(self) -> list[str]:
        """What to call pytest with."""
        own = [f"{HERE}/{file}::{name}" for file in self.files for name in functions(ROOT / HERE / file, self.number)]
        return [*own, *self.more]


def functions(path: Path, number: int) -> list[str]:
    """The tests of a fault in a file, in their order."""
    prefix = f"test_fault_{number:02d}_"
    body = ast.parse(path.read_text()).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith(prefix)]


FAULTS = (
    Fault(1, "every M, N and K with a tail; K that no kernel takes", ("shapes.py",), limit_s=200),
    Fault(2, "canaries around the output and between its rows", ("memory.py",), limit_s=200),
    Fault(3, "output full of NaN before: every element written", ("memory.py",)),
    Fault(4, "NaN past the end of every input", ("memory.py",)),
    Fault(5, "misaligned, strided, overlapping and wrong arguments", ("arguments.py", "refused.py")),
    Fault(6, "NaN codes, NaN and Inf in C and bias: their row, column or element", ("values.py",)),
    Fault(7, "all 256 x 256 pairs of codes", ("values.py",)),
    Fault(
        8,
        "quantisation at the edges of every range",
        ("values.py",),
        (
            "tests/gpu/test_quantize.py",
            "tests/gpu/test_quantize_fused.py",
            "tests/gpu/test_quantize_memory.py",
            "tests/unit/test_quantize.py",
        ),
        limit_s=300,
    ),
    Fault(9, "scales 0, negative, subnormal, 1e-23, Inf, NaN", ("values.py",)),
    Fault(10, "a power of two of its own in every scale block", ("values.py",)),
    Fault(11, "overflow of outputs and accumulators", ("values.py",)),
    Fault(12, "M N, M K and N K past 2^31 elements", ("shapes.py",), limit_s=200),
    Fault(13, "1, 2, 7, 131 and 132 SMs", ("shapes.py",)),
    Fault(
        14,
        "1 to 2 stages + 2 K blocks, many tiles per CTA, 10^5 launches",
        ("shapes.py",),
        ("tests/gpu/test_stress.py::test_launches_of_small_shapes_are_right",),
        limit_s=600,
    ),
    Fault(
        15,
        "programmatic dependent launch",
        ("programmatic.py", "layers.py"),
        (
            f"{ORDER}::test_what_a_product_wrote_just_before",
            f"{ORDER}::test_a_weight_that_is_quantised_just_before_its_product",
            f"{ORDER}::test_chains_of_quantisers_and_products_have_the_bits_of_plain_launches",
            f"{ORDER}::test_layers_in_a_row_that_share_a_workspace",
        ),
        limit_s=200,
    ),
    Fault(
        16,
        "CUDA graphs: 1000 replays, two at once",
        ("launching.py", "layers.py"),
        (f"{ORDER}::test_a_thousand_replays_of_a_graph",),
    ),
    Fault(17, "8 streams, 8 threads with 10^4 calls each, 2 devices", ("launching.py",), limit_s=200),
    Fault(18, "1000 runs of one input", ("launching.py",)),
    Fault(19, "compute-sanitizer's four tools", ("machine.py",), limit_s=400),
    Fault(
        20,
        "no GPU, not Hopper, no driver, an old driver",
        ("machine.py",),
        (
            "tests/unit/test_driver_device.py",
            "tests/unit/test_import.py::test_import_needs_neither_a_home_nor_a_cache",
            "tests/unit/test_cli.py::test_info_tells_machines_apart",
            "tests/unit/test_faults_without_gpu.py::test_fault_20_no_gpu",
            "tests/unit/test_faults_without_gpu.py::test_fault_20_a_driver_that_cannot_be_loaded",
        ),
    ),
    Fault(21, "a plan's or layer's weight moved, replaced, reloaded, copied, pickled", ("plans.py", "layers.py")),
    Fault(
        22,
        "rows of no group (index -1), sizes of any number",
        more=(
            f"{CONTIGUOUS}::test_groups_of_any_size_anywhere",
            f"{CONTIGUOUS}::test_every_way_to_say_whose_a_row_is",
            f"{MASKED}::test_any_counts",
            f"{COLUMNS}::test_groups_of_any_size",
        ),
    ),
    Fault(
        23,
        "indices, offsets and counts out of range: clamped, or refused where a setting asks for it",
        more=(
            f"{CONTIGUOUS}::test_groups_out_of_range_are_clamped",
            f"{CONTIGUOUS}::test_wrong_groups_are_refused_where_a_setting_asks_for_it",
            f"{MASKED}::test_counts_out_of_range_are_clamped",
            f"{MASKED}::test_counts_past_the_room_are_refused_where_a_setting_asks_for_it",
            f"{COLUMNS}::test_every_way_to_say_where_a_group_is",
            "tests/unit/test_grouped_checks.py",
        ),
    ),
    Fault(
        24,
        "all groups empty, one group gets all",
        more=(
            f"{CONTIGUOUS}::test_one_group_gets_all_and_none_gets_any",
            f"{MASKED}::test_none_all_and_only_one",
            f"{COLUMNS}::test_few_groups_and_empty_ones",
            f"{COLUMNS}::test_empty_groups_keep_the_bits_of_c",
        ),
    ),
    Fault(
        25,
        "256 groups",
        more=(
            f"{CONTIGUOUS}::test_256_groups",
            f"{MASKED}::test_256_groups_of_few_rows",
            f"{COLUMNS}::test_256_groups",
        ),
    ),
    Fault(
        26,
        "groups: 1000 replays of a graph, with others each time",
        more=(
            f"{CONTIGUOUS}::test_graph_replay_with_other_groups",
            f"{MASKED}::test_graph_replay_with_other_counts",
            f"{COLUMNS}::test_graph_replay_with_other_sizes",
        ),
        limit_s=200,
    ),
    Fault(
        27,
        "groups: canaries around the output, NaN past the end of every input and in one group",
        more=(
            f"{CONTIGUOUS}::test_canaries_around_the_output",
            f"{CONTIGUOUS}::test_nan_past_the_end_of_every_input_changes_nothing",
            f"{CONTIGUOUS}::test_nan_of_one_group_stays_in_it",
            f"{MASKED}::test_canaries_around_the_output",
            f"{MASKED}::test_nan_past_the_end_of_every_input_changes_nothing",
            f"{MASKED}::test_nan_of_one_group_stays_in_it",
            f"{COLUMNS}::test_bytes_around_the_operands",
            f"{COLUMNS}::test_nan_of_one_group_stays_in_it",
        ),
    ),
    Fault(
        28,
        "groups: 200 runs of one input, any number of SMs, batch invariance",
        more=tuple(
            f"{file}::{test}"
            for file in (CONTIGUOUS, MASKED, COLUMNS)
            for test in ("test_repeated_runs_are_bitwise_equal", "test_any_number_of_sms")
        )
        + tuple(f"{file}::test_batch_invariant_rows_are_those_of_the_dense_product" for file in (CONTIGUOUS, MASKED)),
        limit_s=200,
    ),
)
