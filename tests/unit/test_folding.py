"""Scales of 32x32 blocks, folded into codes with scales of 128x128: what becomes of codes, scales and products."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fp8gemm
from fp8gemm.products.folding import MOST_ERROR, fold_scales
from fp8gemm.reference import folding
from fp8gemm.scales import Blocks, is_mn_major
from tests.cases import SCALE_DTYPES, fresh_seed
from tests.folding import E4M3, ROWS, SMALL, activations, check_folded, moved, of_folded, values, weight
from tests.numerics import Data
from tests.quantization import round_to_e4m3

ALL_CODES = torch.arange(256, dtype=torch.uint8).view(E4M3)
FINITE = ALL_CODES[~ALL_CODES.float().isnan()]


@pytest.mark.parametrize("shift", range(-2, 24))
def test_every_code_at_every_shift(shift: int) -> None:
    """The second block's codes are rounded once, to nearest even, as by arithmetic in float64."""
    kept = FINITE[FINITE.float().abs() <= 448 * 2.0 ** min(shift, 0)].view(torch.uint8)
    codes = torch.zeros(len(kept), 64, dtype=torch.uint8)
    codes[:, 0], codes[:, 32] = 0x7E, kept  # 448 in the first block, so that its scale stays
    scales = torch.tensor([1.0, 2.0**-shift]).expand(-(-len(kept) // 32), 2)
    folded = fold_scales(codes.view(E4M3), scales, requantize=True)
    assert (folded.scales == 1).all()
    assert torch.equal(of_folded(folded, SMALL), round_to_e4m3(values(codes.view(E4M3), scales, SMALL)))


def test_codes_that_lose_no_bits_keep_their_values() -> None:
    seed = fresh_seed()
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(-15, 16, (2, 300, 432), generator=draw).float().to(E4M3)  # integers: 2^-9 is far
    scales = torch.randint(-5, 6, (2, 10, 14), generator=draw).float().exp2()
    before = codes.view(torch.uint8).clone(), scales.clone()
    folded = fold_scales(codes, scales)
    assert folded.exact and folded.error == 0 and 0 < folded.largest_shift <= 10 and not folded.requantized
    assert torch.equal(of_folded(folded, SMALL), values(codes, scales, SMALL)), f"seed {seed}"
    assert folded.scales.shape == (2, 3, 4) and folded.scales.is_contiguous() and folded.scales.dtype == torch.float32
    assert torch.equal(codes.view(torch.uint8), before[0]) and torch.equal(scales, before[1])
    for group in range(2):
        alone = fold_scales(codes[group], scales[group])
        assert torch.equal(alone.codes.float(), folded.codes[group].float())
        assert torch.equal(alone.scales, folded.scales[group])


@pytest.mark.parametrize("dtype", SCALE_DTYPES)
def test_nothing_is_copied_where_scales_are_alike(dtype: torch.dtype) -> None:
    codes, _ = weight(200, 272, 0, seed=1)
    scales = torch.full(SMALL.counts(200, 272), 2.0**-7).to(dtype)
    folded = fold_scales(codes, scales)
    assert folded.codes is codes and folded.exact and folded.largest_shift == 0
    assert torch.equal(folded.scales, torch.full((2, 3), 2.0**-7))


def test_codes_that_leave_room_stay_where_scales_are_alike() -> None:
    codes = torch.full((64, 64), 3.5).to(E4M3)
    folded = fold_scales(codes, torch.ones(2, 2))
    assert folded.codes is codes and folded.scales.tolist() == [[1.0]]


@pytest.mark.parametrize("most", range(6))
def test_the_error_is_the_one_there_is(most: int) -> None:
    seed = fresh_seed()
    codes, scales = weight(300, 400, most, seed=seed)
    folded = fold_scales(codes, scales)
    assert folded.error == pytest.approx(float(moved(codes, scales, folded, SMALL).max()), rel=1e-5), f"seed {seed}"
    assert folded.largest_shift == most and folded.error <= MOST_ERROR
    # What normal values lose goes as 2^(1.5 shift), because fewer of them are subnormal where the shift is small.
    assert folded.error < 7e-7 * 2.0 ** (1.5 * most) * 1.5, f"seed {seed}"


@pytest.mark.parametrize("scale", [2.0**127, 2.0**-126, 2.0**-127, 0.0, 0.3, -2.0])
@pytest.mark.parametrize("byte", [0, 0x80, 0x7F, 0xFF])
def test_blocks_of_zeros_or_nan_have_no_say(scale: float, byte: int) -> None:
    codes, scales = weight(128, 128, 2, seed=2)
    without = fold_scales(codes, scales.clone().index_put_((torch.tensor(1), torch.tensor(2)), torch.tensor(1.0)))
    codes[32:64, 64:96].view(torch.uint8).fill_(byte)
    scales[1, 2] = scale
    folded = fold_scales(codes, scales)
    assert torch.equal(folded.scales, without.scales)
    assert torch.allclose(folded.codes.float()[32:64, 64:96], codes.float()[32:64, 64:96], 0, 0, equal_nan=True)
    anew = scales * 1.1
    anew[1, 2] = scale
    assert fold_scales(codes, anew, requantize=True).error < 0.07
    nothing = fold_scales(torch.zeros(32, 48).to(E4M3), torch.tensor([[0.0, 2.0**90]]))
    assert nothing.exact and nothing.scales.tolist() == [[1.0]]


def test_codes_that_leave_room_are_multiplied() -> None:
    """The larger scale's block has codes up to 28 alone: they grow by 2^4, and the other block loses nothing."""
    codes = torch.zeros(32, 64)
    codes[0, 0], codes[0, 32], codes[1, 32] = 28.0, 448.0, 2.0**-9
    folded = fold_scales(codes.to(E4M3), torch.tensor([[16.0, 1.0]]))
    assert folded.exact and folded.largest_shift == 0 and folded.scales.tolist() == [[1.0]]
    assert folded.codes.float()[0, 0] == 448 and folded.codes.float()[1, 32] == 2.0**-9
    codes[0, 0] = 30.0  # a code more, and it would be past 448
    folded = fold_scales(codes.to(E4M3), torch.tensor([[16.0, 1.0]]))
    assert folded.largest_shift == 1 and folded.scales.tolist() == [[2.0]] and not folded.exact


def test_nan_codes_stay_where_they_are() -> None:
    codes, scales = weight(100, 160, 3, seed=3)
    for place, byte in (((5, 7), 0x7F), ((99, 159), 0xFF)):
        codes.view(torch.uint8)[place] = byte
    for requantize, of_scales in ((False, scales), (True, scales * 1.1)):
        folded = fold_scales(codes, of_scales, requantize=requantize)
        assert torch.equal(folded.codes.float().isnan(), codes.float().isnan())
        assert folded.scales.isfinite().all() and folded.error < 0.07
        assert folded.error == pytest.approx(float(moved(codes, of_scales, folded, SMALL).max()), rel=1e-4)


@pytest.mark.parametrize("m", [0, 1, 5, 130])
def test_rows_of_activations(m: int) -> None:
    draw = torch.Generator().manual_seed(m)
    codes = torch.randint(-15, 16, (m, 272), generator=draw).float().to(E4M3)
    scales = torch.randint(-3, 4, (m, 9), generator=draw).float().exp2()
    folded = fold_scales(codes, scales, block_size=(1, 32))
    assert folded.exact and folded.scales.shape == (m, 3) and (not m or is_mn_major(folded.scales))
    assert torch.equal(of_folded(folded, ROWS), values(codes, scales, ROWS))
    if m:
        of_groups = fold_scales(codes[None], scales[None], block_size=(1, 32))
        assert (
            torch.equal(of_groups.scales[0], folded.scales) and of_groups.scales[0].stride() == folded.scales.stride()
        )


def test_the_default_dtype_means_nothing() -> None:
    codes, scales = weight(70, 144, 3, seed=7)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = [fold_scales(codes, s, requantize=True) for s in (scales, scales * 1.1)]
        found.append(fold_scales(codes[:0], scales[:0]))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {each.scales.dtype for each in found} == {torch.float32} and found[2].scales.shape == (0, 2)
    assert found[0].error == fold_scales(codes, scales).error


@pytest.mark.parametrize("blocks", list(itertools.product((1, 2, 16, 128), (8, 64, 128))), ids=str)
def test_other_blocks(blocks: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(7)
    codes = torch.randint(-15, 16, (200, 272), generator=draw).float().to(E4M3)
    scales = torch.randint(-3, 4, Blocks(*blocks).counts(200, 272), generator=draw).float().exp2()
    folded = fold_scales(codes, scales, block_size=blocks)
    assert torch.equal(of_folded(folded, Blocks(*blocks)), values(codes, scales, Blocks(*blocks)))


def test_codes_of_any_strides_and_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = weight(400, 272, 5, seed=8)
    whole = fold_scales(codes, scales)
    wide = torch.zeros(400, 300, dtype=torch.uint8).view(E4M3)
    wide[:, :272].copy_(codes)
    monkeypatch.setattr(folding, "_BAND", 1)  # 128 rows at once
    for same in (wide[:, :272], codes.t().contiguous().t()):
        folded = fold_scales(same, scales.t().contiguous().t())
        assert torch.equal(folded.codes.float(), whole.codes.float()) and torch.equal(folded.scales, whole.scales)
        assert folded.error == whole.error
    anew = fold_scales(codes, scales * 1.1, requantize=True)
    monkeypatch.undo()
    assert torch.equal(anew.codes.float(), fold_scales(codes, scales * 1.1, requantize=True).codes.float())


def test_what_cannot_be_folded_is_quantised_anew_where_that_is_asked_for() -> None:
    codes, scales = weight(200, 300, 2, seed=9)
    scales *= 1 + torch.rand(scales.shape, generator=torch.Generator().manual_seed(9))
    scales[2, 2] = 0.0
    folded = fold_scales(codes, scales, requantize=True)
    assert folded.requantized and 0.02 < folded.error < 0.07 and not folded.exact
    of_live = moved(codes, scales, folded, SMALL)
    assert folded.error == pytest.approx(float(of_live.max()), rel=1e-4)
    same = fp8gemm.reference.quantize_blocks(values(codes, scales, SMALL).float())
    assert torch.equal(folded.codes.float(), same[0].float()) and torch.equal(folded.scales, same[1])


@given(
    st.integers(1, 200),
    st.integers(1, 300),
    st.sampled_from([SMALL, ROWS, Blocks(64, 16)]),
    st.integers(0, 12),
    st.integers(0, 2**31 - 1),
)
@settings(max_examples=80, deadline=None)
def test_properties(n: int, k: int, blocks: Blocks, most: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (n, k), generator=draw).to(torch.uint8).view(E4M3)
    scales = torch.randint(-most, 1, blocks.counts(n, k), generator=draw).float().exp2()
    folded = fold_scales(codes, scales, block_size=(blocks.rows, blocks.columns), requantize=True)
    assert folding.are_powers(folded.scales).all() and not folded.requantized
    before, after = values(codes, scales, blocks), of_folded(folded, blocks)
    assert torch.equal(before.isnan(), after.isnan())
    unit = values(torch.ones(n, k).to(E4M3), folded.scales, blocks.wide)
    assert ((after - before).nan_to_num().abs() <= 2.0**-10 * unit).all()
    fits = round_to_e4m3(before / unit) * unit == before
    assert torch.equal(after[fits], before[fits])
    assert 0 <= folded.largest_shift <= most
    assert folded.error == pytest.approx(float(moved(codes, scales, folded, blocks).max()), rel=1e-4, abs=1e-12)
    assert folded.exact == bool((after == before)[~before.isnan()].all())


# Products.

DATA: dict[str, Data] = {"normal": "signed", "channels": "signed", "positive": "positive"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "most"), [(kind, most) for kind in DATA for most in (1, 3, 5 if kind == "channels" else 6)]
)
def test_products_are_within_the_gates_of_what_was_given(kind: str, most: int, dtype: torch.dtype) -> None:
    """Also where the activations of the smallest blocks' channels are so large that these alone count: for scales 2^5
    apart, which are always folded. Of 2^6 one output in 600 000 is past `element` there (docs/numerics.md)."""
    seed = fresh_seed()
    b = weight(300, 528, most, seed=seed)
    b[1][:, 5] = 2.0**-most  # a column of blocks that all lose most; of those of 2^6 few are past the bound
    draw = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(70, 528, generator=draw)
    if kind == "channels":
        x[:, 160:192] *= 2.0**12
    if kind == "positive":
        x, b = x.abs(), (b[0].float().abs().to(E4M3), b[1])
    a = fp8gemm.quantize_activation(x)
    folded = fold_scales(*b, requantize=most > 5)
    out = fp8gemm.gemm(*a, folded.codes, folded.scales, out_dtype=torch.float32).to(dtype)
    report = check_folded(out, a, b, (folded.codes, folded.scales), data=DATA[kind])
    report.raise_if_failed(f"seed {seed}, {folded}")


def test_the_gates_see_a_shift_that_was_forgotten() -> None:
    a, b = activations(70, 256, seed=2), weight(256, 256, 4, seed=1)
    folded = fold_scales(*b)
    codes = folded.codes.clone()
    codes.view(torch.uint8)[:32, 32:64] = b[0].view(torch.uint8)[:32, 32:64]
    assert not torch.equal(codes.float(), folded.codes.float())
    right = folded.codes, folded.scales
    assert not check_folded(fp8gemm.gemm(*a, codes, folded.scales), a, b, right).passed
    assert check_folded(fp8gemm.gemm(*a, *right), a, b, right).passed
    # And one that loses too much for float32 outputs, which the bound refuses.
    past = weight(256, 256, 10, seed=1)
    past[1][:, 1] = 2.0**-10
    x = torch.randn(70, 256, generator=torch.Generator().manual_seed(2))
    x[:, 32:64] *= 2.0**14
    of_channels = fp8gemm.quantize_activation(x)
    anyway = fold_scales(*past, requantize=True)
    multiplied = anyway.codes, anyway.scales
    out = fp8gemm.gemm(*of_channels, *multiplied, out_dtype=torch.float32)
    assert anyway.error > MOST_ERROR and "rms tensor" in check_folded(out, of_channels, past, multiplied).failed
