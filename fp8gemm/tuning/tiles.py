"""The tiles of the ordinary orientation that are worth compiling, and for what."""

from __future__ import annotations

from fp8gemm.frozen import dataclass
from fp8gemm.sizes import LIMIT
from fp8gemm.tuning.config import Tile
from fp8gemm.tuning.problem import Scaling

MANY_ROWS = 256
"""Rows, as choices count them, from which a weight has few kernels for all numbers of them."""
_ALL, _NONE = range(LIMIT), range(0)
_SHORT, _LONG, _SPLIT, _DIVIDED = range(2048), range(2048, LIMIT), range(1024, LIMIT), range(6144, LIMIT)
_BLOCK, _ROW = frozenset({Scaling.BLOCK}), frozenset({Scaling.ROW})


@dataclass(frozen=True)
class Worth:
    """What a tile is worth compiling for.

    Attributes:
        few: K with less than `MANY_ROWS` rows, as choices count them.
        many: K from there on.
        n: N from there on, for tiles that make any number of rounds.
        rounds: that tiles make at most from there on with other N.
        scalings: of B.
    """

    few: range = _ALL
    many: range = _ALL
    n: range = _ALL
    rounds: int = 0
    scalings: frozenset[Scaling] = frozenset(Scaling)

    def k(self, m: int) -> range:
        """K with so many rows."""
        return self.many if m >= MANY_ROWS else self.few

    @property
    def is_general(self) -> bool:
        """Whether it is for any number of rounds from there on. Of others nothing was measured with groups."""
        return bool(self.many and self.n)

    def sets_width(self, m: int) -> bool:
        """Whether with so many rows the width of batch-invariant products depends on it."""
        return self.is_general if m >= MANY_ROWS else bool(self.few)


def _of_k(ks: range) -> Worth:
    return Worth(few=ks, many=ks)


def _of_few_rows(ks: range) -> Worth:
    return Worth(few=ks, many=_NONE, scalings=_BLOCK)


def _of_rounds(most: int, ks: range, few: range = _NONE) -> Worth:
    return Worth(few=few, many=ks, n=_NONE, rounds=most, scalings=_BLOCK)


TILES: dict[Tile, Worth] = {
    Tile(128, 128): Worth(),
    Tile(128, 192): Worth(),
    Tile(128, 160): Worth(),
    Tile(128, 256): Worth(scalings=_BLOCK),
    Tile(64, 256): Worth(),
    Tile(64, 192): Worth(),
    Tile(128, 64): Worth(),
    Tile(64, 128): Worth(),
    Tile(128, 224): Worth(scalings=_ROW),
    Tile(128, 224, cluster_m=2): Worth(scalings=_ROW),
    Tile(192, 128): Worth(scalings=_ROW),
    Tile(256, 128): Worth(few=_LONG, n=range(5120), rounds=32),
    Tile(64, 64, warpgroups_k=2): _of_k(_LONG),
    Tile(128, 128, split_k=2): _of_k(_SPLIT),
    Tile(128, 96, split_k=2): Worth(few=_SPLIT, many=_SPLIT, n=range(1600)),
    Tile(64, 128, split_k=4): Worth(few=_NONE, many=_SPLIT),
    Tile(64, 64): Worth(many=_SHORT),
    Tile(64, 32): _of_k(_SHORT),
    Tile(64, 96): Worth(many=_SHORT),
    Tile(128, 96): _of_rounds(2, _ALL),
    Tile(64, 160): _of_rounds(1, _LONG),
    Tile(64, 80): _of_rounds(1, _LONG),
    Tile(128, 80): _of_rounds(1, _LONG),
    Tile(128, 144): _of_rounds(2, _LONG),
    Tile(256, 96): _of_rounds(1, _LONG),
    Tile(192, 64): _of_rounds(1, _SHORT),
    Tile(64, 64, cluster_m=2): Worth(many=_NONE),
    Tile(64, 64, cluster_n=2): Worth(many=_NONE),
    Tile(128, 64, split_k=2): _of_few_rows(_ALL),
    Tile(128, 64, split_k=4): _of_few_rows(_SPLIT),
    Tile(64, 64, split_k=2): _of_few_rows(_SPLIT),
    Tile(64, 64, split_k=4): _of_few_rows(_SPLIT),
    Tile(64, 32, split_k=2): _of_few_rows(_SPLIT),
    Tile(64, 32, warpgroups_k=2): _of_few_rows(_SPLIT),
    Tile(192, 96): _of_rounds(2, _ALL, few=_ALL),
    Tile(192, 128, split_k=2): Worth(many=_DIVIDED, scalings=_BLOCK),
}
"""Tiles worth compiling, and for what; of two that are predicted to cost the same the first is chosen. The first eight
and one for the shape's K cost 0.1 % over the fastest of thirteen at 38 random shapes, in bursts and under load that
lasts (H200, 2026-11-23). Since one warpgroup has it, 64x128 is 7 % faster than 128x64 where both take one round, as
500x2048x4096 and 512x2048x12288 (bursts, H100, 2026-11-25).

- Row scales: in a cluster that shares B, 128x224 is 0.5 to 1 % faster than alone at 4096x7168x4096, in bursts and under
  load that lasts; 128x192 and 128x128 are up to 1 % slower (H200, 2026-11-29).
- 256x128 takes 1 to 2 % longer than 128x256 where rounds are as many, and is 9 % faster at 6959x4224x10880, where they
  are 7 instead of 8 (bursts, H100, 2026-11-25). At 21 shapes of 576 to 3968 columns where the model takes it, or
  nearly, it is 0 to 8 % faster than the best of three others, 4 % on average (H200, 2026-11-27). With K below 2048 it
  is 3 % faster on average at nine in bursts, 5 under load that lasts. From 5120 columns on it was 1.7 % slower at 28
  that the model had as fast; where it saves one of up to 32 rounds it is 1 % faster at eight in bursts, 3 under load
  that lasts, and where rounds are more at seven 0.7 and 0.3 % slower (H200, 2026-11-29).
- K divided: adding up the shares takes as long as some K blocks. Tiles of which a cluster divides K are for few tiles:
  at 33 shapes, 22 of which have few, the choice takes 0.7 % more in bursts than the fastest of 30 tiles, 1.7 % under
  load that lasts; without them 6.8 and 6.2 % (H200, 2026-11-24). The model takes 128x96 so for faster than it is: 6.9 %
  slower than 128x128 at 549x1216x12672 (load that lasts, H100, 2026-11-26). With more columns it is not measured.
  With many rows 192x128 is faster than what was chosen without it at eight products with K from 9472 on where the model
  takes it, by 2.0 to 9.5 % in bursts and 3.0 to 10.5 under load that lasts. With K from 5632 to 6912 it is -4.8 to +0.3
  and -2.0 to +2.5 % at three, two of which the model takes (H200, 2026-11-29).
- Short K: 64x32 is 5 to 13 % faster than 64x64 at 313x256x384 and 858x256x1408, and 64x64 2 % faster than with K shared
  at 1096x448x1792 (bursts, H200, 2026-11-25). 64x96 is 8 % faster than 128x64 at 2222x256x896, where it is one round
  (bursts, H100, 2026-11-25).
- One round or two: where the model takes one of these for 2 % faster or more than what was chosen without them, it is
  right, which it is not about three rounds and more under load that lasts. Beside that choice, in bursts and, after a
  comma, under load that lasts (H200, 2026-11-29): 128x96 +0.4 to +4.2, +0.1 to +4.9 % at nine products of one round,
  of two -1.2 to +7.8, -1.4 to +3.1 at six; 192x96 +2.1 to +11.7, +1.4 to +11.2 at five of one round, +4.0 to +4.8,
  +3.7 to +5.2 at three of two, but -2.1 to +4.7, -7.2 to -2.5 of five to eight; 128x144 +2.7 to +3.7, +0.1 to +3.6 at
  four of one, +0.6 to +2.0, +0.2 to +1.2 at three of two; 64x160 +2.6 to +5.4, +0.6 to +5.0 at four; 64x80 +0.2 to
  +6.6, +0.3 to +5.7 at three; 128x80 +1.5, +1.4 and +3.7, +2.9 at two with long K, no better with short; 256x96 +5.9,
  +4.7 and +7.0, +7.7; 192x64 +5.9, +5.9 at 4702x320x640. 256x112 gains +0.3 to +2.5 in bursts, -1.5 to +0.8.
- Few rows: from 64 on no cluster that shares operands was the fastest at any of those shapes. 128x64 with K divided is
  4 to 6 % faster than others at 96 and 128x4096x7168 with a static weight; tiles of 192 rows, which read a weight once,
  by 3 to 8 % at 160 and 192 rows of three N x K of 13 (H200, 2026-11-27). Narrow tiles whose K is divided, or shared by
  two warpgroups, and 64x64 and 64x96 with long K are up to 28 % faster, and 4 % on average, at 48 to 192 rows of 21 N x
  K; 64x128 with K divided was the fastest at none of them (H200, 2026-12-01; docs/tuning.md, "Narrow tiles")."""
