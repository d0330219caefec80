"""Which linear layers a model has, read off its ``config.json``. Nothing here needs torch or transformers.

Listed are the layers of the language model that an FP8 checkpoint keeps in FP8 and that multiply every token: not the
embeddings and ``lm_head``, not routers and the gates of shared experts, and not routed experts: see
`fp8gemm.ahead.experts`. The module that predicts further tokens repeats these shapes; ``eh_proj``, which it alone has,
is left out.

``modules_to_not_convert`` of a checkpoint is not heeded: a layer that it leaves out is listed all the same, so that
there are a few kernels too many and never one too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fp8gemm.ahead.model_config import Bias, Fields, read_config
from fp8gemm.errors import InputError, UnsupportedError
from fp8gemm.quoting import quoted
from fp8gemm.sizes import MAX_NORM_K, check_weight, check_whole_number

__all__ = ["ARCHITECTURES", "LinearShape", "linears_of_config", "read_config"]

_ATTENTION_BIAS, _MLP_BIAS = ("attention_bias", False), ("mlp_bias", False)


@dataclass(frozen=True)
class LinearShape:
    """A linear layer, or the part of it that one rank holds.

    Attributes:
        name: the end of its name in the model, for people (``"o_proj"``, ``"shared_experts.up_proj"``).
        n, k: output and input features of one rank.
        bias: whether it adds a bias. With ``tp > 1`` engines add that of ``o_proj`` and ``down_proj`` on one rank.
        layers: how many of the model's layers have one; None where the configuration does not say.
    """

    name: str
    n: int
    k: int
    bias: bool = False
    layers: int | None = field(default=None, compare=False)

    @property
    def reads_norm(self) -> bool:
        """Whether its input comes out of a norm, as that of every layer does but those that end a block."""
        return not self.name.endswith(("o_proj", "down_proj"))


def linears_of_config(config: Mapping[str, Any], *, tp: int = 1, merged: bool = False) -> tuple[LinearShape, ...]:
    """The layers of a model, each once for all the layers of the same name and shape.

    Args:
        config: a model's configuration with the field names of ``config.json``; that of a multimodal model is looked up
            under ``text_config``. Biases, key-value heads and the size of a head that it does not state are what the
            config class in transformers takes them for; other sizes that the layers need it must state.
        tp: ranks that share each layer: q, k, v, gate and up by their output features, in whole heads, and o and down
            by their input features. Every rank has DeepSeek's low-rank ``q_a`` and ``kv_a`` whole, and fewer key-value
            heads than ranks are replicated. An engine that does not share attention needs those of ``tp=1`` as well.
        merged: layers of the same input as serving engines merge them: ``qkv_proj``, ``gate_up_proj`` and DeepSeek's
            ``fused_qkv_a_proj``, in place of their parts.

    Raises:
        InputError: a field is missing or is not what it should be, a layer does not divide over ``tp`` ranks, or is
            larger than kernels can count, or its K is not a multiple of 16.
        UnsupportedError: a ``model_type`` that is not one of ``ARCHITECTURES``.
    """
    check_whole_number("tp", tp, 1)
    fields, architecture = find_architecture(config)
    layout = _Layout(tp, merged)
    attention = _latent_attention if architecture.latent_attention else _attention
    found = (*attention(fields, architecture, layout), *_mlps(fields, architecture, layout))
    for linear in found:
        check_weight(f"{linear.name} (tp = {tp})", linear.n, linear.k)
    return found


@dataclass(frozen=True)
class _Layout:
    """How a model is laid out on ranks."""

    tp: int
    merged: bool

    def share(self, what: str, total: int) -> int:
        """What one rank holds of so many."""
        if total % self.tp:
            raise InputError(f"{what}: expected a number that divides over tp = {self.tp} ranks, got {total}")
        return total // self.tp

    def key_value_heads(self, total: int) -> int:
        """Key-value heads of one rank: its share, or a copy of one where there are fewer than ranks."""
        return self.share("num_key_value_heads", total) if self.tp % total else 1

    def together(self, name: str, parts: Sequence[LinearShape]) -> Sequence[LinearShape]:
        """Layers of the same input: one of that name if they are merged, else the parts."""
        if not self.merged:
            return parts
        return [LinearShape(name, sum(part.n for part in parts), parts[0].k, parts[0].bias, parts[0].layers)]


@dataclass(frozen=True)
class _MlpSizes:
    """Intermediate sizes of the MLPs that are no routed experts, 0 where a model has none; and how many layers have
    them."""

    dense: int = 0
    shared: int = 0
    dense_layers: int | None = None
    shared_layers: int | None = None


def _dense_mlp(fields: Fields) -> _MlpSizes:
    return _MlpSizes(fields.size("intermediate_size"), dense_layers=hidden_layers(fields))


def _routed_experts_alone(fields: Fields) -> _MlpSizes:
    return _MlpSizes()


def _qwen3_moe_mlp(fields: Fields) -> _MlpSizes:
    dense, _ = qwen_layer_kinds(fields)
    return _MlpSizes(fields.size("intermediate_size") if dense else 0, dense_layers=dense)


def _qwen2_moe_mlp(fields: Fields) -> _MlpSizes:
    dense, sparse = qwen_layer_kinds(fields)
    return _MlpSizes(
        fields.size("intermediate_size") if dense else 0,
        fields.size("shared_expert_intermediate_size", least=0) if sparse else 0,
        dense,
        sparse,
    )


def qwen_layer_kinds(fields: Fields) -> tuple[int, int]:
    """How many layers have a dense MLP, and how many have experts; none is listed, for a config may state a billion."""
    # transformers writes the first name and, for some of its classes, the second.
    experts = fields.size_or_null("num_experts", fields.size_or_null("num_local_experts", 1, least=0), least=0)
    dense_layers = fields.indices("mlp_only_layers")
    step = fields.size_or_null("decoder_sparse_step", 1) or 1
    layers = fields.size("num_hidden_layers")
    # Every step-th layer has experts, but for those that are named.
    sparse = layers // step - sum(layer < layers and (layer + 1) % step == 0 for layer in dense_layers)
    sparse = sparse if experts else 0
    return layers - sparse, sparse


def _deepseek_mlp(fields: Fields) -> _MlpSizes:
    layers, dense = fields.size("num_hidden_layers"), fields.size("first_k_dense_replace", least=0)
    shared = fields.size("n_shared_experts", least=0) if dense < layers else 0
    return _MlpSizes(
        fields.size("intermediate_size") if dense else 0,
        fields.size("moe_intermediate_size") * shared if shared else 0,
        min(dense, layers),
        max(layers - dense, 0),
    )


@dataclass(frozen=True)
class Architecture:
    """What sets one ``model_type`` apart, as transformers has it.

    Attributes:
        mlp_sizes: reads the sizes of its MLPs.
        latent_attention: keys and values go through a low rank, as DeepSeek's do.
        key_value_heads: where the configuration does not say; None for as many as query heads.
        head_dim: where the configuration does not say; None for hidden size by heads.
        qkv_bias, output_bias, mlp_bias: what adds a bias.
        shared_expert: what the layers of shared experts are called under.
    """

    mlp_sizes: Callable[[Fields], _MlpSizes] = _dense_mlp
    latent_attention: bool = False
    key_value_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: Bias = _ATTENTION_BIAS
    output_bias: Bias = _ATTENTION_BIAS
    mlp_bias: Bias = False
    shared_expert: str = "shared_experts"


_KNOWN = {
    "llama": Architecture(mlp_bias=_MLP_BIAS),
    "mistral": Architecture(key_value_heads=8, qkv_bias=False, output_bias=False),
    "mixtral": Architecture(_routed_experts_alone, key_value_heads=8, qkv_bias=False, output_bias=False),
    "qwen2": Architecture(key_value_heads=32, qkv_bias=True, output_bias=False),
    "qwen2_moe": Architecture(
        _qwen2_moe_mlp,
        key_value_heads=16,
        qkv_bias=("qkv_bias", True),
        output_bias=False,
        shared_expert="shared_expert",
    ),
    "qwen3": Architecture(key_value_heads=32, head_dim=128),
    "qwen3_moe": Architecture(_qwen3_moe_mlp, key_value_heads=4),
    "deepseek_v2": Architecture(_deepseek_mlp, latent_attention=True, mlp_bias=_MLP_BIAS),
    "deepseek_v3": Architecture(_deepseek_mlp, latent_attention=True),
}

ARCHITECTURES = tuple(_KNOWN)
"""The model types, as ``config.json`` has them, whose layers are known."""


def find_architecture(config: Mapping[str, Any]) -> tuple[Fields, Architecture]:
    """The fields of a model's configuration, and what is known of its ``model_type``.

    Raises:
        InputError, UnsupportedError: as `linears_of_config`.
    """
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        config = nested
    if "model_type" not in config:
        raise InputError("model_type: every config states this field, and it is missing")
    model_type = config["model_type"]
    known = _KNOWN.get(model_type) if isinstance(model_type, str) else None
    if known is None:
        raise UnsupportedError(
            f"model_type: expected one of {', '.join(ARCHITECTURES)}, got {quoted(model_type)}; "
            "name the layers of another model by their sizes, with --nk"
        )
    return Fields(config, model_type), known


def hidden_layers(fields: Fields) -> int | None:
    """Layers of the model, each of which has attention; None where the configuration does not say."""
    return fields.size_or_null("num_hidden_layers", None)


def hidden_size(fields: Fields) -> int:
    """Features between blocks, which are normed."""
    return fields.size("hidden_size", most=MAX_NORM_K)


def _attention(fields: Fields, architecture: Architecture, layout: _Layout) -> Iterator[LinearShape]:
    """Grouped-query attention."""
    hidden, heads = hidden_size(fields), fields.size("num_attention_heads")
    key_value_heads = fields.size_or_null("num_key_value_heads", architecture.key_value_heads) or heads
    head_dim = fields.size_or_null("head_dim", architecture.head_dim) or hidden // heads
    q = head_dim * layout.share("num_attention_heads", heads)
    kv = head_dim * layout.key_value_heads(key_value_heads)
    bias, layers = fields.bias(architecture.qkv_bias), hidden_layers(fields)
    parts = [LinearShape(f"{name}_proj", n, hidden, bias, layers) for name, n in (("q", q), ("k", kv), ("v", kv))]
    yield from layout.together("qkv_proj", parts)
    yield LinearShape("o_proj", hidden, q, fields.bias(architecture.output_bias), layers)


def _latent_attention(fields: Fields, architecture: Architecture, layout: _Layout) -> Iterator[LinearShape]:
    """DeepSeek's: keys and values, and in the larger models queries too, go through a low rank."""
    hidden, bias, layers = hidden_size(fields), fields.bias(architecture.qkv_bias), hidden_layers(fields)
    heads = layout.share("num_attention_heads", fields.size("num_attention_heads"))
    key_dim, rotary_dim, value_dim = map(fields.size, ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    kv_rank = fields.size("kv_lora_rank", most=MAX_NORM_K)
    q_rank = fields.size_or_null("q_lora_rank", 1536, most=MAX_NORM_K)
    q = heads * (key_dim + rotary_dim)
    kv_a = LinearShape("kv_a_proj_with_mqa", kv_rank + rotary_dim, hidden, bias, layers)
    if q_rank is None:
        yield from (LinearShape("q_proj", q, hidden, layers=layers), kv_a)
    else:
        yield from layout.together("fused_qkv_a_proj", [LinearShape("q_a_proj", q_rank, hidden, bias, layers), kv_a])
        yield LinearShape("q_b_proj", q, q_rank, layers=layers)
    yield LinearShape("kv_b_proj", heads * (key_dim + value_dim), kv_rank, layers=layers)
    yield LinearShape("o_proj", hidden, heads * value_dim, fields.bias(architecture.output_bias), layers)


def _mlps(fields: Fields, architecture: Architecture, layout: _Layout) -> Iterator[LinearShape]:
    sizes = architecture.mlp_sizes(fields)
    hidden, bias = hidden_size(fields), fields.bias(architecture.mlp_bias)
    kinds = (
        ("", sizes.dense, sizes.dense_layers),
        (f"{architecture.shared_expert}.", sizes.shared, sizes.shared_layers),
    )
    for prefix, total, layers in kinds:
        if total:
            size = layout.share(f"intermediate size of {prefix}down_proj", total)
            parts = [LinearShape(f"{prefix}{name}_proj", size, hidden, bias, layers) for name in ("gate", "up")]
            yield from layout.together(f"{prefix}gate_up_proj", parts)
            yield LinearShape(f"{prefix}down_proj", hidden, size, bias, layers)
