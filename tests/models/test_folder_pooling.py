"""Folders of sentence-transformers: modules.json says how one vector is made of a text.

Here: folders of causal models, and files that say what cannot be. Not here: the vectors of encoders
(test_folders.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import random_folders

import aggml
from aggml.models import ModelError, TextModel
from aggml.models.catalogue import checkpoints
from aggml.models.checkpoints.folder import ModelFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPE = "sentence_transformers.models"


def folder_of(path: Path, case: str, pooling: object, modules: object = None) -> Path:
    """A folder with modules.json and 1_Pooling/config.json."""
    folder = Path(random_folders.write(path, case))
    usual = [
        {"idx": 0, "path": "", "type": f"{TYPE}.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": f"{TYPE}.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": f"{TYPE}.Normalize"},
    ]
    told = usual if modules is None else modules
    (folder / "modules.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


WAYS = {
    "mean": {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False},
    "cls": {"pooling_mode_cls_token": True},
    "last": {"pooling_mode": "lasttoken"},
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_folder_of_a_causal_model_is_pooled_as_it_says(tmp_path: Path, way: str) -> None:
    folder = folder_of(tmp_path / "model", "qwen2", WAYS[way])
    metadata = ModelFolder.open(folder, checkpoints()).metadata
    assert metadata["qwen2.pooling_type"] == ["", "mean", "cls", "last"].index(way)
    ids = [1, 2, 3, 4]
    async with await aggml.models.load(folder, ctx=64) as model:
        assert isinstance(model, TextModel)
        (found,) = await model.embed_ids([ids])
        (first,) = await model.embed_ids([ids[:1]])
    if way == "cls":  # the first token sees no other one
        np.testing.assert_allclose(found, first, atol=1e-5)
    else:
        assert not np.allclose(found, first, atol=1e-2)


WRONG: Mapping[str, tuple[Any, Any, str]] = {
    "kind": ({"pooling_mode": "max"}, None, "asks for"),
    "number": ({"pooling_mode": 0.5}, None, "asks for"),
    "negative": ({"pooling_mode": -1}, None, "asks for"),
    "list": ({"pooling_mode": ["cls"]}, None, "asks for"),
    "none": ({"pooling_mode_mean_tokens": False}, None, "asks for"),
    "two": ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None, "asks for"),
    "fraction": ({"pooling_mode_mean_tokens": 0.5}, None, "pooling_mode_mean_tokens = 0.5"),
    "minus": ({"pooling_mode_cls_token": -1}, None, "pooling_mode_cls_token = -1"),
    "empty": ({}, None, "config.json of pooling"),
    "module": (WAYS["mean"], [{"type": f"{TYPE}.Dense", "path": "2_Dense"}], "'Dense'"),
    "object": (WAYS["mean"], {"type": "Pooling"}, "list of objects"),
    "texts": (WAYS["mean"], ["Pooling"], "list of objects"),
}


@pytest.mark.parametrize("case", ["qwen2", "bert"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_what_cannot_be_is_one_error(tmp_path: Path, case: str, wrong: str) -> None:
    pooling, modules, why = WRONG[wrong]
    with pytest.raises(ModelError, match=why):
        await aggml.models.load(folder_of(tmp_path / "model", case, pooling, modules))
