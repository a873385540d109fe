"""Every setting of config.json is carried out, known to be harmless, or refused by its name.

Not here: the numbers that follow (test_folders.py), thousands of changes (tests/fuzz/settings.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from models import random_folders

from aggml.models import ModelError, catalogue
from aggml.models.checking import describe_checked
from aggml.models.checkpoints import ModelFolder
from aggml.models.checkpoints.settings import HARMLESS, NEUTRAL, OF_SEVERAL_TYPES, TYPES

CASES: Final = random_folders.cases()
#: The settings of transformers' classes, by model type, with their defaults.
OF_TRANSFORMERS: Final[dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("transformers_settings.json").read_text(encoding="ascii")
)


def opened(folder: Path) -> dict[str, Any]:
    with ModelFolder.open(folder, catalogue.checkpoints()) as file:
        describe_checked(file.metadata, file.tensors)
        return dict(file.metadata)


def refused(folder: Path, case: str, why: str, **changes: Any) -> None:
    config = CASES[case]["config"] | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=why) as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


WRONG: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("llama", {"foo": 1}, "has foo = 1, which is not carried out"),
    ("llama", {"sliding_window": 12}, "has sliding_window = 12, which is not carried out"),
    ("llama", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping = 30.0, which is not"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("llama", {"embedding_multiplier": 12.0}, "embedding_multiplier"),
    ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("llama", {"is_decoder": True}, "is_decoder"),
    ("llama", {"use_sliding_window": True}, "use_sliding_window"),
    ("llama", {"qk_layernorm": True}, "qk_layernorm"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 12}, "use_sliding_window = True"),
    ("llama", {"hidden_size": "big"}, "hidden_size = 'big', expected was a whole number"),
    ("llama", {"hidden_size": 64.0}, "hidden_size = 64.0, expected"),
    ("llama", {"hidden_size": None}, "has no hidden_size"),
    ("llama", {"num_hidden_layers": None}, "has no num_hidden_layers"),
    ("llama", {"num_attention_heads": None}, "has no num_attention_heads"),
    ("llama", {"rms_norm_eps": None}, "has no rms_norm_eps"),
    ("llama", {"max_position_embeddings": None}, "has no max_position_embeddings"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers = 0, expected"),
    ("llama", {"num_hidden_layers": 1 << 30}, "num_hidden_layers = 1073741824, at most"),
    ("llama", {"num_hidden_layers": 3}, "no tensor 'blk.2"),
    ("llama", {"num_hidden_layers": 1}, "9 tensors that its architecture lacks"),
    ("llama", {"vocab_size": 321}, "vocab_size = 321, but the embeddings have 320 rows"),
    ("llama", {"intermediate_size": "96"}, "intermediate_size = '96'"),
    ("llama", {"num_attention_heads": 3}, "'blk.0.attn_q.weight' .*|attention.head_count"),
    ("llama", {"num_key_value_heads": 3}, "'blk.0.attn_k.weight' .*|head_count_kv"),
    ("llama", {"head_dim": 24}, "attn_q.weight"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes', expected was true or"),
    ("llama", {"attention_bias": True}, "attention_bias = true, but there are no biases"),
    ("llama", {"mlp_bias": True}, "mlp_bias = true, but there are no biases"),
    ("llama-biases", {"attention_bias": False}, "attention_bias = false, but the folder has"),
    ("llama-biases", {"mlp_bias": False}, "mlp_bias = false, but the folder has"),
    ("llama-tied", {"tie_word_embeddings": False}, "no tensor 'lm_head.weight'"),
    ("llama-tied", {"tie_word_embeddings": None}, "no tensor 'lm_head.weight'"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "foo": 1}}, "foo = 1"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor = '2'"),
    *(("olmo3", {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, of: value}}, of)
      for of in ("full_attention", "sliding_attention") for value in (1.5, None, "yes", [1])),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "mscale"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type = 'yarn' in"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
     "truncate"),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8,
                                "long_factor": [2.0] * 8}}, "longrope.*not carried out"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0}}, "alpha"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling = .*expected was an object"),
    ("qwen2", {"rope_parameters": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 1e4}}, "'llama3', which is not"),
    ("gemma3", {"layer_types": ["full_attention"] * 6}, "layer_types .* for 7 layers"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 7}, "layer_types"),
    ("gemma2", {"query_pre_attn_scalar": 20}, "query_pre_attn_scalar"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 0, 1]}, "no_rope_layers"),
    ("mamba2", {"time_step_limit": [0.1, 3.0]}, "time_step_limit"),
    ("qwen2moe", {"norm_topk_prob": True}, "norm_topk_prob"),
    ("qwen3moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("modernbert-rank", {"classifier_pooling": "mean"}, "classifier_pooling"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("qwen2vl", {"vision_config": 0.5}, "vision_config = 0.5, expected was an object"),
    ("gemma4-experts", {"per_layer_config": {"2": {"head_dim": 32}, "mscale": 0.5}},
     "per_layer_config = .*of which attention.* cannot be made"),
    ("gemma4-experts", {"per_layer_config": {"99": {"head_dim": 32}}}, "per_layer_config = "),
    ("gemma4-experts", {"num_kv_shared_layers": ["a"]}, "num_kv_shared_layers = .*expected was"),
    ("llama4-interleaved", {"interleave_moe_layer_step": "big"}, "interleave_moe_layer_step = "),
    ("falcon-h1-tied", {"ssm_in_multiplier": float("inf")}, "ssm_in_multiplier = .*finite"),
    ("falcon-h1", {"ssm_multipliers": [1.0, "a", 1.0, 1.0, 1.0]}, "ssm_multipliers = .*a list of"),
    ("falcon-h1", {"mamba_rms_norm": False}, "mamba_rms_norm = false, but the folder has"),
    ("olmo2", {"layer_types": ["sliding_attention"] * 2}, "layer_types = .* no sliding_window"),
    ("lfm2", {"conv_L_cache": 0}, "conv_L_cache = 0, expected"),
    ("gemma3n", {"intermediate_size": [96] * 6 + ["128"] * 6}, "intermediate_size = .*each layer"),
    ("gemma3n", {"activation_sparsity_pattern": [0.95] * 3}, "pattern = .* for 12 layers"),
    ("gemma3n", {"activation_sparsity_pattern": 1.0}, "activation_sparsity_pattern = 1.0"),
    ("gemma3n", {"altup_correct_scale": False}, "altup_correct_scale"),
    ("gemma3n", {"altup_num_inputs": 1}, "altup.num_inputs is 1"),
    ("gemma3n", {"altup_num_inputs": 5}, "'altup_proj.weight'"),
    ("gemma3n", {"num_kv_shared_layers": 9}, "no layer before layer 3 has keys for layer 4"),
    ("falcon", {"alibi": True}, "alibi = True"),
    ("falcon", {"parallel_attn": False}, "parallel_attn = False"),
    ("falcon-two-norms", {"num_kv_heads": 3}, "head_count_kv|attn_qkv"),
    ("nemotron_h", {"mamba_num_heads": "4"}, "mamba_num_heads = '4', expected"),
]  # fmt: skip


@pytest.mark.long(cases=22)
@pytest.mark.parametrize(("case", "changes", "why"), WRONG, ids=lambda x: str(x)[:50])
def test_a_setting_that_is_not_carried_out_is_refused_by_name(
    tmp_path: Path, case: str, changes: dict[str, Any], why: str
) -> None:
    refused(random_folders.write(tmp_path / "folder", case), case, why, **changes)


def test_a_folder_with_another_tensor_than_it_should_have_is_refused(tmp_path: Path) -> None:
    told = CASES["llama"]
    made = random_folders.weights("llama", told["tensors"])

    def with_tensors(why: str, **changes: Any) -> None:
        tensors = {k: v for k, v in (made | changes).items() if v is not None}
        folder = random_folders.save(tmp_path / "folder", told["config"], tensors)
        refused(folder, "llama", why)

    at = "model.layers.1."
    with_tensors("has 1 tensors that its architecture lacks, for example 'model.layers.1.extra'",
                 **{f"{at}extra": np.zeros(3, np.float32)})  # fmt: skip
    with_tensors("no tensor 'blk.1.attn_k.weight'", **{f"{at}self_attn.k_proj.weight": None})
    with_tensors("no tensor 'output_norm.weight'", **{"model.norm.weight": None})
    with_tensors("no tensor 'lm_head.weight'", **{"lm_head.weight": None})
    for name in ("self_attn.k_proj", "mlp.up_proj", "input_layernorm"):
        old = made[f"{at}{name}.weight"]
        for new in (old[:-1], np.concatenate([old, old]), old.reshape(-1)[:7]):
            with_tensors(r"tensor 'blk.1\.", **{f"{at}{name}.weight": new})


def test_every_setting_of_transformers_is_known() -> None:
    """Nothing that transformers writes for these models is refused because it is unknown."""
    maps = [x for _, x in catalogue.checkpoints()]
    for kind, settings in OF_TRANSFORMERS.items():
        own = [x for x in maps if kind in x.model_types]
        assert own, kind
        for name, value in settings.items():
            if value is None:
                continue  # as if it were not there
            known = name in HARMLESS or name in NEUTRAL
            for checkpoint in own:
                known |= name in checkpoint.expects or name in checkpoint.harmless
                known |= name in _names_read(checkpoint)
            assert known, (kind, name)


def _names_read(checkpoint: Any) -> set[str]:
    """The settings that a map reads; its functions are called to see what they read."""
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.keys import rope_keys

    read = {"tie_word_embeddings", "num_hidden_layers", "layer_types"}
    for kind in checkpoint.model_types:
        config = Config(OF_TRANSFORMERS.get(kind, {}) | {"model_type": kind})
        for key, where in [*checkpoint.keys.items(), ("rope", None)]:
            try:
                if where is None:
                    rope_keys(config, checkpoint.tensors)
                elif callable(where):
                    where(config)
                else:
                    config.get(*((where,) if isinstance(where, str) else where))
            except (ModelError, TypeError):
                assert key
        read |= config.read
    return read


def test_a_harmless_setting_changes_nothing(tmp_path: Path) -> None:
    folder = random_folders.write(tmp_path / "folder", "llama")
    before = opened(folder)
    more = dict.fromkeys(("attention_dropout", "initializer_range", "pretraining_tp"), 3)
    config = CASES["llama"]["config"] | more | {"use_cache": False, "_name_or_path": "somewhere"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert opened(folder) == before


@pytest.mark.long
def test_every_setting_that_is_read_has_a_type(tmp_path: Path) -> None:
    """What no table gives a type ends in an error of Python somewhere behind."""
    read: set[str] = set()
    for case in CASES:
        if case == "deepseek2-lite":
            continue  # 27 layers
        folder = random_folders.write(tmp_path / case, case)
        with ModelFolder.open(folder, catalogue.checkpoints()) as file:
            read |= file.config.read
    assert read - set(TYPES) - set(OF_SEVERAL_TYPES) == set()


def test_every_harmless_setting_has_a_reason() -> None:
    assert all(len(reason) > 10 for reason in HARMLESS.values())
    assert not set(HARMLESS) & set(NEUTRAL)


def test_files_that_begin_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    folder = random_folders.write(tmp_path / "folder", "llama", shards=2)
    before = opened(folder)
    for name in ("config.json", "model.safetensors.index.json"):
        path = folder / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert opened(folder) == before


def test_an_index_that_names_another_file_is_refused(tmp_path: Path) -> None:
    folder = random_folders.write(tmp_path / "folder", "llama", shards=3)
    index = folder / "model.safetensors.index.json"
    told = json.loads(index.read_text(encoding="utf-8"))
    names = sorted({*told["weight_map"].values()})
    some = next(k for k, v in told["weight_map"].items() if v == names[0])

    def wrong(why: str, **changes: str | None) -> None:
        weight_map = {k: v for k, v in (told["weight_map"] | changes).items() if v is not None}
        index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
        refused(folder, "llama", why)

    wrong(f"says that {some!r} is in {names[1]!r}", **{some: names[1]})
    wrong("names 'nowhere.weight', but no file", **{"nowhere.weight": names[0]})
    wrong("model-9.safetensors", **{some: "model-9.safetensors"})
    wrong(r"\.\./x.safetensors", **{some: "../x.safetensors"})
    index.write_text(json.dumps(told), encoding="utf-8")
    (folder / names[2]).unlink()
    refused(folder, "llama", names[2])
