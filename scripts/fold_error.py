"""What folding the scales of 32x32 blocks costs, by how far those of a 128x128 block differ. Needs no GPU.

    python scripts/fold_error.py --json docs/results/fold-error.json

Every other block of a weight of normal values has a scale 2^shift below the others', and is folded whatever that costs
(`fp8gemm.fold_scales`). Products are exact sums of the codes, of activations whose codes are exact, so that nothing but
folding moves them: of rows to which all columns count alike, and of rows to which the columns of small blocks alone do.
Beside it stands the same weight with scales that are no powers of two, quantised anew, and what rounding an output to
bfloat16 moves it by.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8gemm.cli.exits import Exit  # noqa: E402
from fp8gemm.cli.output import add_json, tell, tell_json  # noqa: E402
from fp8gemm.lab.provenance import provenance  # noqa: E402
from fp8gemm.products.folding import MOST_ERROR, Folded, fold_scales  # noqa: E402
from fp8gemm.reference import quantize_small_blocks  # noqa: E402
from fp8gemm.scales import Blocks  # noqa: E402

SHIFTS = range(13)
N, K, M = 512, 1024, 64
_SMALL = Blocks(32, 32)


def measure(seed: int) -> dict[str, Any]:
    """Each shift's errors, and those of the other ways."""
    draw = torch.Generator().manual_seed(seed)
    codes, _ = quantize_small_blocks(torch.randn(N, K, generator=draw), _SMALL)
    x = torch.randn(M, K, generator=draw).double()
    scales = torch.ones(_SMALL.counts(N, K))
    rows = []
    for shift in SHIFTS:
        scales[:, 1::2] = 2.0**-shift  # whole columns of blocks, so that there are channels of small ones alone
        rows.append({"shift": shift, **errors(codes, scales, x)})
    anew = 1 + torch.rand(scales.shape, generator=draw)
    product = x @ values(codes, torch.ones_like(scales), _SMALL).T
    rounded = float((product.bfloat16().double() - product).norm() / product.norm())
    return {"rows": rows, "anew": errors(codes, anew, x), "bfloat16": rounded}


def errors(codes: Tensor, scales: Tensor, x: Tensor) -> dict[str, Any]:
    """Of blocks, and of products with ``x`` and with its columns of every other block alone, all relative."""
    folded = fold_scales(codes, scales, requantize=True)
    before, after = values(codes, scales, _SMALL), of_folded(folded)
    moved, size = (blocks_norms(each) for each in (after - before, before))
    alone = x.where((torch.arange(K) // 32 % 2 == 1), 0.0)
    products = [float((each @ (after - before).T).norm() / (each @ before.T).norm()) for each in (x, alone)]
    named = dict(zip(("product", "product_of_small"), products, strict=True))
    # NOTE: of the blocks that lose, which are half of them.
    return {"block": folded.error, "median": float((moved / size)[:, 1::2].median()), **named}


def values(codes: Tensor, scales: Tensor, blocks: Blocks) -> Tensor:
    """What codes stand for, in float64."""
    return codes.double() * scales.double().repeat_interleave(blocks.rows, 0).repeat_interleave(blocks.columns, 1)


def of_folded(folded: Folded) -> Tensor:
    """The same of folded ones."""
    return values(folded.codes, folded.scales, _SMALL.wide)


def blocks_norms(x: Tensor) -> Tensor:
    """Of each 32x32 block."""
    rows, columns = x.shape
    return x.reshape(rows // 32, 32, columns // 32, 32).square().sum(dim=(1, 3)).sqrt()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1, help="of all values (default: 1)")
    add_json(parser)
    options = parser.parse_args(arguments)
    heading = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, **provenance()}
    sizes = {"m": M, "n": N, "k": K, "seed": options.seed, "most_error": MOST_ERROR}
    result = {**heading, **sizes, **measure(options.seed)}
    for row in result["rows"]:
        tell(options, f"2^{row['shift']:<3} {row['block']:.2e} {row['product']:.2e} {row['product_of_small']:.2e}")
    tell_json(options, result)
    return Exit.DONE


if __name__ == "__main__":
    raise SystemExit(main())
