"""What the check of groups in device memory says of ranges: what they are multiples of, and where ends alone begin."""

from __future__ import annotations

import pytest
import torch

from fp8gemm.checks.group_values import check_columns, check_rows
from fp8gemm.errors import InputError


@pytest.mark.parametrize("step", [1, 128])
def test_ranges_say_what_they_must_be_multiples_of(step: int) -> None:
    offsets = torch.tensor([0, 128, 512])
    said = r"offsets: expected 0 <= begin <= end <= 256" + (", multiples of 128," if step == 128 else "")
    with pytest.raises(InputError, match=f"^{said} got 128 to 512 for group 1$"):
        check_columns(256, 2, offsets) if step == 128 else check_rows(256, 2, None, offsets)


def test_ends_alone_begin_where_the_group_before_ends() -> None:
    check_columns(256, 2, torch.tensor([128, 256]))
    with pytest.raises(InputError, match="got 0 to 64 for group 0"):
        check_columns(256, 2, torch.tensor([64, 256]))
