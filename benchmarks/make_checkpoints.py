"""Makes tests/models/checkpoints.json and reference_checkpoints.npz.

Folders as transformers writes them, and the logits and vectors that transformers and llama.cpp
compute of random weights in them.

Run by hand (``python -m benchmarks.make_checkpoints``, or with the names of some cases) where
torch, transformers and llama-cpp-python are installed, when the cases below or
tests/models/random_folders.py change. Not here: the comparison (tests/models/test_folders.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session
from benchmarks.make_logits import vectors
from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests" / "models"
FOLLOWED: Final = 24  # greedy tokens that are compared
#: Cases for which llama.cpp differs from transformers: it rates a group of experts by its two best,
#: also for DeepSeek-V2, where the best one counts. It has no windows of these architectures, and of
#: phimoe neither the norms nor the weights of experts. Of mellum it takes one base of positions.
OTHERWISE: Final = (
    "phimoe", "phimoe-short", "deepseek2-groups", "mistral-window", "mixtral-window", "phi3-window",
    "starcoder2-window", "mellum-two-bases",
)  # fmt: skip
#: Cases that llama.cpp cannot read: its sizes of gemma3n's thin maps and embeddings are fixed.
UNREAD: Final = ("gemma3n", "gemma3n-active")
SMALL: Final = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS: Final = {
    "moe_intermediate_size": 32, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 96,
}  # fmt: skip
_LLAMA3: Final = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
_YARN: Final = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}  # fmt: skip
_LONG: Final = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
}  # fmt: skip
LATENT: Final = {
    **EXPERTS, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "num_key_value_heads": 4, "num_hidden_layers": 3,
}  # fmt: skip
#: Layers that see all positions, and others that see a window.
_TWO_KINDS: Final = {
    **EXPERTS, "head_dim": 16, "num_hidden_layers": 5, "sliding_window": 12,
    "layer_types": [f"{'sliding' if i % 4 else 'full'}_attention" for i in range(5)],
}  # fmt: skip
_GRANITE: Final = {
    "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
}  # fmt: skip
_JAMBA: Final = {
    "num_hidden_layers": 4, "attn_layer_period": 3, "attn_layer_offset": 1, "intermediate_size": 64,
    "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_dt_rank": 8,
}  # fmt: skip
_SHORT: Final = {
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
SCAN: Final = {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "expand": 2}
HYBRID: Final = {
    "layer_types": ["mamba", "attention", "mamba"], "num_hidden_layers": 3, "mamba_n_heads": 4,
    "mamba_d_state": 16, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_expand": 2,
    "shared_intermediate_size": 64, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
    "residual_multiplier": 0.22, "attention_multiplier": 0.0625,
}  # fmt: skip
DELTA: Final = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_hidden_layers": 5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1],
                        "partial_rotary_factor": 0.5, "mrope_interleaved": True},
}  # fmt: skip
FALCON: Final = {
    "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 16, "mamba_d_head": 16, "head_dim": 16,
}  # fmt: skip


def _seeing(**text: Any) -> dict[str, Any]:
    """A model that sees, of which the text is compared; the tensors of pictures are left out."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = {**SMALL, "rope_parameters": rope, **text}
    vision = {
        "hidden_size": 32, "out_hidden_size": text["hidden_size"], "num_heads": 2, "depth": 1,
        "intermediate_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    return {
        "text_config": text, "vision_config": vision, "vocab_size": 320,
        "tie_word_embeddings": False,
    }  # fmt: skip


#: transformers' name of the model, and how its config differs from `SMALL`.
TEXTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {
        "rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": _YARN}),
    "mistral": ("mistral", {"head_dim": 32}),
    "mistral-window": ("mistral", {"head_dim": 32, "sliding_window": 12}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral-window": ("mixtral", {**EXPERTS, "sliding_window": 7}),
    "phi3-window": ("phi3", {"sliding_window": 12}),
    "starcoder2-window": ("starcoder2", {"use_bias": True, "sliding_window": 9}),
    "gemma3-pattern": ("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 32,
                                       "sliding_window": 12, "num_hidden_layers": 4,
                                       "_sliding_window_pattern": 3}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen2moe": ("qwen2_moe", EXPERTS),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 12,
                          "num_hidden_layers": 3}),
    "gemma3": ("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 12,
                               "num_hidden_layers": 7}),
    "phi3": ("phi3", {}),
    "phi3-long": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 16}),
    "phi3-short": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 512}),
    "gpt-oss": ("gpt_oss", {**EXPERTS, "sliding_window": 12, "head_dim": 32,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}),
    "granite": ("granite", _GRANITE),
    "granitemoe": ("granitemoe", {**EXPERTS, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
                                  "residual_multiplier": 0.3, "attention_multiplier": 0.1}),
    "granitemoeshared": ("granitemoeshared", {**EXPERTS, "shared_intermediate_size": 64}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 12, "num_hidden_layers": 4}),
    "glm4": ("glm4", {"head_dim": 16}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_bias": True,
                              "attention_out_bias": False}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "hunyuan-dense-stretched": ("hunyuan_v1_dense", {"head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}}),
    "gemma": ("gemma", {"head_dim": 32, "num_key_value_heads": 1}),
    "starcoder2": ("starcoder2", {"use_bias": True}),
    "phi2": ("phi", {"partial_rotary_factor": 0.5}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.25}),
    "stablelm-12b": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True,
                                  "partial_rotary_factor": 0.25}),
    "gptneox": ("gpt_neox", {"hidden_act": "gelu_new"}),
    "gptneox-one-after-the-other": ("gpt_neox", {"use_parallel_residual": False,
                                                 "hidden_act": "gelu_new"}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "deepseek2": ("deepseek_v2", {**LATENT, "topk_method": "greedy"}),
    "deepseek2-lite": ("deepseek_v2", {**LATENT, "topk_method": "greedy", "q_lora_rank": None,
                                       "num_hidden_layers": 27, "first_k_dense_replace": 25}),
    "deepseek2-groups": ("deepseek_v2", {
        **LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}),
    "deepseek3": ("deepseek_v3", {**LATENT, "n_group": 4, "topk_group": 2}),
    "deepseek3-yarn": ("deepseek_v3", {
        **LATENT, "n_group": 4, "topk_group": 2,
        "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "mistral4": ("mistral4", {**LATENT, "first_k_dense_replace": 0, "rope_parameters": {
        **_YARN, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}}),
    "phimoe": ("phimoe", {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True}),
    "phimoe-short": ("phimoe", {
        "num_local_experts": 8, "attention_bias": True, "lm_head_bias": True,
        "rope_parameters": {**_LONG, "short_mscale": 1.25, "long_mscale": 1.25,
                            "original_max_position_embeddings": 512}}),
    "kimi-linear": ("kimi_linear", {
        **{x: y for x, y in LATENT.items() if x[:2] in ("qk", "kv", "v_")},
        "num_hidden_layers": 5, "num_key_value_heads": 4, "moe_intermediate_size": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "linear_head_dim": 16,
        "linear_num_heads": 4}),
    "mamba2": ("mamba2", SCAN),
    "mamba2-tied": ("mamba2", {**SCAN, "tie_word_embeddings": True}),
    "qwen3next": ("qwen3_next", {
        **EXPERTS, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_hidden_layers": 5}),
    "qwen35": ("qwen3_5_text", {**DELTA, "full_attention_interval": 3}),
    "qwen35moe": ("qwen3_5_moe_text", {**DELTA, **EXPERTS}),
    "lfm2": ("lfm2", {"num_hidden_layers": 4, "full_attn_idxs": [2], "block_multiple_of": 32}),
    "lfm2moe": ("lfm2_moe", {
        **EXPERTS, "num_hidden_layers": 4, "num_dense_layers": 1,
        "layer_types": ["conv", "conv", "full_attention", "conv"]}),
    "mistral3": ("ministral3", {"head_dim": 16, "rope_parameters": {
        **_YARN, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}}),
    "glm4moe": ("glm4_moe", {
        **EXPERTS, "num_hidden_layers": 3, "n_routed_experts": 8, "attention_bias": True,
        "use_qk_norm": True, "routed_scaling_factor": 1.5}),
    "dots1": ("dots1", {
        **EXPERTS, "num_hidden_layers": 3, "n_routed_experts": 8, "n_shared_experts": 2,
        "num_key_value_heads": 4, "head_dim": 16, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "sliding_window": None}),
    "ernie4_5-moe": ("ernie4_5_moe", {
        "head_dim": 16, "num_hidden_layers": 3, "moe_intermediate_size": 32, "moe_num_experts": 8,
        "moe_layer_end_index": 2}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "sliding_window": 12}),
    "minimax-m2": ("minimax_m2", {**EXPERTS, "head_dim": 16, "intermediate_size": 32,
                                  "rotary_dim": 8}),
    "olmoe": ("olmoe", {**EXPERTS, "num_key_value_heads": 4}),
    "nemotron_h": ("nemotron_h", {
        **EXPERTS, "head_dim": 16, "n_routed_experts": 8, "mamba_num_heads": 4,
        "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2,
        "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 2.5,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]}),
    "mamba": ("mamba", {"intermediate_size": 128, "time_step_rank": 4}),
    "gemma4": ("gemma4_text", {
        "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 12, "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320,
        "global_head_dim": 32, "use_double_wide_mlp": True,
        "layer_types": [f"{'full' if i in (2, 6) else 'sliding'}_attention" for i in range(7)]}),
    "gemma4-experts": ("gemma4_text", {
        "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 12, "enable_moe_block": True,
        "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32,
        "hidden_size_per_layer_input": 0, "global_head_dim": 32,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    "gemma3n": ("gemma3n_text", {
        "num_hidden_layers": 12, "head_dim": 16, "sliding_window": 12, "num_kv_shared_layers": 5,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "laurel_rank": 8,
        "altup_num_inputs": 3, "intermediate_size": [96] * 6 + [128] * 6}),
    "gemma3n-active": ("gemma3n_text", {
        "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 12, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320, "laurel_rank": 8,
        "altup_active_idx": 1, "activation_sparsity_pattern": [0.5, 0.0, 0.8, 0.0],
        "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "llama4": ("llama4_text", {
        "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16,
        "intermediate_size": 32, "intermediate_size_mlp": 96}),
    "llama4-interleaved": ("llama4_text", {
        "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 1, "head_dim": 16,
        "intermediate_size": 32, "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2,
        "rope_parameters": _LLAMA3}),
    "falcon": ("falcon", {"num_kv_heads": 4, "ffn_hidden_size": 96}),
    "falcon-two-norms": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2,
                                    "tie_word_embeddings": False}),
    "falcon-one-norm": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2,
                                   "num_ln_in_parallel_attn": 1}),
    "falcon-h1": ("falcon_h1", {
        **FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2,
        "lm_head_multiplier": 0.5, "embedding_multiplier": 4.0, "mlp_multipliers": [0.9, 0.6],
        "key_multiplier": 0.7, "attention_out_multiplier": 0.8, "attention_in_multiplier": 1.2,
        "ssm_multipliers": [0.9, 0.8, 1.1, 1.2, 0.7], "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.6}),
    "falcon-h1-tied": ("falcon_h1", {
        **FALCON, "tie_word_embeddings": True, "lm_head_multiplier": 0.2,
        "embedding_multiplier": 2.0}),
    "hunyuan-moe": ("hunyuan_v1_moe", {
        "num_experts": 8, "moe_topk": 2, "head_dim": 16, "rope_parameters": {
            "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}}),
    "qwen2vl": ("qwen2_5_vl", _seeing()),
    "qwen3vl": ("qwen3_vl", _seeing(head_dim=16)),
    "qwen3vlmoe": ("qwen3_vl_moe", _seeing(head_dim=16, hidden_size=48, **EXPERTS)),
    "minimax-m3": ("minimax_m3_vl", {
        "text_config": {
            **SMALL, "num_hidden_layers": 3, "head_dim": 16, "num_local_experts": 8,
            "num_experts_per_tok": 2, "intermediate_size": 32, "dense_intermediate_size": 96,
            "shared_intermediate_size": 32, "index_n_heads": 2, "index_head_dim": 16,
            "index_block_size": 8, "index_topk_blocks": 2, "rotary_dim": 8,
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * 2],
            "mlp_layer_types": ["dense", "sparse", "sparse"], "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 28},
        "projector_hidden_size": 32, "tie_word_embeddings": False}),
    "mimo2": ("mimo_v2_flash", {
        "num_hidden_layers": 4, "head_dim": 16, "v_head_dim": 8, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": 12,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6,
                               "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0,
                                  "partial_rotary_factor": 0.5}}}),
    "step35": ("step3p7", {
        "text_config": {
            **SMALL, "num_hidden_layers": 5, "head_dim": 16, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32, "share_expert_dim": 48,
            "sliding_window": 12, "num_sliding_attention_heads": 6,
            "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
            "mlp_layer_types": ["dense", *["sparse"] * 4], "moe_router_scaling_factor": 2.5,
            "swiglu_limits": [None, None, None, 0.5, 0.5],
            "swiglu_limits_shared": [None, None, None, None, 0.5], "rope_parameters": {
                "full_attention": {**_LLAMA3, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0,
                                      "partial_rotary_factor": 1.0}}},
        "vision_config": {"width": 32, "layers": 1, "heads": 2, "image_size": 28},
        "tie_word_embeddings": False}),
    "hy_v3": ("hy_v3", {
        "num_hidden_layers": 3, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "num_shared_experts": 2, "router_scaling_factor": 2.5}),
    "cohere2moe": ("cohere2_moe", {
        "num_hidden_layers": 4, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "intermediate_size": 32, "prefix_dense_intermediate_size": 96, "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid", "sliding_window": 12,
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"]}),
    "cohere2moe-softmax": ("cohere2_moe", {
        "num_hidden_layers": 4, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "intermediate_size": 32, "sliding_window": 12, "rms_norm_eps": 1e-5}),
    "olmo": ("olmo", {"clip_qkv": 1.5}),
    "dbrx": ("dbrx", {
        "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 8,
                       "moe_top_k": 2}}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}),
    "mpt": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
                    "attn_config": {"clip_qkv": 1.5}}),
    "arcee": ("arcee", {"rope_parameters": _LLAMA3}),
    "nemotron": ("nemotron", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "command-r": ("cohere", {}),
    "exaone": ("exaone", {}),
    "granitehybrid": ("granitemoehybrid", {**HYBRID, **EXPERTS}),
    "granitehybrid-dense": ("granitemoehybrid", {**HYBRID, "num_local_experts": 0,
                                                 "position_embedding_type": "rope"}),
    "exaone-moe": ("exaone_moe", {
        **EXPERTS, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 12,
        "routed_scaling_factor": 2.5}),
    "afmoe": ("afmoe", {
        **EXPERTS, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 12,
        "mup_enabled": True, "route_scale": 1.5, "num_dense_layers": 2}),
    "apertus": ("apertus", {"rope_parameters": _LLAMA3}),
    "exaone4": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "chatglm": ("glm", {"head_dim": 16}),
    "starcoder": ("gpt_bigcode", {"n_inner": 96, "n_embd": 64, "n_layer": 3, "n_head": 4,
                                  "n_positions": 512}),
    "jais2": ("jais2", {}),
    "mellum": ("mellum", {**_TWO_KINDS, "rope_parameters": {
        "full_attention": {**_YARN, "original_max_position_embeddings": 16},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "mellum-two-bases": ("mellum", {**_TWO_KINDS, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "granite_swa": ("granite_swa", {
        **_GRANITE, "num_hidden_layers": 5, "sliding_window": 12,
        "layer_rope_theta": [0.0, 10000.0, 10000.0, 10000.0, 0.0]}),
    "granite_swa-experts": ("granitemoe_swa", {
        **_GRANITE, "num_hidden_layers": 5, "sliding_window": 12, "intermediate_size": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48}),
    "laguna": ("laguna", {
        **_TWO_KINDS, "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
        "moe_routed_scaling_factor": 2.5, "rope_parameters": {
            "full_attention": {**_YARN, "original_max_position_embeddings": 16,
                               "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}}),
    "laguna-elements": ("laguna", {
        **EXPERTS, "num_hidden_layers": 3, "head_dim": 16, "gating": "per-element"}),
    "jamba": ("jamba", {**_JAMBA, "num_experts": 8, "num_experts_per_tok": 2}),
    "jamba-dense": ("jamba", {**_JAMBA, "num_experts": 1, "num_experts_per_tok": 1}),
    "minicpm3": ("minicpm3", {**_SHORT}),
    "minicpm3-long": ("minicpm3", {**_SHORT, "rope_parameters": {
        **_LONG, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.0, 2.5],
        "original_max_position_embeddings": 512}}),
}  # fmt: skip
ENCODERS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "bert": ("bert", "AutoModel", {}),
    "bert-wide": ("bert", "AutoModel", {"hidden_size": 128, "num_hidden_layers": 3}),
    "bert-rank": ("bert", "AutoModelForSequenceClassification", {"num_labels": 1}),
    "xlm-roberta": ("xlm-roberta", "AutoModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta-rank": ("xlm-roberta", "AutoModelForSequenceClassification",
                         {"pad_token_id": 1, "type_vocab_size": 1, "num_labels": 1}),
    "distilbert": ("distilbert", "AutoModel", {"hidden_dim": 96}),
    "nomic-bert": ("nomic_bert", "AutoModel", {}),
    "jina-bert-v3": ("jina_embeddings_v3", "AutoModel", {}),
    "eurobert": ("eurobert", "AutoModel", {"head_dim": 16}),
    "gemma-embedding": ("gemma3_text", "AutoModel", {
        "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 12, "num_hidden_layers": 7,
        "use_bidirectional_attention": True}),
    "modernbert": ("modernbert", "AutoModel", {"local_attention": 16, "num_hidden_layers": 4}),
    "modernbert-rank": ("modernbert", "AutoModelForSequenceClassification",
                        {"local_attention": 16, "num_hidden_layers": 4, "num_labels": 1}),
}  # fmt: skip


def _class(kind: str, auto: str) -> str:
    """transformers' class for a type of model; models that see have another one."""
    if kind == "mistral4":  # the text of a model that sees, which no class of Auto makes alone
        return "Mistral4ForCausalLM"
    seeing = "_vl" in kind or kind == "step3p7"
    return "AutoModelForImageTextToText" if seeing else auto


def _shapes(case: str, kind: str, auto: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The config, and the names and shapes of the tensors, that transformers writes for a model."""
    transformers = module("transformers")
    numpy_file = module("safetensors").safe_open
    small = {} if "text_config" in changes else SMALL
    config = transformers.AutoConfig.for_model(kind, **{**small, **changes})
    auto = _class(kind, auto)
    maker = getattr(transformers, auto)
    model = maker.from_config(config) if auto.startswith("Auto") else maker(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        told = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        with numpy_file(Path(folder, "model.safetensors"), "np") as file:
            names = list(file.keys())
            of_pictures = re.compile(r"visual\.|vision_|vit_|multi_modal|patch_merge")
            tensors = {name: list(file.get_slice(name).get_shape()) for name in names
                       if not of_pictures.search(name)}  # fmt: skip
    told.pop("transformers_version")
    return {"config": told, "tensors": tensors}


def _loaded(folder: Path, auto: str) -> Any:
    """transformers' model of a folder."""
    transformers, torch = module("transformers"), module("torch")
    kind = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["model_type"]
    model = getattr(transformers, _class(kind, auto)).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def _computed(model: Any, texts: list[list[int]]) -> list[Any]:
    """The results of transformers for each text alone: logits, hidden values, or a rank."""
    torch, found = module("torch"), []
    with torch.no_grad():
        for ids in texts:
            out = model(torch.tensor([ids]))
            whole = out.logits if hasattr(out, "logits") else out.last_hidden_state
            found.append(whole[0].numpy())
    return found


def _continued(model: Any, ids: list[int]) -> Any:
    """The greedy tokens of transformers, for cases in `OTHERWISE` and `UNREAD`."""
    taken: list[int] = []
    for _ in range(FOLLOWED):
        (logits,) = _computed(model, [[*ids, *taken]])
        taken.append(int(np.argmax(logits[-1])))
    return np.array(taken, np.int32)


def _llama_cpp(path: Path, ids: list[int]) -> tuple[Any, Any]:
    """llama.cpp's logits of the last 8 tokens with a converted file, and its greedy tokens."""
    session = Session(str(path), threads=1, ctx=512, packing="none")
    session.decode(ids, range(len(ids)), [0] * len(ids), len(ids))
    rows = [session.logits(i) for i in range(len(ids))]
    taken = []
    for position in range(len(ids), len(ids) + FOLLOWED):
        taken.append(int(np.argmax(session.logits())))
        session.decode(taken[-1:], [position], [0], 1)
    return np.stack(rows[-8:]).astype(np.float32), np.array(taken, np.int32)


def main() -> None:
    sys.path.append(str(TESTS.parent))
    from models import random_folders, random_models

    from aggml.models.converting import convert

    wanted_cases = set(sys.argv[1:] or [*TEXTS, *ENCODERS])
    cases = random_folders.cases() if sys.argv[1:] else {}
    cases |= {name: _shapes(name, kind, "AutoModelForCausalLM", changes)
              for name, (kind, changes) in TEXTS.items() if name in wanted_cases}  # fmt: skip
    cases |= {name: _shapes(name, *told) for name, told in ENCODERS.items() if name in wanted_cases}
    (TESTS / "checkpoints.json").write_text(json.dumps(cases) + "\n", encoding="ascii")
    found: dict[str, Any] = {}
    if sys.argv[1:]:
        found.update(np.load(TESTS / "reference_checkpoints.npz"))
    ids = random_models.prompt()
    with tempfile.TemporaryDirectory() as place:
        for name in (name for name in TEXTS if name in wanted_cases):
            folder = random_folders.write(Path(place, name), name)
            model = _loaded(folder, "AutoModelForCausalLM")
            (logits,) = _computed(model, [ids])
            found[f"{name}:logits"] = wanted = logits[-8:].astype(np.float32)
            if name in UNREAD:
                found[f"{name}:ids"] = _continued(model, ids)
                continue
            made = Path(place, f"{name}.gguf")
            asyncio.run(convert(folder, made))
            other, found[f"{name}:ids"] = _llama_cpp(made, ids)
            if name in OTHERWISE:
                found[f"{name}:ids"] = _continued(model, ids)
            error = float(np.square(other - wanted).sum() / np.square(wanted).sum())
            print(f"{name}: llama.cpp against transformers, NMSE {error:.1e}")
        for name, (_, auto, _) in ENCODERS.items():
            if name not in wanted_cases:
                continue
            folder = random_folders.write(Path(place, name), name)
            rows = _computed(_loaded(folder, auto), random_models.texts())
            if "rank" in name:
                found[f"{name}:ranks"] = np.stack(rows).astype(np.float32)[:, 0]
            else:
                found[f"{name}:mean"] = np.stack([x.mean(axis=0) for x in rows])
                found[f"{name}:cls"] = np.stack([x[0] for x in rows])
                made = Path(place, f"{name}.gguf")
                asyncio.run(convert(folder, made))
                other, wanted = (
                    vectors(str(made), random_models.texts(), name),
                    found[f"{name}:mean"],
                )
                error = float(np.square(other - wanted).sum() / np.square(wanted).sum())
                print(f"{name}: llama.cpp against transformers, NMSE {error:.1e}")
    np.savez_compressed(TESTS / "reference_checkpoints.npz", allow_pickle=False, **found)


if __name__ == "__main__":
    main()
