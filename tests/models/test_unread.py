"""Hyperparameters of GGUF files that an architecture does not read: refused, harmless, or named.

Here: files with keys of other architectures, the tables against the keys that GGUF has. Not here:
wrong values of keys that are read (test_checking.py), settings of config.json (test_settings.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from models import random_models

import aggml
from aggml.models import ModelError, TextModel
from aggml.models.catalogue import describe
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.unread import HARMLESS, NEUTRAL, OTHERS, REFUSED, is_known

if TYPE_CHECKING:
    from pathlib import Path

#: (layout, key, value): other programs would give other results than this one.
WRONG: list[tuple[str, str, Any]] = [
    *((of, "attn_logit_softcapping", 30.0) for of in ("llama", "qwen3", "gemma3", "bert")),
    *((of, "final_logit_softcapping", 30.0) for of in ("llama", "qwen2", "gpt2", "mamba2")),
    *((of, "attention.sliding_window", 8) for of in ("qwen2", "qwen3moe", "gpt2", "bert")),
    ("llama", "logit_scale", 0.5),
    ("llama", "residual_scale", 0.5),
    ("qwen2", "embedding_scale", 8.0),
    ("llama", "attention.scale", 0.3), ("llama", "attention.clamp_kqv", 8.0),
    ("llama", "attention.max_alibi_bias", 8.0), ("llama", "attention.causal", False),
    ("bert", "attention.causal", True), ("llama", "use_parallel_residual", True),
    ("llama", "attention.temperature_scale", 0.1), ("llama", "rope.scaling.alpha", 1000.0),
    ("llama", "rope.scaling.yarn_ext_factor", 0.5),
    ("llama-yarn", "rope.scaling.yarn_attn_factor", 2.0),
    ("llama-yarn", "rope.scaling.yarn_log_multiplier", 0.1),
    ("mixtral", "expert_gating_func", 2), ("mixtral", "expert_group_count", 4),
    ("mixtral", "expert_weights_norm", False),
    ("llama", "interleave_moe_layer_step", 2),
    ("bert", "attention.head_count_kv", 1),
    ("llama", "hyper_connection.count", 4),
    ("llama", "altup.num_inputs", 4),
    ("llama", "hidden_activation", "gelu"),
    ("llama", "swin_norm", True),
]  # fmt: skip

#: The same keys with values that change nothing.
RIGHT: list[tuple[str, str, Any]] = [
    ("llama", "attn_logit_softcapping", 0.0), ("llama", "final_logit_softcapping", 0.0),
    ("qwen2", "attention.sliding_window", 0), ("qwen2", "attention.sliding_window", 1 << 20),
    ("llama", "attention.sliding_window_pattern", [True, False] * 2), ("llama", "logit_scale", 1.0),
    ("llama", "residual_scale", 0.0), ("llama", "attention.scale", 0.25),
    ("llama", "attention.causal", True), ("bert", "attention.causal", False),
    ("llama", "rope.scaling.yarn_ext_factor", -1.0),
    ("llama", "rope.scaling.yarn_attn_factor", 1.0),
    ("mixtral", "expert_gating_func", 1),
    ("llama", "vocab_size", 5),
    ("bert", "attention.key_length", 16),
    ("llama", "rope.dimension_sections", [4, 2, 2, 0]), ("gpt2", "rope.freq_base", 1e6),
    ("mamba2", "attention.head_count", 0), ("llama", "vision.block_count", 3),
    ("llama", "nextn_predict_layers", 0), ("llama", "attention.layer_norm_epsilon", 1e-6),
]  # fmt: skip


def written(path: Path, layout: str, key: str, value: Any) -> Path:
    """A file of a layout with one more hyperparameter, or another value of one that it has."""
    metadata = random_models.metadata_of(layout)
    key = f"{metadata['general.architecture']}.{key}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_models, "metadata_of", lambda _: metadata | {key: value})
        return random_models.write(path / "model.gguf", layout, random_models.NO_WORDS)


@pytest.mark.parametrize(("layout", "key", "value"), WRONG, ids=str)
async def test_what_is_not_carried_out_is_refused_by_name(
    tmp_path: Path, layout: str, key: str, value: Any
) -> None:
    with pytest.raises(ModelError, match=rf"\.{key} is .*not carried out"):
        await aggml.models.load(written(tmp_path, layout, key, value))


@pytest.mark.parametrize(("layout", "key", "value"), RIGHT, ids=str)
async def test_what_changes_nothing_is_no_reason_to_refuse_a_file(
    tmp_path: Path, layout: str, key: str, value: Any
) -> None:
    async with aggml.models.load(written(tmp_path, layout, key, value)):
        pass


async def test_a_key_that_nobody_knows_is_named_in_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", "spin_rate", 3)
    with pytest.warns(UserWarning, match=r"llama\.spin_rate is not known"):
        model = await aggml.models.load(path, ctx=64)
    plain = random_models.write(tmp_path / "plain.gguf", "llama")
    async with model, aggml.models.load(plain, ctx=64) as other:
        assert isinstance(model, TextModel)
        assert isinstance(other, TextModel)
        np.testing.assert_array_equal(await model.logits([1, 2]), await other.logits([1, 2]))


def keys_of(table: object) -> set[str]:
    """The keys of an architecture that the package gguf names, without "{arch}."."""
    found = set()
    for name, value in vars(table).items():
        if isinstance(value, str) and value.startswith("{arch}."):
            found.add(value.removeprefix("{arch}."))
        elif isinstance(value, type) and not name.startswith("_"):
            found |= keys_of(value)
    return found


def test_each_key_of_gguf_is_in_one_table_or_read_by_an_architecture() -> None:
    known = keys_of(gguf.constants.Keys)
    assert len(known) > 80
    read = set()
    for layout in random_models.LAYOUTS:
        hp = Hyperparameters(random_models.metadata_of(layout))
        describe(hp)
        read |= hp.read
    left = known - read - HARMLESS.keys()
    assert {x for x in left if not is_known(x) and not x.startswith((*OTHERS, "{"))} == set()
    assert not NEUTRAL.keys() & REFUSED
    assert not HARMLESS.keys() & (NEUTRAL.keys() | REFUSED)
