"""What folding scales of 32x32 blocks costs, from `scripts/fold_error.py --json`."""

from __future__ import annotations

from typing import Any

from result_tables.markdown import Result, small, table


def fold_error(result: Result) -> list[str]:
    """Errors by how far scales differ, and of the other ways."""
    limit = result["most_error"]
    heads = ["scales differ by", "a block, median", "a block, largest", "product", "product of small blocks", "unasked"]
    rows = [_row(f"2^{row['shift']}", row, "yes" if row["block"] <= limit else "no") for row in result["rows"]]
    return [
        f"{result['date']}, torch {result['torch']}, commit {result['commit']}, seed {result['seed']}. Normal values, "
        f"{result['n']} x {result['k']}, every other 32 columns of them in blocks with the smaller scale; relative RMS "
        f"errors, of those blocks and of products with {result['m']} rows.",
        "",
        *table(heads, [*rows, _row("no powers of two, quantised anew", result["anew"], "no")]),
        "",
        f"Rounding a product to bfloat16 moves it by {small(result['bfloat16'])}; the gate of float32 ones is 3e-4.",
    ]


def _row(name: str, row: dict[str, Any], unasked: str) -> list[str]:
    return [name, *(small(row[field]) for field in ("median", "block", "product", "product_of_small")), unasked]
