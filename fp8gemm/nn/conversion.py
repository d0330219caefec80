"""The linear layers of a whole model to FP8, in place, with a report of what became of each."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from torch import Tensor, nn

from fp8gemm.errors import InputError
from fp8gemm.nn.linear import Fp8Linear
from fp8gemm.nn.saving import HEAD, describe_when_saved
from fp8gemm.nn.training import Fp8TrainingLinear
from fp8gemm.quoting import counted, quoted
from fp8gemm.terminal.progress import over
from fp8gemm.terminal.screen import PLAIN
from fp8gemm.terminal.table import Column, Table, fitted

MIN_FEATURES = 512
"""Below it a bfloat16 product takes about as long as a launch does, so that FP8 gains nothing; and what is so narrow is
often a router or a small head, whose errors weigh more than others'."""

_MAX_NAMES = 3  # that the printed report gives of the layers it left


@dataclass(frozen=True)
class ConvertedLayer:
    """A layer that `convert` replaced.

    Attributes:
        name: its dotted name, the first of several if the model holds it in several places.
        in_features, out_features: K and N.
        bytes_before, bytes_after: of its parameters.
        fold_error: where scales were for smaller blocks than 128x128, what folding moved the values by: that of
            `fp8gemm.Folded`; else None.
    """

    name: str
    in_features: int
    out_features: int
    bytes_before: int
    bytes_after: int
    fold_error: float | None = None


@dataclass(frozen=True)
class SkippedLayer:
    """A linear layer that `convert` left as it was, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Conversion:
    """What `convert` did to a model; `print` it for a short table.

    Attributes:
        converted: the layers it replaced, in the model's order.
        skipped: the linear layers it left.
        bytes_before, bytes_after: of all parameters and buffers of the model, shared ones counted once.
        unmatched: the patterns in ``skip`` that name no module of the model, linear or not.
    """

    converted: tuple[ConvertedLayer, ...]
    skipped: tuple[SkippedLayer, ...]
    bytes_before: int
    bytes_after: int
    unmatched: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All of it in lists, dicts, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        groups: dict[tuple[int, int], list[ConvertedLayer]] = {}
        for layer in self.converted:
            groups.setdefault((layer.out_features, layer.in_features), []).append(layer)
        columns = Column("N x K", 16, left=True), Column("layers"), Column("MB before", 12), Column("MB after", 12)
        rows = []
        for (n, k), layers in groups.items():
            before, after = (
                sum(sizes) for sizes in zip(*((x.bytes_before, x.bytes_after) for x in layers), strict=True)
            )
            rows.append((f"{n} x {k}", str(len(layers)), _megabytes(before), _megabytes(after)))
        totals = _megabytes(self.bytes_before), _megabytes(self.bytes_after)
        rows.append(("whole model", str(len(self.converted)), *totals))
        table = Table(fitted(columns, rows), on=PLAIN)
        lines = [table.header(), *(table.line(*row) for row in rows)]
        folded = [(layer.fold_error, layer.name) for layer in self.converted if layer.fold_error is not None]
        if folded:
            error, name = max(folded)
            of_worst = f"moves a block by at most {error:.1e} of its norm, in {name}" if error else "is exact"
            lines.append(f"folded: {counted(len(folded), 'weight')} of smaller blocks than 128x128, which {of_worst}")
        for reason, count in Counter(layer.reason for layer in self.skipped).items():
            names = [layer.name for layer in self.skipped if layer.reason == reason]
            more = f" and {count - _MAX_NAMES} more" if count > _MAX_NAMES else ""
            lines.append(f"left: {', '.join(names[:_MAX_NAMES])}{more}: {reason}")
        lines.extend(_unmatched(pattern) for pattern in self.unmatched)
        return "\n".join(lines)


def convert(
    model: nn.Module,
    *,
    skip: Sequence[str] = (),
    head: bool = False,
    min_features: int = MIN_FEATURES,
    trainable: bool = False,
    max_m: int = 16384,
    batch_invariant: bool | None = None,
) -> Conversion:
    """Replace the model's `torch.nn.Linear` layers by `Fp8Linear` ones, in place, each weight freed as it goes; with
    ``trainable`` by `Fp8TrainingLinear` ones, which keep their parameters. What was trained so converts to the former.

    A layer that the model holds in several places is converted once and stays one. Left alone, and reported, are
    ``lm_head``, the head; layers that ``skip`` names; narrower or shorter than ``min_features``; with K no multiple of
    16, or with ``trainable`` N; of a class derived from `torch.nn.Linear`, which may do something else; whose weight
    another module holds too (a tied head); and with hooks, which the new layer would lose. On "meta" the new layers
    wait for their values.

    What ``save_pretrained`` of a model of transformers 5.17 or newer writes then has a ``quantization_config`` that
    says which layers are FP8, so that ``from_pretrained`` and `fp8gemm.integrations.transformers.load_quantized` load
    it again. What such a config cannot say, it refuses to save with an `InputError`; `torch.save` works.

    Args:
        model: what holds the layers; not itself one. The whole model, if it shall be saved so.
        skip: patterns of names of layers to leave besides the head. A layer is left if one matches its dotted name, a
            dotted suffix of it or, alike, the name of a module that it is part of: ``"mlp.gate"``, ``"layers.0"``,
            ``"vision_*"``. ``*``, ``?`` and ``[...]`` are wild, and match dots too. A pattern that names no module of
            the model is reported, and warned of.
        head: whether ``lm_head`` is converted as other layers are.
        min_features: the least N and the least K worth converting.
        trainable: whether the new layers are for training.
        max_m, batch_invariant: as in `Fp8Linear`; layers for training have neither.

    Returns:
        What was converted, what was not and why, and the bytes of it.

    Raises:
        InputError: ``model`` is a linear layer itself, or ``skip`` is no sequence of strings; nothing was converted.
    """
    if isinstance(model, nn.Linear):
        raise InputError("model: expected a module that holds layers, got a linear layer; use Fp8Linear.from_linear")
    if isinstance(skip, str):
        raise InputError(f"skip: expected a sequence of patterns, got the string {quoted(skip)}")
    for pattern in skip:
        if not isinstance(pattern, str):
            raise InputError(f"skip: expected patterns, which are strings, got {quoted(pattern)} among them")
    module_names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    unmatched = tuple(pattern for pattern in skip if not any(_matches(name, pattern) for name in module_names))
    for pattern in unmatched:
        warnings.warn(_unmatched(pattern), stacklevel=2)
    before = _bytes(model)
    places = _places(model)
    owners = _owners(model)
    converted, skipped = [], []
    for held in over(places, "layers", "convert"):
        layer = held[0].layer
        reason = _reason_to_leave(held, skip, head, min_features, trainable) or _tie(held, owners)
        if reason:
            skipped.append(SkippedLayer(held[0].name, reason))
            continue
        new: Fp8Linear | Fp8TrainingLinear
        if trainable:
            new = Fp8TrainingLinear.from_linear(layer)
        else:
            new = Fp8Linear.from_linear(layer, max_m=max_m, batch_invariant=batch_invariant)
        k, n = layer.in_features, layer.out_features
        converted.append(ConvertedLayer(held[0].name, k, n, _bytes(layer), _bytes(new)))
        for place in held:
            setattr(place.parent, place.attribute, new)
        del layer  # and with it the last reference to its weight, before the next one is quantised
    if converted:
        describe_when_saved(model)
    return Conversion(tuple(converted), tuple(skipped), before, _bytes(model), unmatched)


@dataclass(frozen=True)
class _Place:
    """Where a model holds a layer.

    NOTE: the layer is looked up, never kept: what keeps it keeps its weight in memory.
    """

    name: str
    parent: nn.Module
    attribute: str

    @property
    def layer(self) -> nn.Linear:
        layer = self.parent._modules[self.attribute]
        assert isinstance(layer, nn.Linear)
        return layer


def _places(model: nn.Module) -> list[list[_Place]]:
    """For each linear layer of the model, in its order, the places that hold it."""
    places: dict[int, list[_Place]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            parent, _, attribute = name.rpartition(".")
            places.setdefault(id(module), []).append(_Place(name, model.get_submodule(parent), attribute))
    return list(places.values())


def _reason_to_leave(
    held: Sequence[_Place], skip: Sequence[str], head: bool, min_features: int, trainable: bool
) -> str | None:
    layer = held[0].layer
    for pattern in skip:
        if any(_matches(place.name, pattern) for place in held):
            return f"named by {pattern!r} in skip"
    if not head and any(_matches(place.name, HEAD) for place in held):
        return "it is the head, left unless head=True"
    if type(layer) is not nn.Linear and (trainable or type(layer) is not Fp8TrainingLinear):
        return f"it is a {type(layer).__name__}, not exactly torch.nn.Linear"
    if layer.in_features % 16 or not layer.in_features:
        return "K is not a multiple of 16"
    if trainable and layer.out_features % 16:
        return "N is not a multiple of 16"
    if min(layer.in_features, layer.out_features) < min_features:
        return f"fewer than min_features = {min_features} features"
    if not layer.weight.is_floating_point() or layer.weight.element_size() not in (2, 4):
        return f"its weight is {layer.weight.dtype}"
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    if any(hooks) or "forward" in vars(layer):
        return "it has hooks or a forward of its own"
    return None


def _unmatched(pattern: str) -> str:
    return f"skip: {quoted(pattern)} names no module of the model"


def _matches(name: str, pattern: str) -> bool:
    parts = name.split(".")
    names = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}") for name in names)


def _tie(held: Sequence[_Place], owners: dict[object, list[str]]) -> str | None:
    own = {f"{place.name}.weight" for place in held}
    others = [name for name in owners[_identity(held[0].layer.weight)] if name not in own]
    return f"its weight is {others[0]} too" if others else None


def _owners(model: nn.Module) -> dict[object, list[str]]:
    """For the memory of each parameter, the names that modules have for it."""
    owners: dict[object, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(_identity(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return owners


def _identity(tensor: Tensor) -> object:
    """Equal for tensors that are one, if not as objects, then in memory."""
    if tensor.is_meta or not tensor.data_ptr():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _bytes(module: nn.Module) -> int:
    tensors = {_identity(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"
