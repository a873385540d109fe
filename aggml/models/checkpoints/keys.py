"""The names that most folders have for the tensors and keys of text models and encoders.

An architecture takes these maps and replaces the names that differ. Here: the maps, and settings of
rotary positions. Not here: the recipes in them (recipes.py), one architecture's names
(architectures/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.checkpoints.recipes import (
    Key,
    Rule,
    add_one,
    compute,
    permute_heads,
    reshape,
    stack,
)
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Recipe

__all__ = [
    "CENTRED_KEYS",
    "DECODER",
    "DECODER_KEYS",
    "ENCODER_KEYS",
    "EXPERTS",
    "EXPERT_KEYS",
    "HEAD_NORMS",
    "NEIGHBOURS",
    "PICTURES",
    "UNBOUNDED",
    "UNUSED_WINDOW",
    "Number",
    "decay_rates",
    "gemma_norms",
    "kernels",
    "longrope_factors",
    "number",
    "rope_keys",
    "rope_sections",
    "same_as_heads",
    "scaled_frequencies",
    "steps_without_limit",
    "window_of_folder",
    "window_of_some_layers",
    "window_pattern",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """Reads a value as a float, even if config.json writes it as an integer.

    Attributes:
        names: under one of which the value is.
        default: if there is none.
    """

    names: tuple[str, ...]
    default: float | None

    def __call__(self, config: Config) -> float | None:
        """The value in a config.json."""
        found = config.get(*self.names, default=self.default)
        return None if found is None else float(found)


def number(*names: str, default: float | None = None) -> Number:
    """A value as a float, even if config.json writes it as an integer."""
    return Number(names, default)


#: For models that have a window only if use_sliding_window is true, which is refused.
UNUSED_WINDOW: Final[dict[str, str]] = dict.fromkeys(
    ("sliding_window", "max_window_layers"), "use_sliding_window is false, so there is no window"
)


def _rotary_size(config: Config) -> int:
    """How many elements of each head have rotary positions."""
    share = config.rope().get("partial_rotary_factor")
    if share is None:
        share = config.get(
            "partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=1.0
        )
    return int(config.head * share)


DECODER_KEYS: Final[dict[str, Key]] = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads"),
    "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": _rotary_size,
    "vocab_size": "vocab_size",
}
#: For models whose norms subtract the mean (LayerNorm).
CENTRED_KEYS: Final[dict[str, Key]] = {
    **DECODER_KEYS,
    "attention.layer_norm_rms_epsilon": lambda _: None,
    "attention.layer_norm_epsilon": number(
        "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=1e-5
    ),
}
EXPERT_KEYS: Final[dict[str, Key]] = {
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
ENCODER_KEYS: Final[dict[str, Key]] = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd", "dim"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers"),
    "feed_forward_length": ("intermediate_size", "n_inner", "hidden_dim"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.layer_norm_epsilon": number(
        "layer_norm_eps", "layer_norm_epsilon", "norm_eps", default=1e-12
    ),
    "attention.causal": lambda _: False,
    "vocab_size": "vocab_size",
}

#: Names of norms, attention and feed-forward net, as llama has them.
DECODER: Final[dict[str, Rule]] = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "cls.output": "score",  # of classes that end with ForSequenceClassification
    "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
    "blk.{i}.attn_q": "layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_gate": "layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "layers.{i}.mlp.down_proj",
}
HEAD_NORMS: Final[dict[str, Rule]] = {
    "blk.{i}.attn_q_norm": "layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "layers.{i}.self_attn.k_norm",
}
EXPERTS: Final[dict[str, Rule]] = {
    "blk.{i}.ffn_gate_inp": "layers.{i}.mlp.gate",
    "blk.{i}.ffn_gate_exps": stack("layers.{i}.mlp.experts.{e}.gate_proj"),
    "blk.{i}.ffn_up_exps": stack("layers.{i}.mlp.experts.{e}.up_proj"),
    "blk.{i}.ffn_down_exps": stack("layers.{i}.mlp.experts.{e}.down_proj"),
}
#: For architectures with rotary positions on pairs of neighbours: folders have them on halves.
NEIGHBOURS: Final[dict[str, Rule]] = {
    "blk.{i}.attn_q": permute_heads("layers.{i}.self_attn.q_proj"),
    "blk.{i}.attn_k": permute_heads("layers.{i}.self_attn.k_proj", "num_key_value_heads"),
}


#: Models whose config.json may have a base of the frequencies for each layer.
BASES_OF_LAYERS: Final = ("step3p5", "step3p7")


def rope_keys(config: Config, tensors: Mapping[str, Rule]) -> dict[str, Any]:
    """GGUF's keys for the bases of the frequencies and for the extension of the context.

    Args:
        config: of the folder.
        tensors: the architecture's map; it tells which ways of extending the context it has.

    Raises:
        ModelError: an unknown way of extending the context.
    """
    _refuse_rope(config, tensors)
    told = config.values.get("rope_theta")
    if isinstance(told, list) and config.model_type not in BASES_OF_LAYERS:
        raise ModelError(
            f"config.json has rope_theta = {told!r:.60}, expected was a finite number for a "
            f"{config.model_type!r} model"
        )
    rope, found = config.rope(), {}
    base = rope.get("rope_theta")
    if base is not None:
        found["rope.freq_base"] = float(base)
    # only a look: whether the window is carried out is for the architecture to say
    has_window = any(config.values.get(x) for x in ("sliding_window", "local_attention"))
    near = config.rope("sliding_attention") if has_window else {}
    local = config.get("rope_local_base_freq", "local_rope_theta", default=near.get("rope_theta"))
    if local is not None and ("rope_local_base_freq" in config.values or near != rope):
        found["rope.freq_base_swa"] = float(local)
    kind = rope.get("rope_type", "default")
    # llama3: by `scaled_frequencies`; proportional: by a tensor of the architecture
    if kind in ("default", "llama3", "proportional", "dynamic", "mrope", None):
        return found
    if kind not in ("linear", "yarn", "longrope", "su"):
        raise ModelError(
            f"config.json has the rope_type {kind!r}; known are default, dynamic, linear, llama3, "
            "longrope, yarn"
        )
    if kind in ("longrope", "su"):
        return found | _long_rope_keys(config, rope)
    found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        context = rope.get("original_max_position_embeddings")
        found["rope.scaling.original_context_length"] = int(
            context or config.need("max_position_embeddings")
        )
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                found[f"rope.scaling.yarn_{name}"] = float(rope[name])
        told = rope.get("attention_factor")
        if told is not None:  # the graph itself multiplies by the usual factor
            usual = 0.1 * math.log(float(rope["factor"])) + 1
            found["rope.scaling.attn_factor"] = float(told) / usual
    return found


def _refuse_rope(config: Config, tensors: Mapping[str, Rule]) -> None:
    """Refuse settings of rotary positions that this architecture does not carry out.

    Raises:
        ModelError: for the first one.
    """
    for name in ("rope_parameters", "rope_scaling"):
        for part, value in config.get(name, default={}).items():
            if isinstance(value, dict) and part not in ("full_attention", "sliding_attention"):
                raise ModelError(
                    f"config.json has {name} for layers of the type {part!r}, which is not known"
                )
    rope = config.rope()
    kind = rope.get("rope_type")
    factors = dict.fromkeys(("llama3", "proportional"), "rope_freqs.weight")
    factors |= dict.fromkeys(("longrope", "su"), "rope_factors_long.weight")
    if kind in factors and factors[kind] not in tensors:
        raise ModelError(
            f"config.json has the rope_type {kind!r}, which is not carried out for a "
            f"{config.model_type!r} model"
        )
    latent = "blk.{i}.attn_kv_a_mqa" in tensors
    carried = latent or config.model_type == "ministral3"
    if not carried or rope.get("mscale") != rope.get("mscale_all_dim"):
        for name in ("mscale", "mscale_all_dim"):
            if rope.get(name) is not None:
                raise ModelError(
                    f"config.json has {name} = {rope[name]} among its settings of rotary "
                    "positions, which is not carried out"
                )
    sharpened = config.model_type in ("ministral3", "mistral4")
    if rope.get("llama_4_scaling_beta") is not None and not sharpened:
        raise ModelError(
            "config.json has llama_4_scaling_beta among its settings of rotary positions, which is "
            "not carried out"
        )
    stretched = config.model_type in ("hunyuan_v1_dense", "hunyuan_v1_moe")
    if rope.get("alpha") is not None and not stretched:
        raise ModelError(
            f"config.json has alpha = {rope['alpha']} among its settings of rotary positions, "
            "which is not carried out"
        )
    # YaRN's bounds are rounded to whole dimensions, as in llama.cpp, which gpt-oss is run with.
    if rope.get("truncate") not in (None, True) and config.model_type != "gpt_oss":
        raise ModelError("config.json has truncate = false for YaRN, which is not carried out")


def _long_rope_keys(config: Config, rope: dict[str, Any]) -> dict[str, Any]:
    whole = int(config.need("max_position_embeddings"))
    first = int(
        config.get("original_max_position_embeddings")
        or rope.get("original_max_position_embeddings")
        or whole
    )
    factor = rope.get("attention_factor")
    told = {rope[x] for x in ("short_mscale", "long_mscale") if rope.get(x) is not None}
    if told:
        if len(told) > 1 or config.model_type != "phimoe":
            raise ModelError(
                f"config.json has short_mscale and long_mscale = {sorted(told)} for a "
                f"{config.model_type!r} model; only equal ones of phimoe are carried out"
            )
        (factor,) = told
    if factor is None:
        scale = rope.get("factor") or whole / first
        factor = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(first))
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": first,
        "rope.scaling.attn_factor": float(factor),
    }


def _llama3_frequencies(config: Config) -> Array | None:
    """The factors by which frequencies are divided, of llama 3.1 and later; else None."""
    rope = config.rope()
    if rope.get("rope_type") != "llama3":
        return None
    half = _rotary_size(config) // 2
    own = float(rope.get("rope_theta", 10000.0)) ** -(np.arange(half, dtype=np.float64) / half)
    length = 2 * math.pi / own
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    context, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    smooth = np.clip((context / length - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


scaled_frequencies: Final = compute(_llama3_frequencies)


def rope_sections(config: Config) -> list[int] | None:
    """How many rotated pairs belong to time, rows and columns of pictures; None: it does not say.

    GGUF has a fourth number.
    """
    told = config.rope().get("mrope_section")
    return None if told is None else [*map(int, told), *[0] * (4 - len(told))]


def _deepstack(config: Config) -> int | None:
    """How many first layers get something more of the positions of pictures; None: none."""
    told = config.get("vision_config", default={}).get("deepstack_visual_indexes")
    return len(told) if told else None


#: Keys of the text of models that see.
PICTURES: Final[dict[str, Key]] = {
    "rope.dimension_sections": rope_sections,
    "n_deepstack_layers": _deepstack,
}


def window_of_folder(*, default: int | None = None) -> Callable[[Config], int | None]:
    """The window of all layers, in positions; None: there is none.

    Args:
        default: of folders that do not have the setting at all, as transformers has it.
    """

    def read(config: Config) -> int | None:
        if "sliding_window" not in config.values:
            return default
        found = config.get("sliding_window")
        return None if found is None else int(found)

    return read


def window_of_some_layers(config: Config) -> int | None:
    """The window of the layers that have one, in positions; None: none has one by its type."""
    kinds = config.get("layer_types", default=())
    found = config.get("sliding_window")
    return None if found is None or "sliding_attention" not in kinds else int(found)


def window_pattern(period: int) -> Callable[[Config], Any]:
    """Which layers see a window; None if it is all but every ``period``-th, the usual pattern."""

    def read(config: Config) -> list[bool] | None:
        kinds = config.get("layer_types")
        layers = int(config.need("num_hidden_layers"))
        told = config.get("sliding_window_pattern", "_sliding_window_pattern", default=period)
        if kinds is None:
            if told == period or config.values.get("sliding_window") is None:
                return None
            if not isinstance(told, int) or told < 1:
                raise ModelError(
                    f"config.json has sliding_window_pattern = {told!r}, expected was a number"
                )
            return [i % told < told - 1 for i in range(layers)]
        known = ("sliding_attention", "full_attention")
        if len(kinds) != layers or not set(kinds) <= set(known):
            raise ModelError(
                f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
                f"{' or '.join(known)} for each"
            )
        near = [kind == "sliding_attention" for kind in kinds]
        usual = [i % period < period - 1 for i in range(len(near))]
        return None if near == usual else near

    return read


def longrope_factors(name: str) -> Recipe:
    """The factors by which frequencies are divided, of phi3: "short_factor" or "long_factor"."""

    def read(config: Config) -> Array | None:
        found = config.rope().get(name)
        return None if found is None else np.array(found, np.float32)

    return compute(read)


def gemma_norms() -> dict[str, Rule]:
    """The norms of gemma, four in each layer; the folder has their difference from 1."""
    names = {
        "output_norm": "norm",
        "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_norm": "layers.{i}.pre_feedforward_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
    }
    return {name: add_one(source) for name, source in names.items()}


#: The context of recurrent models whose config.json gives none: llama.cpp writes this number.
UNBOUNDED: Final = 1 << 20


def decay_rates(source: str, *, columns: bool = False) -> Recipe:
    """The rate of decay of each head; the folder has the logarithms of the negated rates.

    Args:
        source: name in the folder.
        columns: whether each rate is a row of its own, as in Mamba 2.
    """
    return reshape(
        source,
        lambda shapes, _: (shapes[0][0], 1) if columns else shapes[0],
        lambda x: -np.exp(x.astype(np.float32)),
    )


def kernels(source: str) -> Recipe:
    """Kernels [channels, 1, tokens] as [channels, tokens]; a bias as it is."""
    return reshape(source, lambda shapes, _: tuple(n for n in shapes[0] if n != 1))


def steps_without_limit(config: Config) -> None:
    """Refuses limits of a scan's time steps, because GGUF has no key for them.

    Raises:
        ModelError: config.json has such limits.
    """
    told = config.get("time_step_limit", default=[0.0, math.inf])
    # newer files write infinity as an object, because JSON does not have it
    known = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], [0.0, "Infinity"])
    if told not in known:
        raise ModelError(
            f"config.json has time_step_limit = {told!r:.60}; only [0.0, inf] is supported"
        )


def same_as_heads(large: int) -> Callable[[Config], None]:
    """Refuses an unusual scale of the products of queries and keys: GGUF has no key for it.

    Usual is the length of a head; in the model with ``large`` layers, the width divided by the
    number of heads.
    """

    def read(config: Config) -> None:
        told = config.get("query_pre_attn_scalar", default=256)  # as transformers has it
        of_large = int(config.need("hidden_size")) // int(config.need("num_attention_heads"))
        usual = of_large if config.get("num_hidden_layers") == large else config.head
        if told != usual:
            raise ModelError(
                f"config.json has query_pre_attn_scalar = {told}; only {usual} is supported"
            )

    return read
