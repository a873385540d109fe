"""The settings of config.json: what type each has, and which of them may stay unread.

A folder is refused, by name, for a setting that nothing here reads, unless this table says why the
setting changes no result (`HARMLESS`), or with which values it changes none (`NEUTRAL`). Not here:
reading settings (config.py), the ones that an architecture carries out (architectures/).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from aggml.models.errors import ModelError
from aggml.process.foreign import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "HARMLESS", "NEUTRAL", "OF_SEVERAL_TYPES", "TYPES", "check_rope", "check_types",
    "refuse_unread",
]  # fmt: skip


def _words(names: str) -> list[str]:
    return names.split()


def _each(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(_words(names), reason)


#: Why a setting changes no result, whatever its value is.
HARMLESS: Final[dict[str, str]] = {
    **_each(
        "attention_dropout attention_probs_dropout_prob hidden_dropout_prob hidden_dropout "
        "resid_pdrop embd_pdrop attn_pdrop residual_dropout embedding_dropout mlp_dropout "
        "classifier_dropout dropout qa_dropout seq_classif_dropout summary_first_dropout "
        "activation_dropout encoder_layerdrop decoder_layerdrop layerdrop attention_dropout_prob "
        "ffn_dropout emb_dropout",
        "dropout happens in training only",
    ),
    **_each(
        "initializer_range initializer_cutoff_factor initializer_factor init_std "
        "rescale_prenorm_residual time_step_min time_step_max time_step_floor time_step_rank "
        "sinusoidal_pos_embds",
        "it says how new weights are drawn",
    ),
    **_each(
        "router_aux_loss_coef router_jitter_noise router_z_loss_coef output_router_logits "
        "aux_loss_alpha seq_aux sparse_prediction sparse_pred_ignore_index apply_spec_augment "
        "mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob "
        "mask_feature_length mask_feature_min_masks problem_type num_labels label2id "
        "gradient_checkpointing fuse_cross_entropy z_loss ep_size",
        "it is for training",
    ),
    **_each(
        "_name_or_path transformers_version torch_dtype dtype architectures auto_map "
        "finetuning_task task_specific_params language license tags base_model_name "
        "unsloth_version unsloth_fixed transformers.js_config _commit_hash "
        "_attn_implementation _attn_implementation_autoset attn_implementation model_type "
        "tokenizer_class processor_class custom_pipelines sentence_transformers",
        "it says where the folder comes from",
    ),
    **_each(
        "use_cache pretraining_tp deterministic_flash_attn reference_compile "
        "chunk_size_feed_forward output_attentions output_hidden_states return_dict torchscript "
        "use_bfloat16 use_return_dict reorder_and_upcast_attn residual_in_fp32 chunk_size "
        "mamba_chunk_size fused_ops use_mambapy use_flash_attn use_memory_efficient_attention "
        "unpad_inputs repad_logits_with_grad gated_mlp fuse_norm fuse_swiglu fused_mlp "
        "fused_bias_fc fused_dropout_add_ln use_xentropy use_rms_norm_kernel cache_implementation "
        "attention_softmax_in_fp32 softmax_in_fp32",
        "it says how results are computed, not which",
    ),
    **_each(
        "temperature top_k top_p typical_p num_beams num_beam_groups num_return_sequences "
        "max_length min_length max_new_tokens do_sample early_stopping repetition_penalty "
        "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
        "diversity_penalty exponential_decay_length_penalty remove_invalid_values "
        "return_dict_in_generate output_scores begin_suppress_tokens suppress_tokens "
        "forced_bos_token_id forced_eos_token_id forced_decoder_ids decoder_start_token_id prefix "
        "max_initial_timestamp_index",
        "the caller says how text is drawn",
    ),
    **_each(
        "bos_token_id eos_token_id pad_token_id cls_token_id sep_token_id mask_token_id "
        "unk_token_id eod_token_id sep_token im_start_id im_end_id",
        "the vocabulary says which tokens are special",
    ),
    **_each(
        "vision_config vision_feature_layer image_token_index image_token_id boi_token_index "
        "eoi_token_index mm_tokens_per_image audio_config text_config projector_hidden_act "
        "vision_start_token_id vision_end_token_id vision_token_id video_token_id "
        "classifier_proj_size median_filter_width",
        "pictures and alignments are not computed",
    ),
    **_each(
        "summary_type summary_use_proj summary_activation summary_proj_to_labels id2label "
        "classifier_bias decoder_bias",
        "it describes a head, whose tensors say whether it is used",
    ),
    **_each(
        "type_vocab_size qk_head_dim mamba_d_head mamba_conv_bias use_conv_bias norm_bias "
        "attention_out_bias mlp_bias qkv_bias use_qkv_bias attention_bias use_bias encoder_ffn_dim "
        "num_nextn_predict_layers mamba_expand expand n_ctx is_hybrid_model head_dim "
        "num_key_value_heads intermediate_size moe_intermediate_size "
        "shared_expert_intermediate_size shared_intermediate_size num_experts num_local_experts",
        "the shapes and names of the tensors say the same",
    ),
}  # fmt: skip

HARMLESS["original_max_position_embeddings"] = "it matters only if the context was extended"

#: Values with which an unread setting changes nothing; None (null) always counts as not given.
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "sliding_window": (0,),
    "use_sliding_window": (False,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_weighted_layer_sum": (False,),
    "pruned_heads": ({},),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "qk_layernorm": (False,),
    "position_embedding_type": ("absolute", "rope"),
    "rope_interleaved": (False,),
    "classifier_pooling": ("cls",),
    "classifier_activation": ("gelu",),
    "parallel_attn": (False,),
    "alibi": (False,),
    "tie_word_embeddings": (False, True),
    "hidden_act": ("silu",),
    "n_shared_experts": (0,),
    "num_experts_per_tok": (0, 1),
    "partial_rotary_factor": (1.0,),
}

#: What each setting must be: a whole number from 1 or 0 on, a number, true or false, a text, a list
#: or an object. Every setting may be null.
_SIZES: Final = _words(
    "hidden_size num_hidden_layers num_attention_heads n_embd n_layer n_head n_positions dim "
    "n_layers n_heads hidden_dim max_position_embeddings vocab_size head_dim "
    "num_key_value_heads kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
    "linear_num_value_heads linear_head_dim linear_num_heads model_max_length "
    "attn_layer_period dim_model_base "
    "full_attention_interval state_size num_heads n_groups conv_kernel "
    "expand mamba_d_conv mamba_d_state mamba_n_heads mamba_n_groups mamba_expand mamba_d_head "
    "d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads "
    "max_source_positions max_target_positions num_mel_bins original_max_position_embeddings "
    "decay_low_rank_dim a_low_rank_dim v_low_rank_dim gate_low_rank_dim "
    "global_attn_every_n_layers "
    "attention_chunk_size conv_L_cache global_head_dim mamba_d_ssm mamba_head_dim "
    "mamba_num_heads num_layers num_decoder_layers ssm_state_size block_multiple_of "
    "interleave_moe_layer_step num_global_key_value_heads moe_layer_interval altup_num_inputs "
    "max_sequence_length num_attention_groups num_sliding_attention_heads share_expert_dim "
    "prefix_dense_intermediate_size model_dim num_transformer_layers max_context_length "
    "ffn_dim_divisor "
    "max_seq_len seq_length n_embed swa_num_key_value_heads index_n_heads index_head_dim "
    "index_block_size index_topk_blocks dense_intermediate_size "
    "vocab_size_per_layer_input n_head_kv ffn_hidden_size num_ln_in_parallel_attn"
)
_COUNTS: Final = _words(
    "n_inner sliding_window local_attention num_experts num_local_experts "
    "num_experts_per_tok n_routed_experts n_shared_experts moe_intermediate_size "
    "shared_expert_intermediate_size shared_intermediate_size first_k_dense_replace q_lora_rank "
    "attn_layer_offset "
    "n_group topk_group decoder_ffn_dim encoder_ffn_dim type_vocab_size decoder_sparse_step "
    "max_window_layers no_rope_layer_interval pad_token_id bos_token_id "
    "hidden_size_per_layer_input intermediate_size_mlp block_ff_dim num_kv_shared_layers "
    "num_dense_layers moe_num_experts moe_num_shared_experts moe_layer_start_index "
    "moe_layer_num_skipped moe_shared_expert_intermediate_size top_k_experts moe_k "
    "moe_every_n_layers moe_latent_size num_nextn_predict_layers num_shared_experts "
    "num_experts_per_token num_expert_group "
    "altup_active_idx index_local_blocks sliding_window_size moe_top_k"
)
#: Counts that may differ from layer to layer.
_EACH_COUNTS: Final = _words("intermediate_size")
_NUMBERS: Final = _words(
    "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps "
    "rotary_emb_base rope_local_base_freq global_rope_theta local_rope_theta "
    "partial_rotary_factor rotary_pct rotary_emb_fraction embedding_multiplier "
    "residual_multiplier attention_multiplier logits_scaling routed_scaling_factor "
    "attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar swiglu_limit "
    "swiglu_alpha "
    "attention_in_multiplier attention_out_multiplier key_multiplier lm_head_multiplier "
    "ssm_in_multiplier ssm_out_multiplier attn_scale floor_scale logit_scale "
    "block_ffn_dim_multiplier route_scale router_jitter_noise moe_routed_scaling_factor "
    "moe_router_logit_softcapping scale_emb scale_depth clip_qkv expansion_ratio "
    "attention_value_scale swa_rope_theta layernorm_epsilon moe_router_scaling_factor "
    "rope_freq_constant router_scaling_factor"
)
_FLAGS: Final = _words(
    "tie_word_embeddings attention_bias attention_out_bias mlp_bias qkv_bias use_qkv_bias "
    "use_bias use_sliding_window use_parallel_residual qk_layernorm norm_topk_prob is_decoder "
    "add_cross_attention scale_attn_weights scale_attn_by_inverse_layer_idx rope_interleave "
    "mamba_proj_bias mamba_conv_bias use_conv_bias norm_first scale_embedding norm_bias "
    "add_classification_head attn_temperature_tuning block_auto_adjust_ff_dim conv_bias "
    "enable_moe_block mamba_norm_before_gate mamba_rms_norm mamba_use_mlp "
    "position_embedding_xdrope projectors_bias use_cla use_double_wide_mlp use_expert_bias "
    "use_mixed_mlp_moe use_mla use_qk_norm use_rotary_pos_emb mup_enabled route_norm "
    "mla_use_nope moe_renormalize use_grouped_topk "
    "altup_correct_scale new_decoder_architecture multi_query alibi parallel_attn bias "
    "moe_apply_router_weight_on_input use_gemma_norm apply_residual_connection_post_layernorm "
    "ffn_with_glu moe_router_enable_expert_bias moe_router_use_sigmoid norm_expert_weight "
    "normalize_qk_projections qk_norm share_input_output_layers use_head_wise_attn_gate "
    "use_moe_router_bias"
)
_TEXTS: Final = _words(
    "model_type hidden_act hidden_activation activation activation_function "
    "position_embedding_type topk_method scoring_func feed_forward_type attn_mode "
    "moe_router_activation_func "
    "activation_fn_name expert_selection_fn moe_router_activation normalization_layer_name "
    "shared_expert_combination_strategy qk_norm_type hybrid_override_pattern mamba_hidden_act "
    "mlp_hidden_act norm_type score_func"
)
_LISTS: Final = _words(
    "layer_types layers_block_type architectures no_rope_layers mlp_only_layers attn_layer_indices "
    "moe_layers time_step_limit mlp_layer_types lora_adaptations layer_rope_theta "
    "num_attention_heads_per_layer hybrid_layer_pattern ffn_multipliers num_query_heads "
    "is_moe_layer"
)
_NUMBER_LISTS: Final = _words("mlp_multipliers ssm_multipliers partial_rotary_factors")
_OBJECTS: Final = _words(
    "rope_parameters rope_scaling text_config quantization_config id2label per_layer_config "
    "vision_config linear_attn_config sparse_attention_config attn_config ffn_config "
    "attention_other_setting"
)
#: What has several types, and is checked where it is read.
OF_SEVERAL_TYPES: Final = _words(
    "moe_layer_end_index moe_topk num_shared_expert time_step_rank sliding_window_pattern "
    "_sliding_window_pattern use_bidirectional_attention activation_sparsity_pattern "
    "mamba_dt_rank moe_layer_freq num_kv_heads gating moe_layers_enum share_expert_dims "
    "swiglu_limits swiglu_limits_shared"
)

_MOST: Final = (1 << 31) - 1


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _each_whole(value: object) -> bool:
    return all(_whole(x, 0) for x in (value if isinstance(value, list) else [value]))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


TYPES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(_SIZES, ("a whole number from 1 on", lambda x: _whole(x, 1))),
    **dict.fromkeys(_COUNTS, ("a whole number from 0 on", lambda x: _whole(x, 0))),
    **dict.fromkeys(
        _EACH_COUNTS, ("a whole number from 0 on, or a list of one for each layer", _each_whole)
    ),
    **dict.fromkeys(_NUMBERS, ("a finite number", _number)),
    **dict.fromkeys(
        ("rope_theta",), ("a finite number", lambda x: isinstance(x, list) or _number(x))
    ),
    **dict.fromkeys(_FLAGS, ("true or false", lambda x: isinstance(x, bool))),
    **dict.fromkeys(_TEXTS, ("a text", lambda x: isinstance(x, str))),
    **dict.fromkeys(_LISTS, ("a list", lambda x: isinstance(x, list))),
    **dict.fromkeys(
        _NUMBER_LISTS,
        ("a list of finite numbers", lambda x: isinstance(x, list) and all(map(_number, x))),
    ),
    **dict.fromkeys(_OBJECTS, ("an object", lambda x: isinstance(x, dict))),
}


def check_types(values: Mapping[str, Any]) -> None:
    """Refuse a setting that is of another type than it must be.

    Raises:
        ModelError: for the first one.
    """
    for name, value in values.items():
        told = TYPES.get(name)
        if value is not None and told is not None and not told[1](value):
            raise ModelError(f"config.json has {name} = {short(value)}, expected was {told[0]}")


#: The settings of rotary positions that are carried out.
_ROPE_NUMBERS: Final = _words(
    "rope_theta factor low_freq_factor high_freq_factor beta_fast beta_slow attention_factor "
    "mscale mscale_all_dim short_mscale long_mscale alpha llama_4_scaling_beta "
    "partial_rotary_factor original_max_position_embeddings"
)
_ROPE_LISTS: Final = ("short_factor", "long_factor", "mrope_section")
_ROPE_OTHERS: Final = (
    "rope_type", "type",
    "finetuned",  # says that the model was trained so
    "truncate",  # see `refuse_rope` of keys.py
    "mrope_interleaved",  # text has the same position in all sections
)  # fmt: skip


def check_rope(rope: Mapping[str, Any]) -> None:
    """Refuse settings of rotary positions that are not known, or of a wrong type.

    Raises:
        ModelError: for the first one.
    """
    for name, value in rope.items():
        place = f"config.json has {name} = {short(value)} among its settings of rotary positions"
        if value is None:
            continue
        if name in _ROPE_NUMBERS:
            right = _number(value) and value >= 0
            if not right or (name in ("rope_theta", "factor", "alpha") and value == 0):
                raise ModelError(f"{place}, expected was a number above 0")
        elif name in _ROPE_LISTS:
            if not (isinstance(value, list) and value and all(_number(x) and x > 0 for x in value)):
                raise ModelError(f"{place}, expected was a list of numbers above 0")
        elif name in ("rope_type", "type"):
            if not isinstance(value, str):
                raise ModelError(f"{place}, expected was a text")
        elif name not in _ROPE_OTHERS:
            raise ModelError(f"{place}, which is not carried out: its results would be wrong")


def refuse_unread(
    values: Mapping[str, Any], read: set[str], harmless: Mapping[str, str], architecture: str
) -> None:
    """Refuse a setting that would change results and that nothing has read.

    Args:
        values: of config.json.
        read: names of the settings that were read.
        harmless: further settings that may stay unread, with reasons.
        architecture: in GGUF, for the message.

    Raises:
        ModelError: for the first one.
    """
    for name in _unread(values, read):
        if name in harmless or name in HARMLESS:
            continue
        value = values[name]
        if any(type(value) is type(x) and value == x for x in NEUTRAL.get(name, ())):
            continue
        usual = ["full_attention"] * (values.get("num_hidden_layers") or 0)
        if name == "layer_types" and value == usual:
            continue
        raise ModelError(
            f"config.json has {name} = {short(value)}, which is not carried out for a model of "
            f"the architecture {architecture!r}: its results would be wrong"
        )


def _unread(values: Mapping[str, Any], read: set[str]) -> Iterator[str]:
    return (name for name, value in values.items() if name not in read and value is not None)
