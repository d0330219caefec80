"""What grouped products refuse, with what was expected and what came, and before anything is written. On the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp8gemm
from fp8gemm import settings
from fp8gemm.errors import InputError
from fp8gemm.tuning.grouped_problem import MAX_GROUPS
from tests import cases
from tests.grouped import contiguous_case, in_order, k_grouped_case, masked_case

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
G, N, K = 3, 136, 272
SIZES, COUNTS, COLUMNS = (5, 0, 7), (5, 0, 4), (128, 0, 256)
M, MAX_M, K_OF_ALL = sum(SIZES), 6, sum(COLUMNS)
INDICES = [0] * 5 + [2] * 7

Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]


def grouped() -> Arguments:
    case = contiguous_case(in_order(SIZES), N, K, seed=1)
    names = ("a", "scales_a", "b", "scales_b")
    return {**dict(zip(names, case.operands, strict=True)), "offsets": case.offsets(), "out": case.poison()}


def masked() -> Arguments:
    case = masked_case(COUNTS, MAX_M, N, K, seed=1)
    names = ("a", "scales_a", "b", "scales_b")
    return {**dict(zip(names, case.operands, strict=True)), "counts": case.counts(), "out": case.poison()}


def k_grouped() -> Arguments:
    case = k_grouped_case(COLUMNS, M, N, seed=1, c=True)
    names = ("a", "scales_a", "b", "scales_b")
    return {
        **dict(zip(names, case.operands, strict=True)),
        "offsets": case.offsets(),
        "c": case.c,
        "out": case.poison(),
    }


def overlapping(arguments: Arguments, name: str) -> Arguments:
    """The named operand, and an output that begins in its last bytes."""
    tensor, out = arguments[name], arguments["out"]
    size = -(-(tensor.untyped_storage().nbytes()) // 16) * 16
    storage = torch.zeros(size + out.numel() * 4, dtype=torch.uint8)
    inside = storage[:size].view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    behind = storage[size - 16 :][: out.numel() * out.element_size()].view(out.dtype).view(out.shape)
    return {name: inside, "out": behind}


def padded(tensor: Tensor) -> Tensor:
    """Groups with room for a row between them."""
    groups, rows, columns = tensor.shape
    room = torch.zeros(groups, rows + 1, columns, dtype=tensor.dtype)
    room[:, :rows] = tensor
    return room[:, :rows]


OF_WEIGHTS: dict[str, tuple[Change, str]] = {
    "b of two dimensions": (lambda x: {"b": x["b"][0]}, r"^b: expected shape \(G, N, K\).* got \(136, 272\)"),
    "b of no groups": (lambda x: {"b": x["b"][:0]}, rf"^b: .*1 <= G <= {MAX_GROUPS}, got \(0, 136, 272\)"),
    "b of no rows": (lambda x: {"b": x["b"][:, :0]}, "^b: expected N >= 1"),
    "b bfloat16": (lambda x: {"b": x["b"].to(BF16)}, "^b: .*float8_e4m3fn.*bfloat16"),
    "b with room between groups": (lambda x: {"b": padded(x["b"])}, "^b: expected groups one behind the other"),
    "b with a bad K": (lambda x: {"b": x["b"][..., :24].contiguous()}, "^b: .*multiple of 16"),
    "scales_b of one group": (lambda x: {"scales_b": x["scales_b"][0]}, r"^scales_b: expected .*\(3, 2, 3\)"),
    "scales_b float64": (lambda x: {"scales_b": x["scales_b"].double()}, "^scales_b: .* got torch.float64"),
    "scales_b transposed": (
        lambda x: {"scales_b": x["scales_b"].mT.contiguous().mT},
        "^scales_b: expected contiguous .* strides",
    ),
    "scales_b that require grad": (
        lambda x: {"scales_b": x["scales_b"].clone().requires_grad_()},
        "^scales_b: .*needs no gradient",
    ),
    "expected_m of 0": (lambda x: {"expected_m": 0}, "^expected_m: expected at least 1, got 0"),
    "out_dtype FP8": (lambda x: {"out_dtype": torch.float8_e4m3fn, "out": None}, "float8_e4m3fn"),
    "out of another dtype": (lambda x: {"out_dtype": F16}, "^out: expected torch.float16 .* got torch.bfloat16"),
    "out float64": (lambda x: {"out": x["out"].double()}, "float64"),
}
GROUPED: dict[str, tuple[Change, str]] = {
    **OF_WEIGHTS,
    "neither indices nor offsets": (lambda x: {"offsets": None}, "^expected either indices or offsets, got neither"),
    "both": (lambda x: {"indices": torch.zeros(M, dtype=torch.int32)}, "^expected either .* got both"),
    "a of another K": (lambda x: {"a": x["a"][:, :256].contiguous()}, "^a: "),
    "scales_a a row short": (lambda x: {"scales_a": x["scales_a"][:-1]}, "^scales_a: "),
    "indices float32": (
        lambda x: {"offsets": None, "indices": torch.zeros(M)},
        "^indices: expected torch.int32 or torch.int64, got torch.float32",
    ),
    "indices a row short": (
        lambda x: {"offsets": None, "indices": torch.zeros(M - 1, dtype=torch.int32)},
        r"^indices: expected shape \(12,\) = \(M,\), got \(11,\)",
    ),
    "indices of every other place": (
        lambda x: {"offsets": None, "indices": torch.zeros(2 * M, dtype=torch.int32)[::2]},
        "^indices: expected contiguous",
    ),
    "offsets int16": (lambda x: {"offsets": x["offsets"].to(torch.int16)}, "^offsets: .* got torch.int16"),
    "offsets of other groups": (
        lambda x: {"offsets": torch.zeros(G + 2, dtype=torch.int32)},
        r"^offsets: expected shape \(4,\) = \(G \+ 1,\), \(3,\) = \(G,\) or \(2, 3\) = \(2, G\), got \(5,\)",
    ),
    "offsets one by one": (lambda x: {"offsets": torch.zeros(G, 2, dtype=torch.int32)}, r"^offsets: .* got \(3, 2\)"),
    "out a row short": (lambda x: {"out": x["out"][:-1]}, r"^out: expected .*\(12, 136\), got .*\(11, 136\)"),
    "out one row for all": (lambda x: {"out": x["out"][:1].expand(M, -1)}, "^out: "),
    "out over a": (lambda x: overlapping(x, "a"), "^out: "),
    "out over b": (lambda x: overlapping(x, "b"), "^out: "),
    "out over offsets": (lambda x: overlapping(x, "offsets"), "^out: "),
}
MASKED: dict[str, tuple[Change, str]] = {
    **OF_WEIGHTS,
    "a of two dimensions": (lambda x: {"a": x["a"].flatten(0, 1)}, r"^a: expected shape \(G, max_m, K\) = \(3, max_m"),
    "a of other groups": (lambda x: {"a": x["a"][:2]}, r"^a: expected .* got \(2, 6, 272\)"),
    "a with room between groups": (lambda x: {"a": padded(x["a"])}, "^a: expected groups one behind the other"),
    "scales_a of all rows": (lambda x: {"scales_a": x["scales_a"].reshape(-1, 3)}, r"^scales_a: .*\(3, 6, 3\)"),
    "counts float32": (lambda x: {"counts": x["counts"].float()}, "^counts: expected torch.int32 or torch.int64"),
    "counts of other groups": (lambda x: {"counts": x["counts"][:2]}, r"^counts: expected shape \(3,\) = \(G,\)"),
    "out of two dimensions": (lambda x: {"out": x["out"].flatten(0, 1)}, r"^out: expected .*\(3, 6, 136\)"),
    "out with room between groups": (lambda x: {"out": padded(x["out"])}, "^out: expected groups one behind"),
    "out over a": (lambda x: overlapping(x, "a"), "^out: "),
    "out over counts": (lambda x: overlapping(x, "counts"), "^out: "),
}
K_GROUPED: dict[str, tuple[Change, str]] = {
    "a of another K": (
        lambda x: {"a": x["a"][:, :256].contiguous(), "scales_a": x["scales_a"][:, :2]},
        "^a: expected K = 384 as in b",
    ),
    "K no multiple of 128": (
        lambda x: {name: x[name][:, :272].contiguous() for name in ("a", "b")},
        r"^a: expected shape \(M, K\) with .* multiple of 128, got \(12, 272\)",
    ),
    "a of no rows": (lambda x: {"a": x["a"][:0], "scales_a": x["scales_a"][:0]}, "^a: expected .* M >= 1"),
    "scales_a of blocks": (lambda x: {"scales_a": x["scales_a"][:1]}, r"^scales_a: expected .*\(12, 3\)"),
    "scales_b float64": (lambda x: {"scales_b": x["scales_b"].double()}, "^scales_b: .* torch.float64"),
    "offsets of other groups": (
        lambda x: {"offsets": torch.zeros(G + 2, dtype=torch.int32)},
        r"^offsets: expected shape \(4,\)",
    ),
    "offsets that say no G": (
        lambda x: {"offsets": torch.zeros((), dtype=torch.int32), "c": None, "out": None},
        r"^offsets: expected shape \(G \+ 1,\) or \(2, G\)",
    ),
    "offsets of three by G, without an output": (
        lambda x: {"offsets": torch.zeros(3, 2, dtype=torch.int32), "c": None, "out": None},
        r"^offsets: expected shape \(G \+ 1,\) or \(2, G\) with 1 <= G <= \d+, got \(3, 2\)$",
    ),
    "c of another shape": (lambda x: {"c": x["c"][:, :-1]}, r"^c: expected .*\(3, 12, 136\), got"),
    "c bfloat16": (lambda x: {"c": x["c"].to(BF16)}, "^c: expected torch.float32"),
    "c with room between groups": (lambda x: {"c": padded(x["c"])}, "^c: expected groups one behind the other"),
    "out bfloat16": (lambda x: {"out": x["out"].to(BF16)}, "^out: expected torch.float32"),
    "out over b": (lambda x: overlapping(x, "b"), "^out: "),
    "out over a part of c": (lambda x: overlapping(x, "c"), "^out: "),
}
EVERY = [
    *((fp8gemm.gemm_grouped, grouped, name, *rest) for name, rest in GROUPED.items()),
    *((fp8gemm.gemm_masked, masked, name, *rest) for name, rest in MASKED.items()),
    *((fp8gemm.gemm_k_grouped, k_grouped, name, *rest) for name, rest in K_GROUPED.items()),
]


@pytest.mark.parametrize(
    "function, make, name, change, message", EVERY, ids=[f"{f.__name__}-{n}" for f, _, n, *_ in EVERY]
)
def test_what_cannot_be_multiplied_is_refused(
    function: Callable[..., Tensor], make: Callable[[], Arguments], name: str, change: Change, message: str
) -> None:
    arguments = make()
    function(**arguments)
    arguments = {**arguments, **change(arguments)}
    out = arguments["out"]
    before = None if out is None else out.clone()
    with pytest.raises(InputError, match=message):
        function(**arguments)
    assert before is None or torch.equal(out.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("make", [grouped, masked, k_grouped])
def test_too_many_groups_are_refused(make: Callable[[], Arguments]) -> None:
    groups = MAX_GROUPS + 1
    arguments = make()
    if make is k_grouped:
        many = {"c": None, "out": None, "offsets": torch.zeros(groups + 1, dtype=torch.int32)}
        with pytest.raises(InputError, match=rf"1 <= G <= {MAX_GROUPS}"):
            fp8gemm.gemm_k_grouped(**{**arguments, **many})
        return
    function = fp8gemm.gemm_grouped if make is grouped else fp8gemm.gemm_masked
    b = torch.zeros(groups, 8, 16, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(InputError, match=rf"^b: .*1 <= G <= {MAX_GROUPS}"):
        function(**{**arguments, "b": b, "scales_b": torch.zeros(groups, 1, 1)})


CHECKED: dict[str, tuple[dict[str, list[Any]], str]] = {
    "an index past the last group": (
        {"indices": [*INDICES[:-1], 3]},
        "^indices: expected -1 to 2 = G - 1, got 3 for row 11",
    ),
    "an index below -1": ({"indices": [-2, *INDICES[1:]]}, "^indices: .* got -2 for row 0"),
    "a group in two runs": ({"indices": [2, *INDICES[1:]]}, "^indices: .* neighbours, got more of 2 at row 5"),
    "a begin below 0": (
        {"offsets": [-1, 5, 5, 12]},
        "^offsets: expected 0 <= begin <= end <= 12 got -1 to 5 for group 0",
    ),
    "an end past M": ({"offsets": [0, 5, 13]}, "^offsets: .* got 5 to 13 for group 2"),
    "an end before its begin": ({"offsets": [0, 5, 4, 12]}, "^offsets: .* got 5 to 4 for group 1"),
    "groups that overlap": ({"offsets": [[0, 4, 6], [5, 6, 12]]}, "^offsets: .*overlap, got 0 and 1 at 4"),
}
FINE: dict[str, dict[str, list[Any]]] = {
    "indices in any order, rows of none between": {"indices": [-1, 2, 2, -1, -1, 0, -1, 1, 1, 1, 1, -1]},
    "no rows of any group": {"indices": [-1] * M},
    "offsets with rows before and behind": {"offsets": [2, 5, 5, 9]},
    "a group without rows amid the rows of another": {"offsets": [[0, 3, 5], [5, 3, 9]]},
    "groups in any order": {"offsets": [[7, 0, 5], [12, 5, 5]]},
}


@pytest.mark.parametrize(("where", "message"), CHECKED.values(), ids=CHECKED)
def test_wrong_groups_are_refused_only_where_a_setting_asks_for_it(where: dict[str, list[Any]], message: str) -> None:
    arguments = {**grouped(), "offsets": None, **{name: torch.tensor(value) for name, value in where.items()}}
    fp8gemm.gemm_grouped(**arguments)
    arguments["out"].fill_(math.nan)
    with settings.scope(check_groups=True), pytest.raises(InputError, match=message):
        fp8gemm.gemm_grouped(**arguments)
    assert arguments["out"].isnan().all()


@pytest.mark.parametrize("where", FINE.values(), ids=FINE)
def test_right_groups_pass_the_check(where: dict[str, list[Any]]) -> None:
    for dtype in (torch.int32, torch.int64):
        given = {name: torch.tensor(value, dtype=dtype) for name, value in where.items()}
        with settings.scope(check_groups=True):
            fp8gemm.gemm_grouped(**{**grouped(), "offsets": None, **given})


def test_wrong_counts_and_columns_are_refused_only_where_a_setting_asks_for_it() -> None:
    for counts, said in (([7, 0, 1], "got 7 for group 0"), ([6, 0, -1], "got -1 for group 2")):
        arguments = {**masked(), "counts": torch.tensor(counts)}
        fp8gemm.gemm_masked(**arguments)
        with settings.scope(check_groups=True), pytest.raises(InputError, match=f"^counts: .*max_m = 6, {said}"):
            fp8gemm.gemm_masked(**arguments)
    for offsets, said in (([0, 128, 200, 384], "got 128 to 200 for group 1"), ([0, 128, 128, 512], "128 to 512")):
        arguments = {**k_grouped(), "offsets": torch.tensor(offsets)}
        if offsets[2] % 128 == 0:  # the reference takes no others
            fp8gemm.gemm_k_grouped(**arguments)
        with settings.scope(check_groups=True), pytest.raises(InputError, match=f"multiples of 128.* {said}"):
            fp8gemm.gemm_k_grouped(**arguments)
    with settings.scope(check_groups=True):
        fp8gemm.gemm_masked(**masked())
        fp8gemm.gemm_k_grouped(**k_grouped())


def test_offsets_tell_the_groups_where_no_output_does() -> None:
    arguments = {**k_grouped(), "c": None, "out": None}
    out = fp8gemm.gemm_k_grouped(**arguments)
    ends = arguments["offsets"][1:]
    begins_and_ends = torch.stack((arguments["offsets"][:-1], ends))
    for offsets in (arguments["offsets"], begins_and_ends):
        assert torch.equal(fp8gemm.gemm_k_grouped(**{**arguments, "offsets": offsets}), out)
    assert out.shape == (G, M, N)


def test_c_in_place_is_no_overlap() -> None:
    case = k_grouped_case(COLUMNS, M, N, seed=1, c=True, maker=cases.small_integers)
    assert case.c is not None
    out = case.c.clone()
    case.check(fp8gemm.gemm_k_grouped(*case.operands, case.offsets(), c=out, out=out))


@pytest.mark.parametrize("make", [grouped, masked])
def test_there_is_no_promise_of_static_weights(make: Callable[[], Arguments]) -> None:
    """It would do nothing: which weights come first is known when the kernels ahead have ended."""
    function: Any = fp8gemm.gemm_grouped if make is grouped else fp8gemm.gemm_masked
    with pytest.raises(TypeError, match="static_weights"):
        function(**make(), static_weights=True)
    assert "static_weights" not in str(getattr(torch.ops.fp8gemm, function.__name__).default._schema)
