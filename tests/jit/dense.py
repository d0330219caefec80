"""Compiled dense kernels: their instructions, and what code their configs are meant to have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fp8gemm import settings
from fp8gemm.jit.parallel import build_many
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.tuning.candidates import candidate_configs, divides_last_round
from fp8gemm.tuning.config import TileConfig
from fp8gemm.tuning.problem import Addend, OutputType, Problem, Scaling, StoreKind
from tests.jit.sass import Instructions, find, instructions_of


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel and its instructions, opcode first, in the order of the listing."""

    label: str
    config: TileConfig
    problem: Problem
    instructions: Instructions

    def find(self, pattern: str) -> list[str]:
        """The instructions whose opcode starts as the pattern says."""
        return find(self.instructions, pattern)

    @property
    def waves(self) -> int:
        """Of one warpgroup and one of its K blocks."""
        rows = self.config.block_m // self.config.warpgroups_m
        return rows // 64 * (self.config.block_n // self.config.warpgroups_n // self.config.wave_cols)

    @property
    def loops(self) -> int:
        """Copies of the main loop: with one wave in flight, one for each place of a border or two."""
        if self.config.waves_in_flight > 1 or self.problem.scaling is Scaling.ROW:
            return 1
        return self.places // 2 if self.are_for_two else min(self.places, 4)

    @property
    def places(self) -> int:
        """Where a border may lie in a warpgroup's columns."""
        return 128 // math.gcd(self.config.block_n // self.config.warpgroups_n, 128)

    @property
    def are_for_two(self) -> bool:
        """Whether a copy of the main loop is for two borders."""
        return self.config.wave_cols >= 160 and self.places > 1 and self.stores_sums_alone

    @property
    def k_blocks(self) -> int:
        """Of one warpgroup."""
        return -(-self.problem.k // 128 // (self.config.warpgroups_k * self.config.split_k))

    @property
    def pieces(self) -> list[int]:
        """K blocks of each piece of straight code: the chunks, in each copy of the main loop."""
        if self.config.waves_in_flight > 1:
            are_wide = self.waves == 1 and self.config.wave_cols >= 128 and self.config.warpgroups > 1
            has_long_steps = are_wide and self.problem.scaling is Scaling.ROW
            long, short = (6, 2) if has_long_steps else (4, 2) if self.waves > 1 else (8, 4)
            if self.config.stages == long and self.k_blocks % long == 0 and not has_long_steps:
                return [long]  # a turn of the ring
            return [long, short] if long <= self.k_blocks else [min(short, self.k_blocks)]
        of_k = self.k_blocks if self.stores_sums_alone else -(-self.k_blocks // 2)
        has_copies = self.loops > 1 and not (self.are_for_two and self.k_blocks > 96)
        is_long_code = has_copies or divides_last_round(self.problem, self.config)
        chunk = min(2 if is_long_code and self.k_blocks > 4 else 4, 8 // self.loops, of_k)
        ends_anywhere = self.stores_sums_alone or self.waves == 1
        return self.loops * [chunk if ends_anywhere else math.gcd(chunk, self.k_blocks)]

    @property
    def landings(self) -> int:
        """Places where nothing is left in flight: the ends of chunks, and that of K inside a short one."""
        return len(self.pieces) + (self.k_blocks % self.pieces[-1] > 0)

    @property
    def stores_sums_alone(self) -> bool:
        """Whether the epilogue has no addresses to compute that could move up into a main loop without a loop."""
        problem = self.problem
        plain = problem.c is problem.bias is Addend.NONE
        return plain and problem.store is StoreKind.TMA and problem.scaling is Scaling.BLOCK


def compiled(wanted: list[tuple[Problem, TileConfig]], directory: Path) -> list[Kernel]:
    with settings.scope(cache_dirs=(directory,), trusted_dirs=(), jit="compile"):
        artifacts = build_many([kernel_request(*pair) for pair in wanted])
    return [
        Kernel(artifact.request.label, config, problem, instructions)
        for (problem, config), artifact, instructions in zip(
            wanted, artifacts, instructions_of(artifacts, directory), strict=True
        )
    ]


def one_wave_in_flight(output: OutputType = OutputType.BFLOAT16) -> list[TileConfig]:
    """With all of K."""
    return [
        config for config in candidate_configs(StoreKind.TMA, output) if config.waves_in_flight == config.split_k == 1
    ]
