"""What one run of the benchmark measures and says: products beside the peers, chains of two, gradients, or layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

import fp8gemm
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.lab.bench import chain, gradients, linear
from fp8gemm.lab.bench.engine import DEEP_GEMM_IN_VLLM, ENGINES, KERNELS
from fp8gemm.lab.bench.engine_mix import Mix
from fp8gemm.lab.bench.operands import Operands
from fp8gemm.lab.bench.peers import FLOORS, OURS, OURS_PDL, Peer, choose_peers, config_peer, those_there
from fp8gemm.lab.bench.report import ProductTable, Row, Shape
from fp8gemm.lab.bench.summary import Statement, Summary


@dataclass(frozen=True)
class Suite:
    """Peers and what is said of them.

    Attributes:
        peers: who takes turns, ours first.
        skipped: reason, by peer, of those that this machine has not.
        summaries: what is said of all shapes together.
        label: the tile configs that ours multiplies operands with.
        products: multiplications of a shape's size in one call.
    """

    peers: Sequence[Peer]
    skipped: Mapping[str, str]
    summaries: Sequence[Statement[Row]]
    label: Callable[[Operands], str]
    products: int = 1

    @property
    def ours(self) -> str:
        """The peer that the others are compared with."""
        return self.peers[0].name

    @property
    def calls_deep_gemm(self) -> bool:
        """Whether one of them is DeepGEMM, which compiles at the first call of a shape."""
        return any(peer.module == "deep_gemm" or peer.name == DEEP_GEMM_IN_VLLM for peer in self.peers)

    @property
    def table(self) -> ProductTable:
        """How its rows are printed."""
        return ProductTable(self.ours, [peer.name for peer in self.peers[1:]], self.products)


def product_suite(
    *,
    alone: bool,
    batch_invariant: bool,
    pdl: bool,
    floor: bool,
    others: Sequence[str] = (),
    configs: Sequence[str] = (),
) -> Suite:
    """Single products; ours with the configs of these labels are peers too, the other options those of
    `choose_peers`."""
    peers, skipped = choose_peers(alone=alone, others=others, batch_invariant=batch_invariant, pdl=pdl, floor=floor)
    peers += map(config_peer, dict.fromkeys(configs))
    names = [peer.name for peer in peers]
    return Suite(peers, skipped, _summaries(names), _product_label)


def _summaries(names: Sequence[str]) -> list[Statement[Row]]:
    """Of products by these peers."""
    others = [name for name in names if name not in FLOORS.values()]
    found: list[Statement[Row]] = []
    for ours, key in ((OURS, "geomean_relative_speed"), (OURS_PDL, "geomean_relative_speed_pdl")):
        if ours in names:
            relative = {name: (name, ours) for name in others if name != ours}
            found.append(Summary(key, f"speed of {ours} relative to its peers", "speed", relative))
    floors = {floor: (ours, floor) for ours, floor in FLOORS.items() if {ours, floor} <= set(names)}
    if floors:
        title = "time over that of " + ", ".join(f"{floor} (of {ours})" for floor, (ours, _) in floors.items())
        found.append(Summary("geomean_time_over_floor", title, "time", floors))
    return found


def chain_suite(shapes: Sequence[Shape]) -> Suite:
    """Chains of two products.

    Raises:
        InputError: the first product's N cannot be the second one's K.
    """
    for shape in shapes:
        if shape.n % 16:
            raise InputError(f"--chain: expected N to be a multiple of 16, as K of the second product, got {shape}")
    ratios = {chain.CHAIN: (chain.CHAIN, chain.CHAIN_PDL), chain.PRODUCTS: (chain.PRODUCTS, chain.PRODUCTS_PDL)}
    title = "speed with programmatic dependent launch relative to that without"
    summary = Summary("geomean_relative_speed_pdl", title, "speed", ratios)
    return Suite(chain.PEERS, {}, [summary], _chain_label, products=2)


def linear_suite() -> Suite:
    """Linear layers, beside bfloat16 ones."""
    title = f"speed of {linear.OURS} relative to {linear.BF16}"
    summary = Summary("geomean_relative_speed", title, "speed", {linear.BF16: (linear.BF16, linear.OURS)})
    return Suite(linear.PEERS, {}, [summary, linear.GATES], partial(_product_label, static_weights=True))


def gradient_suite(shapes: Sequence[Shape], *, alone: bool) -> Suite:
    """Weight gradients, beside DeepGEMM's; or ours ``alone``.

    Raises:
        InputError: rows cannot be summed over.
    """
    for shape in shapes:
        if shape.k % 16:
            raise InputError(f"--weight-gradients: expected M to be a multiple of 16, got {shape.k}")
    peers, skipped = gradients.choose_peers(alone=alone)
    names = [peer.name for peer in peers]
    relative = {name: (name, gradients.OURS) for name in names if name != gradients.OURS}
    title = f"speed of {gradients.OURS} relative to its peers"
    summary = Summary("geomean_relative_speed", title, "speed", relative)
    return Suite(peers, skipped, [summary, gradients.GATES], gradients.config_label)


def engine_suite(mix: Mix) -> Suite:
    """Linear layers beside an engine's, in a serving mix."""
    peers, skipped = those_there([linear.PEERS[0], ENGINES[mix.engine]])
    return Suite(peers, skipped, [mix], partial(_product_label, static_weights=True))


def engine_kernels_suite(engine: str) -> Suite:
    """An engine's linear layers by its kernels and by ours, where it has a list of them; else its layers and ours.

    Raises:
        UnsupportedError: ours is behind the engine's own layer, and the engine is not there.
    """
    wanted = KERNELS.get(engine, (linear.PEERS[0], ENGINES[engine]))
    peers, skipped = those_there(wanted)
    ours, names = wanted[0].name, [peer.name for peer in peers]
    if ours in skipped:
        raise UnsupportedError(f"--engine {engine}: {skipped[ours]}")
    relative = {name: (name, ours) for name in names if name != ours}
    summary = Summary("geomean_relative_speed", f"speed of {ours} relative to its peers", "speed", relative)
    return Suite(peers, skipped, [summary], partial(_product_label, static_weights=True))


def _product_label(operands: Operands, *, static_weights: bool = False) -> str:
    return _config_label(operands.x.shape[0], *operands.blocks[2:], static_weights=static_weights)


def _chain_label(operands: Operands) -> str:
    m = operands.x.shape[0]
    return f"{_config_label(m, *operands.blocks[2:])}, {_config_label(m, *operands.weight_back)}"


def _config_label(m: int, b: Tensor, scales_b: Tensor, *, static_weights: bool = False) -> str:
    """The tile config that fp8gemm multiplies M rows and this weight with, as its plan says."""
    kernel = fp8gemm.plan(b, scales_b, max_m=m, static_weights=static_weights).kernel_for(m)
    return "reference" if kernel is None else kernel.config.label
