"""The hyperparameters of GGUF files that an architecture does not read, and what becomes of them.

A file is refused, by name, for one that other programs carry out and this architecture does not,
unless this table says why it changes no result (`HARMLESS`), or with which values it changes none
(`NEUTRAL`). A key that GGUF does not know is named in a warning. The table for config.json is
checkpoints/settings.py. Not here: reading them (hyperparameters.py, architectures/).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.process.foreign import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["HARMLESS", "NEUTRAL", "REFUSED", "is_known", "unknown_keys", "unread_problems"]


def _words(names: str) -> list[str]:
    return names.split()


def _each(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(_words(names), reason)


#: Why a key changes no result, whatever its value is.
HARMLESS: Final[Mapping[str, str]] = {
    **_each(
        "vocab_size feed_forward_length expert_feed_forward_length "
        "expert_shared_feed_forward_length expert_chunk_feed_forward_length expert_shared_count "
        "embedding_length embedding_length_out features_length leading_dense_block_count "
        "nextn_predict_layers ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank "
        "ssm.group_count time_mix_extra_dim time_decay_extra_dim attention.decay_lora_rank "
        "attention.iclr_lora_rank attention.value_residual_mix_lora_rank attention.gate_lora_rank "
        "decoder_block_count",
        "the shapes and names of the tensors say the same",
    ),
    **_each(
        "attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
        "attention.group_norm_epsilon attention.group_norm_groups",
        "it is for norms of another kind than the architecture has",
    ),
    **_each(
        "context_length rope.scaling.finetuned rope.scaling.original_context_length "
        "tensor_data_layout classifier.output_labels decoder_start_token_id "
        "pooling_type pooling_normalize",
        "it describes the model, or it matters to other tasks only",
    ),
    **_each(
        "n_deepstack_layers deepstack_mapping rope.dimension_sections",
        "it is for pictures; text has the same position in each section",
    ),
}

#: Values with which a key changes nothing. A number of zero is how many writers say "not used".
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(
        _words(
            "attention.sliding_window attn_logit_softcapping router_logit_softcapping "
            "final_logit_softcapping attention.clamp_kqv attention.max_alibi_bias "
            "attention.temperature_length attention.temperature_scale "
            "attention.shared_kv_layers attention.relative_buckets_count attention.scale "
            "expert_latent_length moe_latent_size rescale_every_n_layers "
            "embedding_length_per_layer_input attention.q_lora_rank attention.kv_lora_rank "
            "attention.key_length_mla attention.value_length_mla "
            "rope.scaling.yarn_log_multiplier swiglu_clamp_exp swiglu_clamp_shexp "
            "hyper_connection.count hash_layer_count attention.indexer.head_count "
            "attention.indexer.top_k token_shift_count shortconv.l_cache"
        ),
        (0,),
    ),
    **dict.fromkeys(
        _words(
            "logit_scale residual_scale embedding_scale expert_weights_scale "
            "expert_group_scale attention.output_scale attention.value_scale "
            "expert_group_count expert_group_used_count expert_gating_func moe_every_n_layers "
            "interleave_moe_layer_step rope.scale_linear rope.scaling.factor "
            "rope.scaling.alpha rope.scaling.attn_factor experts_per_group "
            "full_attention_interval num_loops"
        ),
        (0, 1),
    ),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.yarn_attn_factor": (1,),
    "swin_norm": (False,),
    "ssm.dt_b_c_rms": (False,),
    "norm_before_residual": (False,),
    "skip_loop_final_norm": (False,),
}

#: What other programs carry out for some architectures, beside the keys above: these have no value
#: that changes nothing, or one that depends on the other keys (`_follows`).
REFUSED: Final = frozenset(
    _words(
        "use_parallel_residual expert_weights_norm hidden_activation "
        "classifier.pooling_type attention.head_count attention.head_count_kv "
        "attention.key_length attention.value_length attention.causal "
        "attention.sliding_window_pattern attention.rope_pattern attention.key_length_swa "
        "attention.value_length_swa attention.recurrent_layers rope.dimension_count "
        "rope.dimension_count_swa rope.freq_base rope.freq_base_swa "
        "rope.scaling.yarn_ext_factor rope.scaling.yarn_beta_fast "
        "rope.scaling.yarn_beta_slow wkv.head_size block_count activation_sparsity_scale "
        "attention.output_group_count attention.output_lora_rank "
        "attention.compress_rope_freq_base attention.compress_ratios block_size"
    )
)
#: Groups of such keys, each of a part that no architecture here has.
PARTS: Final = (
    "activation.", "adapters.", "altup.", "attention.indexer.", "attn_res.", "convnext.", "dense_",
    "hrm.", "hyper_connection.", "kda.", "ple.", "posnet.", "shortconv.", "xielu.",
)  # fmt: skip
#: Settings of other models of the same file: of pictures, of sound, of stages.
OTHERS: Final = ("vision.", "audio.", "mm.", "encoder.")


def unread_problems(hp: Hyperparameters, *, causal: bool) -> Iterator[str]:
    """The keys that would change results and that nothing has read, each as a sentence.

    Args:
        hp: after the model was described.
        causal: whether it is a decoder.
    """
    for name, value in _unread(hp):
        if (
            is_known(name)
            and not _is_neutral(name, value)
            and not _follows(hp, name, value, causal=causal)
        ):
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            yield (
                f"{hp.architecture}.{name} is {short(plain)}, which is not carried out for a "
                f"model of the architecture {hp.architecture!r}: its results would be wrong"
            )


def unknown_keys(hp: Hyperparameters) -> list[str]:
    """The keys that nothing has read and that no program is known to read."""
    return [f"{hp.architecture}.{name}" for name, _ in _unread(hp) if not is_known(name)]


def is_known(name: str) -> bool:
    """Whether other programs carry out a key for some architecture."""
    return name in NEUTRAL or name in REFUSED or name.startswith(PARTS)


def _unread(hp: Hyperparameters) -> Iterator[tuple[str, Any]]:
    prefix = f"{hp.architecture}."
    for key, value in hp.metadata.items():
        name = key.removeprefix(prefix)
        if name == key or name in hp.read or name in HARMLESS or name.startswith(OTHERS):
            continue
        yield name, value


def _is_neutral(name: str, value: Any) -> bool:  # noqa: ANN401 as the file has it
    values = value.tolist() if isinstance(value, np.ndarray) else value
    each = values if isinstance(values, list) else [values]
    neutral = NEUTRAL.get(name, ())
    return all(any(x == y and isinstance(x, bool) == isinstance(y, bool) for y in neutral)
               for x in each)  # fmt: skip


def _follows(hp: Hyperparameters, name: str, value: Any, *, causal: bool) -> bool:  # noqa: ANN401
    """Whether a key says what follows from the others, or is for what the model does not have."""
    of = name.partition(".")[0]
    has_attention = "attention.head_count" in hp.read
    has_rope = "rope.freq_base" in hp.read
    if name == "attention.causal":
        return value is causal
    if of == "rope" and not has_rope:
        return True  # no rotary positions
    if of == "attention" and not has_attention:
        return True  # no attention
    if name == "attention.sliding_window":
        return bool(_is_whole(value) and value >= hp.integer("context_length", least=1))
    if name in ("attention.sliding_window_pattern", "attention.rope_pattern"):
        window = hp.get("attention.sliding_window", 0)
        return not window or not np.any(np.asarray(value))
    if name == "classifier.pooling_type":  # rank heads take the first token
        return bool(value == 2 or hp.get("pooling_type") != 4)
    if name == "attention.scale":
        return bool(_is_number(value) and math.isclose(value, _head(hp) ** -0.5, rel_tol=1e-4))
    heads = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
    if name in heads and "attention.kv_lora_rank" in hp.read:
        return True  # latent attention, whose shapes the other keys say
    if name in ("attention.key_length", "attention.value_length"):
        return bool(value == _head(hp))
    if name in ("attention.key_length_swa", "attention.value_length_swa"):
        return bool(value == hp.get(name.removesuffix("_swa"), _head(hp)))
    if name == "attention.head_count_kv":
        return _equal(value, hp.get("attention.head_count"))
    if name == "expert_used_count":
        return not hp.get("expert_count", 0)
    if name == "rope.freq_base_swa":
        return _equal(value, hp.get("rope.freq_base", 10000.0)) or not hp.get(
            "attention.sliding_window", 0
        )
    if name == "rope.dimension_count":
        return _equal(value, _head(hp))
    if name == "rope.dimension_count_swa":
        return _equal(value, hp.get("rope.dimension_count", _head(hp)))
    if name == "rope.scaling.yarn_ext_factor":  # -1: as usual for the way of scaling
        return bool(value in (-1, 1 if hp.get("rope.scaling.type") == "yarn" else 0))
    if name.startswith("rope.scaling.yarn_"):
        return bool(hp.get("rope.scaling.type") != "yarn")
    return False


def _head(hp: Hyperparameters) -> int:
    """Elements of a head, as most architectures have it."""
    heads = hp.each_layer("attention.head_count", 1, 1)[0] or 1
    return int(hp.get("attention.key_length") or hp.integer("embedding_length") // heads)


def _equal(value: Any, other: Any) -> bool:  # noqa: ANN401 as the file has it
    try:
        return bool(np.all(np.asarray(value) == np.asarray(other)))
    except (TypeError, ValueError):
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
