"""DeepGEMM's names: what there is, with which arguments and defaults, and the helpers, on the CPU."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator

import pytest
import torch

import fp8gemm.integrations.deep_gemm as deep_gemm
from fp8gemm import settings
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.integrations.deep_gemm import runtime

_RECIPES = "recipe=None, recipe_a=None, recipe_b=None"
_K_GROUPED = (
    "a, b, d, ks_cpu, grouped_layout, c=None, recipe=(1, 1, 128), compiled_dims='mn', use_psum_layout=False, "
    "epilogue=None"
)
_DENSE = f"a, b, d, c=None, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False, alpha=None, epilogue=None"
_CONTIGUOUS = (
    f"a, b, d, grouped_layout=None, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False, use_psum_layout=False, "
    f"ensure_zero_padding=True"
)

# Those of DeepGEMM 2.8. Its grouped_layout has no default; here it may be called m_indices, as it was before. Keyword
# arguments behind a star, and num_groups, are those of other versions.
SIGNATURES = {
    "fp8_gemm_nt": _DENSE,
    "fp8_gemm_nn": _DENSE,
    "fp8_gemm_tn": _DENSE.replace("nk", "mn"),
    "fp8_gemm_tt": _DENSE.replace("nk", "mn"),
    "m_grouped_fp8_gemm_nt_contiguous": (
        f"{_CONTIGUOUS}, expected_m_for_psum_layout=None, epilogue=None, *, m_indices=None"
    ),
    "m_grouped_fp8_gemm_nn_contiguous": f"{_CONTIGUOUS}, epilogue=None, *, m_indices=None",
    "m_grouped_fp8_gemm_nt_masked": (
        f"a, b, d, masked_m, expected_m, {_RECIPES}, compiled_dims='nk', disable_ue8m0_cast=False, epilogue=None, "
        f"*, enable_overlap=False, max_block_n=256, signal=None"
    ),
    "k_grouped_fp8_gemm_nt_contiguous": _K_GROUPED,
    "k_grouped_fp8_gemm_tn_contiguous": _K_GROUPED,
    "transform_sf_into_required_layout": (
        "sf, mn, k, recipe, num_groups=None, is_sfa=None, disable_ue8m0_cast=False, psum_layout=None"
    ),
    "get_tma_aligned_size": "x, element_size",
    "get_mn_major_tma_aligned_tensor": "sf",
    "get_mk_alignment_for_contiguous_layout": "",
    "set_mk_alignment_for_contiguous_layout": "new_value",
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m=None, num_groups=None",
    "get_num_sms": "",
    "set_num_sms": "new_num_sms",
    "get_tc_util": "",
    "set_tc_util": "new_tc_util",
    "get_pdl": "",
    "set_pdl": "new_enable_pdl",
    "use_deterministic_algorithms": "enabled",
    "fp8_einsum": "expr, a, b, d, c=None, recipe=(1, 128, 128), epilogue=None, use_128x4_sfd_layout=False",
    "set_ignore_compile_dims": "new_value",
    "set_block_size_multiple_of": "new_value",
    "per_token_cast_to_fp8": "x, use_ue8m0, gran_k=128, use_packed_ue8m0=False",
    "per_channel_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "per_block_cast_to_fp8": "x, use_ue8m0, gran_k=128",
    "calc_diff": "x, y",
    "cublaslt_gemm_nt": "a, b, d, c=None",
    "ceil_div": "x, y",
    "align": "x, y",
    "gemm_fp8_fp8_bf16_nt": "lhs, rhs, out",
    "wgrad_gemm_fp8_fp8_fp32_nt": "lhs, rhs, out",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous": "lhs, rhs, out, m_indices",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked": "lhs, rhs, out, masked_m, expected_m",
}

ALIASES = {
    "fp8_fp4_gemm_nt": "fp8_gemm_nt",
    "fp8_fp4_gemm_nn": "fp8_gemm_nn",
    "fp8_fp4_gemm_tn": "fp8_gemm_tn",
    "fp8_fp4_gemm_tt": "fp8_gemm_tt",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nn_contiguous": "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "get_m_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
    "get_k_alignment_for_contiguous_layout": "get_mk_alignment_for_contiguous_layout",
    "get_col_major_tma_aligned_tensor": "get_mn_major_tma_aligned_tensor",
}


@pytest.fixture(autouse=True)
def own_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What one test sets for the process no other test sees."""
    for name in ("_num_sms", "_pdl", "_tc_util", "_mk_alignment", "_made"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    with settings.scope(num_sms=132):  # as many as an H200 has, so that no GPU is asked
        yield


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_their_order_and_their_defaults(name: str) -> None:
    signature = inspect.signature(getattr(deep_gemm, name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


@pytest.mark.parametrize("name", ALIASES)
def test_other_names_of_the_same_functions(name: str) -> None:
    assert getattr(deep_gemm, name) is getattr(deep_gemm, ALIASES[name])


def test_every_public_name_is_there_and_tested() -> None:
    others = {"RefusedError", "AbsentError", "install", "uninstall", "answers", "ceil_to_ue8m0", "testing", "utils"}
    assert sorted(deep_gemm.__all__) == sorted({*SIGNATURES, *ALIASES, *others})
    assert all(hasattr(deep_gemm, name) for name in deep_gemm.__all__)
    assert not hasattr(deep_gemm, "bf16_gemm_nt")  # callers look in this way for what there is


@pytest.mark.parametrize(("x", "y", "expected"), [(0, 128, 0), (1, 128, 1), (128, 128, 1), (129, 128, 2)])
def test_ceil_div_and_align(x: int, y: int, expected: int) -> None:
    assert deep_gemm.ceil_div(x, y) == expected and deep_gemm.align(x, y) == expected * y


def test_sizes_that_tma_can_read() -> None:
    assert [deep_gemm.get_tma_aligned_size(x, 4) for x in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert [deep_gemm.get_tma_aligned_size(x, 1) for x in (1, 16, 17)] == [16, 16, 32]
    with pytest.raises(RuntimeError, match="element_size: expected a divisor of 16, got 3"):
        deep_gemm.get_tma_aligned_size(1, 3)


@pytest.mark.parametrize("shape", [(5, 3), (8, 1), (1, 4), (2, 5, 3), (3, 4, 2), (1, 6, 2)])
def test_scales_become_mn_major_once(shape: tuple[int, ...]) -> None:
    scales = torch.rand(shape)
    for given in (scales, scales.mT.contiguous().mT):
        moved = deep_gemm.get_mn_major_tma_aligned_tensor(given)
        pitch = deep_gemm.align(shape[-2], 4)
        assert moved.stride() == (shape[-1] * pitch, 1, pitch)[-len(shape) :] and torch.equal(moved, scales)
        assert deep_gemm.get_mn_major_tma_aligned_tensor(moved) is moved


def test_scales_in_the_layout_that_a_product_reads() -> None:
    transform = deep_gemm.transform_sf_into_required_layout
    of_rows, of_blocks = torch.rand(5, 3), torch.rand(2, 3)
    for moved in (
        transform(of_rows, 5, 384, (1, 128, 128), is_sfa=True),
        transform(of_rows, 5, 300, (1, 1, 128), None, False, True),
        transform(sf=of_rows, mn=5, k=384, recipe=(1, 128)),
    ):
        assert moved.stride() == (1, 8) and torch.equal(moved, of_rows)
    assert transform(of_blocks, 200, 384, (1, 128, 128), is_sfa=False) is of_blocks
    assert transform(of_blocks, 129, 257, recipe=(128, 128)) is of_blocks
    groups = torch.rand(4, 2, 3)
    assert transform(groups, 200, 384, (128, 128), num_groups=4) is groups
    moved = transform(groups, 2, 384, (1, 128), num_groups=4)
    assert moved.stride() == (12, 1, 4) and torch.equal(moved, groups)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.rand(5, 3), 6, 384, (1, 128)), InputError),
        ((torch.rand(5, 3), 5, 385, (1, 128)), InputError),
        ((torch.rand(5, 3), 5, 384, (1, 128), 1), InputError),
        ((torch.rand(5, 3), 5, 384, (1, 128, 128)), InputError),
        ((torch.rand(5, 3), 5, 384, (1, 128), None, True), InputError),
        ((torch.rand(2, 6)[:, ::2], 200, 384, (128, 128)), InputError),
        ((torch.rand(5, 12), 5, 384, (1, 32)), UnsupportedError),
        ((torch.rand(5, 3).to(torch.int32), 5, 384, (1, 128)), UnsupportedError),
    ],
)
def test_scales_that_are_refused(arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        deep_gemm.transform_sf_into_required_layout(*arguments)
    assert isinstance(raised.value, RuntimeError)


def test_packed_scales_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="expected float32 scales"):
        deep_gemm.utils.get_mn_major_tma_aligned_packed_ue8m0_tensor(torch.rand(4, 4))
    with pytest.raises(UnsupportedError, match="expected float32 scales"):
        deep_gemm.utils.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(torch.rand(4, 4), None, [], 128, 128)
    with pytest.raises(UnsupportedError, match="use_packed_ue8m0: expected False"):
        deep_gemm.per_token_cast_to_fp8(torch.rand(4, 512), True, use_packed_ue8m0=True)
    for function in (deep_gemm.utils.per_token_cast_to_fp4, deep_gemm.utils.transpose_packed_fp4):
        with pytest.raises(UnsupportedError, match="expected an SM100 GPU"):
            function(torch.rand(4, 512))


@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_casts_keep_values_within_half_a_code(ue8m0: bool, dtype: torch.dtype) -> None:
    x = (torch.randn(256, 300) * torch.rand(256, 1)).to(dtype)
    x[3, 128:256] = 0
    columns = torch.arange(300) // 128
    rows = torch.arange(256) // 128
    for codes, scales, spread in (
        (*deep_gemm.per_token_cast_to_fp8(x, ue8m0), lambda scales: scales[:, columns]),
        (*deep_gemm.per_block_cast_to_fp8(x, ue8m0), lambda scales: scales[rows][:, columns]),
        (*deep_gemm.per_channel_cast_to_fp8(x, ue8m0), lambda scales: scales[rows]),
    ):
        each = spread(scales)
        assert codes.dtype == torch.float8_e4m3fn and codes.shape == x.shape and codes.is_contiguous()
        assert scales.dtype == torch.float32 and scales.is_contiguous() and each.shape == x.shape
        error = (codes.float() * each - x.float()).abs()
        assert bool((error <= x.float().abs() / 16 * 1.001 + each * 2**-10 * 1.001).all())
        assert bool((codes.float().abs() <= 448).all())
        if ue8m0:
            assert bool((torch.frexp(scales).mantissa == 0.5).all())
    token_scales = deep_gemm.per_token_cast_to_fp8(x, False)[1]
    assert token_scales[3, 1] == torch.tensor(1e-4) / 448
    assert torch.equal(token_scales[:, 0], x[:, :128].float().abs().amax(1).clamp(min=1e-4) / 448)


def test_powers_of_two() -> None:
    found = deep_gemm.ceil_to_ue8m0(torch.tensor([1.0, 1.01, -3.0, 0.5, 2.0**-126, 2.0**-130]))
    assert found.tolist() == [1.0, 2.0, 4.0, 0.5, 2.0**-126, 2.0**-126]


@pytest.mark.parametrize("cast", ["per_token_cast_to_fp8", "per_block_cast_to_fp8", "per_channel_cast_to_fp8"])
def test_casts_take_matrices(cast: str) -> None:
    with pytest.raises(RuntimeError, match="x: expected 2 dimensions"):
        getattr(deep_gemm, cast)(torch.rand(2, 128, 128), False)
    if cast == "per_channel_cast_to_fp8":
        with pytest.raises(RuntimeError, match="x: expected rows in a multiple of 128"):
            deep_gemm.per_channel_cast_to_fp8(torch.rand(130, 128), False)


def test_calc_diff_is_one_minus_the_similarity() -> None:
    x, y = torch.randn(50, 70), torch.randn(50, 70)
    expected = 1 - 2 * (x.double() * y.double()).sum() / (x.double() ** 2 + y.double() ** 2).sum()
    assert deep_gemm.calc_diff(x, y).item() == pytest.approx(expected.item(), rel=1e-12)
    assert deep_gemm.calc_diff(x, x) == 0 and deep_gemm.calc_diff(x * 0, x * 0) == 0
    assert deep_gemm.calc_diff(x, -x) == pytest.approx(2) and math.isnan(deep_gemm.calc_diff(x, x * math.nan))
    assert f"{deep_gemm.calc_diff(x, x + 1):.5f}"


def test_a_product_without_scales() -> None:
    a, b, c = torch.randn(4, 16).bfloat16(), torch.randn(8, 16).bfloat16(), torch.randn(4, 8).bfloat16()
    d = torch.full((4, 8), math.nan, dtype=torch.bfloat16)
    deep_gemm.cublaslt_gemm_nt(a, b, d)
    assert torch.equal(d, a @ b.T)
    expected = c + d
    deep_gemm.cublaslt_gemm_nt(a, b, c, c=c)
    assert torch.equal(c, expected)


def test_decorators_of_tests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DG_SOME", "1")
    found: list[str | None] = []
    for condition in (True, False):
        deep_gemm.testing.ignore_env("DG_SOME", lambda held=condition: held)(
            lambda: found.append(os.environ.get("DG_SOME"))
        )()
        deep_gemm.testing.test_filter(lambda held=condition: held)(lambda: found.append("ran"))()
    assert found == [None, "ran", "1"] and os.environ["DG_SOME"] == "1"
    assert "does not hold" in capsys.readouterr().out


def test_count_bytes() -> None:
    x = torch.rand(3, 4)
    assert deep_gemm.testing.count_bytes(x, (x, x.to(torch.float8_e4m3fn)), None, [x.bfloat16()]) == 48 + 48 + 12 + 24


def test_process_wide_values() -> None:
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    assert deep_gemm.get_m_alignment_for_contiguous_layout() == 64
    for expected in ((), (20,), (20, 8)):
        assert deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(*expected) == 128
    assert deep_gemm.get_tc_util() == 100
    deep_gemm.set_tc_util(40)
    assert deep_gemm.get_tc_util() == 40
    deep_gemm.set_ignore_compile_dims(True)
    deep_gemm.use_deterministic_algorithms(True)
    deep_gemm.set_block_size_multiple_of((16, 32))
    for function, wrong in (
        (deep_gemm.set_mk_alignment_for_contiguous_layout, 0),
        (deep_gemm.set_tc_util, 101),
        (deep_gemm.set_num_sms, -1),
    ):
        with pytest.raises(RuntimeError, match="expected"):
            function(wrong)
