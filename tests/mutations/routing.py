"""Faults of routing: whose row a token's is, what is written there, and what is added up. Those that are no races are
caught without a GPU, by kernels that run on the host."""

from __future__ import annotations

from tests.mutations.mutant import Edit, Mutant, race

_ROUTE, _TO_ROWS, _AT_ONCE, _COPY, _UNPERMUTE = (
    f"kernels/{name}.cuh"
    for name in ("route_tokens", "quantize_to_rows", "route_and_quantize", "copy_to_rows", "unpermute")
)
_ON_HOST, _ON_GPU = (f"tests/{path}.py::test_" for path in ("jit/test_routing_emulated", "gpu/test_routing_kernels"))
_WAIT = "        ptx::wait_for_previous_grids();\n"
_JUST_BEFORE, _AT_ONCE_JUST_BEFORE = (
    (f"{_ON_GPU}what_was_written_just_before_is_what_is_read[{tokens}]",) for tokens in (64, 8)
)

_PLACES = tuple(
    Mutant(name, what, (Edit(header, old, new),), (_ON_HOST + test,), gpu=False, sample=sample)
    for name, what, header, old, new, test, sample in (
        (
            "route-ranks-count-lanes-behind",
            "a lane's rank counts the lanes behind it that have its expert, not those before",
            _ROUTE,
            "same & ((1u << lane_) - 1)",
            "same & ~((2u << lane_) - 1)",
            "all_tokens_to_one_expert[4]",
            "route_tokens",
        ),
        (
            "route-chunks-before-forgotten",
            "rows of a chunk begin where those of the first do",
            _ROUTE,
            "chunk < blockIdx.x ? of_chunk : 0",
            "0",
            "all_tokens_to_one_expert[4]",
            "route_tokens",
        ),
        (
            "route-other-ranks-kept",
            "rows of no group count as kept, and are added",
            _ROUTE,
            "group_[i] < params_.groups ? 1 : 0",
            "1",
            "all_tokens_to_one_expert[-1]",
            "route_tokens",
        ),
        (
            "quantised-to-rows-of-no-group",
            "rows that nobody reads are written too",
            _TO_ROWS,
            "place.inside && row < kept_rows",
            "place.inside",
            "tokens_may_be_any_pitch_apart_and_nothing_but_them_is_read",
            "quantize_to_rows",
        ),
        (
            "routed-at-once-by-ids-behind",
            "where few tokens are routed and quantised at once, an equal id that comes later counts too",
            _AT_ONCE,
            "group_[step] == group && is_earlier",
            "group_[step] == group",
            "at_once_all_tokens_to_one_expert[4]",
            "route_and_quantize",
        ),
        (
            "copied-to-rows-of-no-group",
            "rows that nobody reads are written by copies too",
            _COPY,
            "inside && row < kept_rows",
            "inside",
            "codes_and_scales_are_copied[7-3-16]",
            "copy_to_rows",
        ),
        (
            "sum-of-what-was-not-kept",
            "rows of no group are added, whatever they hold",
            _UNPERMUTE,
            "params.kept[place] != 0",
            "true",
            "rows_of_sums_may_be_any_pitch_apart",
            "unpermute",
        ),
    )
)

_RACES = (
    race(
        "routed-before-ids-are-written",
        "ids are read without waiting for the grid that writes them",
        Edit(
            _ROUTE,
            f"{_WAIT}        chunk.count();\n        chunk.find_begins();",
            "        chunk.count();\n        chunk.find_begins();",
        ),
        tests=_JUST_BEFORE,
        sample="route_tokens",
        may_survive="ids come out of a copy of PyTorch's, behind which no kernel starts early",
    ),
    race(
        "quantised-to-rows-before-they-are-known",
        "tokens and their rows are read without waiting for the grid that finds these",
        Edit(_TO_ROWS, f"{_WAIT}        if (place.token", "        if (place.token"),
        tests=_JUST_BEFORE,
        sample="quantize_to_rows",
    ),
    race(
        "quantised-at-once-before-tokens-are-written",
        "few tokens are read without waiting for the grid that writes them",
        Edit(_AT_ONCE, f"{_WAIT}        if (place.token", "        if (place.token"),
        tests=_AT_ONCE_JUST_BEFORE,
        sample="route_and_quantize",
    ),
    race(
        "summed-before-products-are-there",
        "rows are summed without waiting for the product that writes them",
        Edit(_UNPERMUTE, f"{_WAIT}        if (token", "        if (token"),
        tests=_JUST_BEFORE,
        sample="unpermute",
    ),
    race(
        "route-counts-before-lanes-have-read",
        "the last lane of an expert counts for all while others have yet to read the count before",
        Edit(_ROUTE, "                __syncwarp();\n                if (group_[i]", "                if (group_[i]"),
        tests=(
            f"{_ON_GPU}equal_ids_give_equal_rows_every_time",
            f"{_ON_GPU}all_to_one_expert_and_chunks_that_are_full",
        ),
        sample="route_tokens",
        may_survive="lanes of a warp run together wherever the compiler lets them",
    ),
)

MUTANTS = _PLACES + _RACES
