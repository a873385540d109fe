"""deci: Llama Nemotron (Super 49B, 51B), made of llama by a search that left parts out.

Layers differ in their heads of keys and the size of their net. Some have a matrix instead of
attention, or a net alone. Not here: layers that have neither (Ultra 253B).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.blocks import Alone, Attention, FeedForward, OneMatrix
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, scaled_frequencies
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import description_of, divides, head_length, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: a layer has no net.
    """
    layers = layers_of(hp)
    heads = hp.each_layer("attention.head_count", layers)
    kv_heads = hp.each_layer("attention.head_count_kv", layers)
    inner = hp.each_layer("feed_forward_length", layers)
    if 0 in inner:
        raise ModelError(
            f"deci.feed_forward_length is 0 in layer {inner.index(0)}: layers without a net are "
            "not supported"
        )
    rope, head = rope_of(hp, "normal"), head_length(hp)
    value = hp.integer("attention.value_length", head, least=1)
    found = []
    for n, of_keys in zip(heads, kv_heads, strict=True):
        if not n:
            found.append(Layer(Alone(FeedForward()), None, before_mixer="ffn_norm"))
        elif not of_keys:
            found.append(Layer(Alone(OneMatrix("attn_output")), FeedForward()))
        else:
            divides(hp, "attention.head_count_kv", of_keys, "attention.head_count", n)
            found.append(Layer(Attention(n, of_keys, head, value, rope), FeedForward()))
    return description_of(hp, found)


def _parts(config: Config, part: str) -> list[dict[str, Any]]:
    """What config.json says of the attention, or of the net ("ffn"), of each layer.

    Raises:
        ModelError: not one for each layer; something that is not carried out.
    """
    told, layers = config.need("block_configs"), int(config.need("num_hidden_layers"))
    if len(told) != layers:
        raise ModelError(
            f"config.json has {len(told)} block_configs, but num_hidden_layers = {layers}"
        )
    found: list[dict[str, Any]] = [x[part] for x in told]
    unknown = ["sparsify", "window_length", "num_sink_tokens"]
    unknown += ["replace_with_linear"] if part == "ffn" else []
    for i, of in enumerate(found):
        for name in unknown:
            if of.get(name):
                raise ModelError(
                    f"config.json has {name} = {of[name]!r} in block_configs, layer {i}, which is "
                    "not carried out"
                )
    return found


def _heads(config: Config) -> list[int]:
    """Heads of queries of each layer; layers without attention have 0."""
    n = int(config.need("num_attention_heads"))
    return [
        n if of.get("n_heads_in_group") or of.get("replace_with_linear") else 0
        for of in _parts(config, "attention")
    ]


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer; layers without them have 0."""
    n = int(config.need("num_attention_heads"))
    groups = [of.get("n_heads_in_group") for of in _parts(config, "attention")]
    return [n // int(group) if group else 0 for group in groups]


def _inner(config: Config) -> list[int]:
    """Elements between the matrices of each layer's net: two thirds of a multiple of the width.

    It is rounded up to a multiple of 256.
    """
    width = int(config.need("hidden_size"))
    shares = [0.0 if of.get("no_op") else of.get("ffn_mult") for of in _parts(config, "ffn")]
    return [-(-int(2 * (x or 0.0) * width / 3) // 256) * 256 for x in shares]


def _turned(part: str) -> Recipe:
    """Rows of heads for rotary positions on pairs of neighbours, not on halves."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        pairs = x.reshape(-1, 2, config.head // 2, *x.shape[1:])
        return pairs.swapaxes(1, 2).reshape(x.shape)

    return Recipe((f"layers.{{i}}.self_attn.{part}_proj",), make, lambda shapes, _: shapes[0])


CHECKPOINT: Final = Checkpoint(
    ("nemotron-nas",),
    DECODER | {
        "blk.{i}.attn_q": _turned("q"),
        "blk.{i}.attn_k": _turned("k"),
        "blk.{i}.attn_output": ("layers.{i}.self_attn.o_proj", "layers.{i}.self_attn.linear_attn"),
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS | {
        "attention.head_count": _heads,
        "attention.head_count_kv": _kv_heads,
        "attention.key_length": lambda config: config.head,
        "attention.value_length": lambda config: config.head,
        "feed_forward_length": _inner,
    },
    expects={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("deci",), describe, (CHECKPOINT,))
