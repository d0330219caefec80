"""From what a server will ask for to the exact set of kernels: pure functions, without a GPU, a driver or tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from operator import index
from typing import Any

from fp8gemm import settings
from fp8gemm.ahead.grouped import grouped_kernels
from fp8gemm.errors import InputError
from fp8gemm.jit.request import KernelRequest
from fp8gemm.kernels.catalogue import kernel_request
from fp8gemm.kernels.quantize import (
    ROWS_OF_WARP,
    WARPS_OF_BLOCK,
    QuantizeSource,
    all_norm_threads,
    quantizer_of_blocks,
    quantizer_of_masked,
    quantizer_of_norm,
    quantizer_of_rows,
    quantizer_to_rows,
    quantizer_with_transpose,
)
from fp8gemm.kernels.routing import (
    COPY_TO_ROWS,
    COUNT_ROUTES,
    ROUTE_TOKENS,
    route_and_quantize_request,
    unpermute_request,
)
from fp8gemm.quoting import quoted
from fp8gemm.sizes import check_whole_number, is_norm_depth
from fp8gemm.tuning.grouped_problem import GroupedProblem
from fp8gemm.tuning.hopper import Chip, chip_name, chip_names, limited_chip, named_chip
from fp8gemm.tuning.problem import (
    Addend,
    InputType,
    OutputType,
    Problem,
    Scaling,
    StoreKind,
    packed_problem,
    parse_epilogue,
)
from fp8gemm.tuning.select import config_by_m, select_config

CHIPS = ("h200", "h100")
"""What kernels are made ready for if nobody says."""

INPUTS = {OutputType[each.name]: each for each in InputType}
"""What a layer quantises, by what it puts out: its inputs are of that type."""

ROUTES = (ROUTE_TOKENS, COUNT_ROUTES, COPY_TO_ROWS)
"""What sorts tokens by expert, of whatever type."""


@dataclass(frozen=True)
class Demand:
    """Kernels that must be ready.

    Attributes:
        gemms: by chip, those of every problem for every M.
        quantizers: the same on every chip.
    """

    gemms: Mapping[str, tuple[KernelRequest, ...]]
    quantizers: tuple[KernelRequest, ...] = ()

    @property
    def requests(self) -> list[KernelRequest]:
        """Each once, in an order that is always the same."""
        return list(dict.fromkeys(chain(self.quantizers, *self.gemms.values())))


@dataclass(frozen=True)
class Variants:
    """How the products of a weight may be asked for; one of each is combined with one of each other.

    Attributes:
        outputs: types of D.
        epilogues: as `fp8gemm.tuning.problem.parse_epilogue` reads them.
        scaling: of B.
        static_weights: True as linear layers ask, False as `fp8gemm.gemm` does.
        batch_invariant: as in `fp8gemm.gemm`, but for None: what the settings say.
        any_strides: also for outputs that TMA cannot write, in columns or at odd addresses.
    """

    outputs: tuple[OutputType, ...] = (OutputType.BFLOAT16,)
    epilogues: tuple[str, ...] = ("none",)
    scaling: Scaling = Scaling.BLOCK
    static_weights: tuple[bool, ...] = (True, False)
    batch_invariant: bool | None = None
    any_strides: bool = False

    def problems(self, n: int, k: int, max_m: int) -> list[Problem]:
        """Those of a weight (N, K), each with the largest M.

        Raises:
            InputError: sizes or an epilogue that no kernel takes.
        """
        check_whole_number("max_m", max_m, 1)
        invariant = settings.current().batch_invariant if self.batch_invariant is None else self.batch_invariant
        found: list[Problem] = []
        for output, epilogue, static in product(self.outputs, self.epilogues, self.static_weights):
            c, bias = parse_epilogue(epilogue)
            is_output = c is Addend.IN_PLACE
            problem = packed_problem(max_m, n, k, output, self.scaling, batch_invariant=invariant)
            problem = replace(problem, c=Addend.FLOAT32 if is_output else c, bias=bias, static_weights=static)
            ways = [] if is_output else [problem]
            if problem.c is Addend.FLOAT32:  # which may be the output
                ways.append(problem.accumulating())
            if self.any_strides:
                ways.append(replace(problem, store=StoreKind.PREDICATED))
            found += dict.fromkeys(ways)
        return found

    def of_layer(self, output: OutputType, *, bias: bool, ranks: int = 1) -> Variants:
        """Those of a linear layer of activations of a type, which `fp8gemm.nn` keeps a bias for as it adds it.

        Where ranks share a layer, one of them adds the bias to the sum.
        """
        own = "bias" if output is OutputType.BFLOAT16 else "bias:float32"
        epilogues = (own,) if bias else ("none",)
        return replace(self, outputs=(output,), epilogues=(*epilogues, "none") if ranks > 1 and bias else epilogues)


def chips_named(names: str | Sequence[str]) -> list[Chip]:
    """The chips, as `chip_names` reads them, each with no more SMs than ``FP8GEMM_NUM_SMS`` leaves.

    Raises:
        InputError: one is not known.
    """
    limit = settings.current().num_sms
    found = [named_chip(name) for name in chip_names(names)]
    return found if limit is None else [limited_chip(chip, limit) for chip in found]


def demand(
    problems: Iterable[Problem | GroupedProblem],
    chips: Sequence[Chip],
    quantizers: Iterable[KernelRequest] = (),
    of_one_m: Iterable[Problem] = (),
) -> Demand:
    """What every M up to each problem's own asks for on each of the chips."""
    # Why a problem's configs are chosen is no part of its kernels, so that many problems share them.
    wanted, exact = list(dict.fromkeys(problems)), list(dict.fromkeys(of_one_m))
    gemms: dict[str, tuple[KernelRequest, ...]] = {}
    for chip in chips:
        of_exact = (kernel_request(problem, select_config(problem, chip)) for problem in exact)
        gemms[chip_name(chip)] = tuple(dict.fromkeys(chain(gemm_kernels(wanted, chip), of_exact)))
    return Demand(gemms, tuple(dict.fromkeys(quantizers)))


def gemm_kernels(problems: Iterable[Problem | GroupedProblem], chip: Chip) -> Iterable[KernelRequest]:
    """For each problem the kernel of each M up to its own."""
    for problem in problems:
        if isinstance(problem, GroupedProblem):
            yield from grouped_kernels(problem, chip)
            continue
        for config in dict.fromkeys(config for _, config in config_by_m(problem, chip)):
            yield kernel_request(problem, config)


def row_quantizers(dtype: InputType, sources: Iterable[QuantizeSource] = QuantizeSource) -> list[KernelRequest]:
    """Those of activations of a type, for every M and K."""
    return [quantizer_of_rows(source, dtype, rows).request for source in sources for rows in ROWS_OF_WARP]


def masked_quantizers(dtype: InputType, sources: Iterable[QuantizeSource] = QuantizeSource) -> list[KernelRequest]:
    """Those of groups of activations of a type, of which only some rows are there, for every M and K."""
    return [quantizer_of_masked(source, dtype).request for source in sources]


def routing_kernels(dtype: InputType) -> list[KernelRequest]:
    """Those that sort tokens of a type by expert and add up what comes back, for every T, top_k, K and number of
    experts."""
    return [*ROUTES, *_quantized_routes(dtype), unpermute_request(dtype)]


def _quantized_routes(dtype: InputType) -> list[KernelRequest]:
    return [quantizer_to_rows(dtype).request, route_and_quantize_request(dtype)]


def weight_quantizers(dtype: InputType) -> list[KernelRequest]:
    """Those of weights of a type, for every N and K."""
    return [quantizer_of_blocks(dtype, warps).request for warps in WARPS_OF_BLOCK]


def norm_quantizers(dtype: InputType, weight: InputType, k: int, residual: Iterable[bool]) -> list[KernelRequest]:
    """Those of RMS norms of K columns, for every M."""
    return [
        quantizer_of_norm(k, dtype, weight, residual=added, threads=threads).request
        for added in residual
        for threads in all_norm_threads(k)
    ]


def all_quantizers(
    dtypes: Iterable[OutputType],
    ks: Iterable[int],
    norm_weights: Sequence[OutputType] = (),
    *,
    transposes: bool = False,
) -> list[KernelRequest]:
    """Every quantiser of activations of these types and K, norms with weights of these types among them, and with
    ``transposes`` that which training has.

    If no types of weights are given they are those of the activations. A K that can be multiplied but not normed has
    no norms.
    """
    found: list[KernelRequest] = []
    for dtype in (INPUTS[output] for output in dtypes):
        found += row_quantizers(dtype) + masked_quantizers(dtype) + weight_quantizers(dtype)
        found += routing_kernels(dtype)
        found += [quantizer_with_transpose(dtype).request] * transposes
        weights = [INPUTS[each] for each in norm_weights] or [dtype]
        for k, weight in product(filter(is_norm_depth, dict.fromkeys(ks)), weights):
            found += norm_quantizers(dtype, weight, k, (False, True))
    return found


def recorded_quantizers(family: str, config: Mapping[str, Any]) -> list[KernelRequest]:
    """A quantiser or kernel of routing that `fp8gemm.kernels.recording` noted, for every M.

    Raises:
        InputError: there is none like it.
    """
    if family in (request.family for request in ROUTES):
        return list(ROUTES)
    try:
        dtype = InputType(config["input"])
        if family == "QuantizeRows":
            return row_quantizers(dtype, [QuantizeSource(config["source"])])
        if family == "QuantizeMasked":
            return masked_quantizers(dtype, [QuantizeSource(config["source"])])
        if family in ("QuantizeToRows", "RouteAndQuantize"):
            return [*ROUTES, *_quantized_routes(dtype)]
        if family == "Unpermute":
            return [unpermute_request(dtype)]
        if family == "QuantizeBlocks":
            return weight_quantizers(dtype)
        if family == "QuantizeWithTranspose":
            return [quantizer_with_transpose(dtype).request]
        if family == "QuantizeNorm":
            return norm_quantizers(dtype, InputType(config["weight"]), index(config["k"]), [bool(config["residual"])])
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"expected the constants of a quantiser {family}, got {quoted(dict(config))}: {error}"
        ) from error
    known = "QuantizeRows, QuantizeMasked, QuantizeToRows, QuantizeBlocks, QuantizeWithTranspose, QuantizeNorm, "
    known += "RouteTokens, CountRoutes, RouteAndQuantize, CopyToRows or Unpermute"
    raise InputError(f"expected {known}, got {quoted(family)}")
