"""Configs by their labels, whether the choice may fall on them or not: for trying what is no candidate yet."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

from fp8gemm.errors import InputError
from fp8gemm.quoting import quoted
from fp8gemm.tuning.candidates import deepest_config, divided, in_whole_lines
from fp8gemm.tuning.config import Tile, TileConfig, staged_parts, violations
from fp8gemm.tuning.grouped_config import of_groups
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.problem import Problem, StoreKind

_LABEL = re.compile(r"(\d{1,3})x(\d{1,3})(?:-k(\d))?(?:-s(\d{1,2}))?(?:-c(\d)x(\d))?(?:-split(\d))?")
EXPECTED = "a label such as 128x256-s4-c1x1, of which -s4 and -c1x1 may be left out, or 128x128-split2"


def parse_label(text: str) -> str:
    """The label itself.

    Raises:
        InputError: it is none of a tile of the ordinary orientation.
    """
    if _LABEL.fullmatch(text) is None:
        raise InputError(f"expected {EXPECTED}, got {quoted(text)}")
    return text


def labelled_config(label: str, problem: Problem) -> TileConfig:
    """The config of a label for a problem: with so many stages the most waves in flight, of these the most staging
    slots, at least one, and these in whole lines if there is room; without stages as `deepest_config` has it.

    Raises:
        InputError: a kernel cannot be made of it; the message says why.
    """
    found = _LABEL.fullmatch(parse_label(label))
    assert found is not None
    block_m, block_n, shares, stages, cluster_m, cluster_n, split = (int(part or 0) for part in found.groups())
    tile = Tile(block_m, block_n, shares or 1, cluster_m or 1, cluster_n or 1, split or 1)
    as_written = problem.store, problem.output, problem.scaling
    if not stages:
        config = deepest_config(tile, *as_written)
        if config is None:
            raise InputError(f"{label}: expected a tile that fits, of {problem.m}x{problem.n}x{problem.k}")
        return config
    why: list[str] = []
    for in_flight, shallow in product((2, 1), divided(tile, problem.scaling, stages)):
        most = staged_parts(shallow) if problem.store is StoreKind.TMA else 1
        for slots in range(max(most, 1), 0, -1):
            config = replace(shallow, waves_in_flight=in_flight, staging_slots=slots)
            why = violations(config, *as_written)
            if not why:
                return in_whole_lines(config, *as_written)
    raise InputError(f"{label}: expected a config that fits; {'; '.join(why)}")


def labelled_grouped_config(label: str, problem: GroupedProblem) -> TileConfig:
    """The config of a label for groups: as for the product of one, but for what their table takes of shared memory.

    Raises:
        InputError: no kernel of groups can be made of it.
    """
    of_one = labelled_config(label, problem.of_group())
    found = of_groups(problem, of_one)
    says_stages = re.search(r"-s\d", label) is not None
    if found is None or (says_stages and found.stages < of_one.stages):
        what = f"{problem.groups} {problem.grouping.value} groups of {problem.m}x{problem.n}x{problem.k}"
        raise InputError(f"{label}: expected a config that {what} can have")
    return found
