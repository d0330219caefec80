"""The operators: torch's checks of them, what their fake kernels tell and refuse, and that gradients are an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fp8gemm
from fp8gemm.errors import InputError
from fp8gemm.ops import SCHEMAS
from fp8gemm.products import routing
from tests.calls import same_bits
from tests.operators import SAMPLES, K, M, N, check_operator, operator

CPU = torch.device("cpu")
OPS = torch.ops.fp8gemm

every_sample = pytest.mark.parametrize("sample", SAMPLES)


def test_every_operator_has_a_sample() -> None:
    assert {schema.split("(")[0] for schema in SCHEMAS} == {sample.split()[0] for sample in SAMPLES}


@every_sample
def test_torch_finds_nothing_wrong(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_operator(sample, CPU, monkeypatch)


def described(result: Any) -> list[tuple[Any, ...]]:
    """Dtypes, shapes, devices, and the strides that mean something: of an empty tensor or along one element none do."""

    def strides(tensor: Tensor) -> list[int]:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        return [stride for size, stride in pairs if size > 1] if tensor.numel() else []

    tensors = result if isinstance(result, tuple) else [] if result is None else [result]
    return [(tensor.dtype, tuple(tensor.shape), strides(tensor), tensor.device.type) for tensor in tensors]


@every_sample
@pytest.mark.parametrize("rows", [0, 1, 3, M])
def test_fake_results_lie_as_real_ones_do(sample: str, rows: int) -> None:
    args, kwargs = SAMPLES[sample](CPU)

    along_k = sample.startswith("gemm_k_grouped")
    rows = max(rows, 1) if along_k else rows

    def fewer(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if along_k and value.dim() == 3:
            return value[:, :rows].contiguous()
        if value.dim() > 2 or value.shape[0] != M:
            return value
        are_scales = value.dim() == 2 and value.stride(0) == 1 and value.dtype == torch.float32
        return fp8gemm.to_mn_major(value[:rows]) if are_scales else value[:rows]

    args, kwargs = tuple(map(fewer, args)), {name: fewer(value) for name, value in kwargs.items()}
    expected = described(operator(sample)(*args, **kwargs))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in args]
        named = {name: mode.from_tensor(value) for name, value in kwargs.items()}
        assert described(operator(sample)(*fakes, **named)) == expected


@every_sample
def test_an_operator_is_the_function_of_its_name(sample: str) -> None:
    args, kwargs = SAMPLES[sample](CPU)
    got = operator(sample)(*args, **kwargs)
    match sample.split()[0]:
        case "gemm":
            options = dict(zip(("c", "bias", "out_dtype", "batch_invariant", "static_weights"), args[4:], strict=True))
            expected = (fp8gemm.gemm(*args[:4], **options),)
            got = (got,)
        case "gemm_out":
            got, expected = (kwargs["out"],), (fp8gemm.gemm(*args[:4], out_dtype=torch.float32),)
        case "gemm_grouped" | "gemm_masked" as name:
            given = [argument.name for argument in operator(sample)._schema.arguments]
            got, expected = (got,), (getattr(fp8gemm, name)(**dict(zip(given, args, strict=True))),)
        case "gemm_grouped_out" | "gemm_masked_out" as name:
            given = [argument.name for argument in operator(sample)._schema.arguments]
            out = torch.full_like(kwargs["out"], torch.nan)
            got = (kwargs["out"],)
            expected = (getattr(fp8gemm, name[:-4])(**dict(zip(given, args, strict=False)), out=out),)
        case "gemm_k_grouped":
            got, expected = (got,), (fp8gemm.gemm_k_grouped(*args[:5], c=args[5]),)
        case "gemm_k_grouped_out":
            got, expected = (kwargs["out"],), (fp8gemm.gemm_k_grouped(*args[:5], c=args[5]),)
        case "quantize_activation_out":
            got, expected = args[1:], fp8gemm.quantize_activation(args[0])
        case "quantize_rms_norm" | "quantize_add_rms_norm" as name:
            expected = getattr(fp8gemm, name)(*args[:-1], eps=args[-1])
        case "route" | "quantize_permuted" | "copy_to_rows" | "unpermute" as name:
            expected = getattr(routing, name)(*args)
            got, expected = (got, expected) if isinstance(got, tuple) else ((got,), (expected,))
        case name:
            expected = getattr(fp8gemm, name)(*args, **kwargs)
    assert len(got) == len(expected)
    assert all(same_bits(left, right) for left, right in zip(got, expected, strict=True))


FLOATING = [
    (sample, name)
    for sample in SAMPLES
    for name, value in zip(
        [argument.name for argument in operator(sample)._schema.arguments], SAMPLES[sample](CPU)[0], strict=False
    )
    if isinstance(value, Tensor) and value.is_floating_point()
]


@pytest.mark.parametrize(("sample", "name"), FLOATING)
def test_an_input_that_requires_a_gradient_is_an_error_that_names_it(sample: str, name: str) -> None:
    args, kwargs = SAMPLES[sample](CPU)
    names = [argument.name for argument in operator(sample)._schema.arguments]
    learning = [
        value.clone().requires_grad_() if this == name else value for this, value in zip(names, args, strict=False)
    ]
    with pytest.raises(InputError, match=rf"^{name}: expected a tensor that needs no gradient \(inference only\)"):
        operator(sample)(*learning, **kwargs)
    with torch.no_grad():
        operator(sample)(*learning, **kwargs)


def test_so_is_an_output_that_requires_one() -> None:
    args, kwargs = SAMPLES["gemm_out"](CPU)
    with pytest.raises(InputError, match="^out: expected a tensor that needs no gradient"):
        OPS.gemm_out(*args, out=kwargs["out"].requires_grad_())


CODES = torch.zeros(M, K, dtype=torch.float8_e4m3fn)
REFUSED: dict[str, tuple[str, int | str, Tensor | torch.dtype | None, str]] = {
    "b not FP8": (
        "gemm",
        2,
        torch.zeros(N, K),
        r"b: expected torch.float8_e4m3fn of shape \(N, K\), got torch.float32",
    ),
    "b with a bad K": ("gemm", 2, CODES[:, :24], "b: expected K to be a multiple of 16"),
    "a of another K": ("gemm", 0, CODES[:, :256], r"a: expected K = 272 as in b, got .*\(5, 256\)"),
    "scales_a transposed": ("gemm", 1, torch.zeros(3, M), r"scales_a: expected .*\(5, 3\) = .*, got .*\(3, 5\)"),
    "scales_a in float64": ("gemm", 1, torch.zeros(M, 3, dtype=torch.float64), "scales_a: .* got torch.float64"),
    "scales_b transposed": ("gemm", 3, torch.zeros(3, 2), r"scales_b: expected .*\(2, 3\).* got .*\(3, 2\)"),
    "c of another shape": ("gemm", 4, torch.zeros(M, N + 1), r"c: expected .*\(5, 136\) = \(M, N\), got .*\(5, 137\)"),
    "bias in float16": ("gemm", 5, torch.zeros(N, dtype=torch.float16), "bias: expected .* got torch.float16"),
    "out_dtype in FP8": ("gemm", 6, torch.float8_e4m3fn, "out_dtype: expected one of .*, got torch.float8_e4m3fn"),
    "out of another shape": ("gemm_out", "out", torch.zeros(M, N + 8), r"out: expected .* got .*\(5, 144\)"),
    "weights of two dimensions": ("gemm_grouped", 2, CODES, r"b: expected .* \(G, N, K\), got \(5, 272\)"),
    "scales of one group": (
        "gemm_masked",
        3,
        torch.zeros(2, 3),
        r"scales_b: expected .*\(3, 2, 3\) = .*, got .*\(2, 3\)",
    ),
    "indices in float32": ("gemm_grouped", 4, torch.zeros(M), "indices: expected torch.int32.* got torch.float32"),
    "neither indices nor offsets": ("gemm_grouped_out", 4, None, "expected either indices or offsets, got neither"),
    "offsets of other groups": ("gemm_grouped by offsets", 5, torch.zeros(6, dtype=torch.int32), r"offsets: .*\(6,\)"),
    "grouped out of another shape": ("gemm_grouped_out", "out", torch.zeros(M, N + 8), r"out: expected .*\(5, 144\)"),
    "a without room": ("gemm_masked", 0, CODES, r"a: expected .*\(G, max_m, K\).* got .*\(5, 272\)"),
    "counts of fewer groups": (
        "gemm_masked",
        4,
        torch.zeros(2, dtype=torch.int32),
        r"counts: .*\(3,\) = \(G,\), got .*\(2,\)",
    ),
    "masked out in FP8": ("gemm_masked", 5, torch.float8_e4m3fn, "out_dtype: expected one of .*, got torch.float8"),
    "c of one group": ("gemm_k_grouped", 5, torch.zeros(M, N), r"c: expected .*\(3, 5, 136\), got .*\(5, 136\)"),
    "k_grouped out of another shape": (
        "gemm_k_grouped_out",
        "out",
        torch.zeros(3, M, N + 8),
        r"out: expected .*\(3, 5, 136\), got .*\(3, 5, 144\)",
    ),
    "x in float64": ("quantize_activation", 0, torch.zeros(M, K, dtype=torch.float64), "x: .* got torch.float64"),
    "x with three dimensions": ("quantize_activation", 0, torch.zeros(1, M, K), r"x: expected .*, got .*\(1, 5, 272\)"),
    "x with a bad K": (
        "quantize_activation",
        0,
        torch.zeros(M, 24),
        r"x: expected \(M, K\) with K a positive multiple of 16, got K = 24",
    ),
    "x with two dimensions, and groups": (
        "quantize_activation of groups",
        0,
        torch.zeros(M, K),
        r"x: .*\(G, max_m, K\)",
    ),
    "halves with two dimensions, and groups": ("quantize_silu_mul of groups", 0, torch.zeros(M, 2 * K), r"x: .*, 2K\)"),
    "counts in float32": ("quantize_activation of groups", "counts", torch.zeros(3), "counts: .* got torch.float32"),
    "counts of other groups": (
        "quantize_silu_mul of groups",
        "counts",
        torch.zeros(2, dtype=torch.int32),
        r"counts: expected .*\(3,\) = \(G,\) .*, got .*\(2,\)",
    ),
    "codes of another shape": ("quantize_activation_out", 1, CODES[:4], r"codes: expected .* got .*\(4, 272\)"),
    "scales of another shape": ("quantize_activation_out", 2, torch.zeros(M, 2), r"scales: expected .*\(5, 2\)"),
    "w with a bad K": (
        "quantize_weight",
        0,
        torch.zeros(N, 8),
        r"w: expected \(N, K\) with K a positive multiple of 16, got K = 8",
    ),
    "x with a transpose and a bad K": (
        "quantize_with_transpose",
        0,
        torch.zeros(M, 24),
        r"x: expected \(M, K\) with K a positive multiple of 16, got K = 24",
    ),
    "an odd half": (
        "quantize_silu_mul",
        0,
        torch.zeros(M, 48),
        r"x: expected \(M, 2K\) with K a positive multiple of 16, got K = 24, shape \(5, 48\)",
    ),
    "norm's weight": (
        "quantize_rms_norm",
        1,
        torch.zeros(K + 16),
        r"weight: expected .*\(272,\) = \(K,\) .*, got .*\(288,\)",
    ),
    "residual's dtype": ("quantize_add_rms_norm", 1, torch.zeros(M, K), "residual: expected torch.bfloat16"),
}


@pytest.mark.parametrize(("sample", "place", "bad", "message"), REFUSED.values(), ids=REFUSED)
def test_fake_kernels_refuse_what_cannot_be(sample: str, place: int | str, bad: Any, message: str) -> None:
    """When a graph is traced, not when it first runs."""
    args, kwargs = SAMPLES[sample](CPU)
    arguments: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs, place: bad}
    with FakeTensorMode() as mode:
        fakes = {key: mode.from_tensor(x) if isinstance(x, Tensor) else x for key, x in arguments.items()}
        positional = [fakes[key] for key in range(len(args))]
        with pytest.raises(InputError, match=message):
            operator(sample)(*positional, **{name: fakes[name] for name in kwargs})


def test_a_mutated_output_and_c_in_place_survive_compilation() -> None:
    """A compiler takes an operator for a function of values; what is written must not get lost in that."""
    args, kwargs = SAMPLES["gemm_out"](CPU)

    def accumulate(c: Tensor, out: Tensor) -> Tensor:
        total = c + 1
        OPS.gemm_out(*args[:4], total, *args[5:], out=total)
        OPS.gemm_out(*args[:4], total, *args[5:], out=out)
        return total

    c, eager, compiled = torch.ones(M, N), kwargs["out"], torch.zeros(M, N)
    expected = accumulate(c, eager)
    got = torch.compile(accumulate, fullgraph=True, backend="aot_eager")(c, compiled)
    assert same_bits(got, expected) and same_bits(compiled, eager) and eager.any()
