"""The stages of a model, computed one after the other, give the results of the whole model.

Here: `Description.stage` on decoders of one backend each. Not here: stages on other machines
(tests/ray).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from models import random_models

import aggml
from aggml.models.catalogue import describe
from aggml.models.decoder import Decoder
from aggml.models.decoder.batch import Batch, Group
from aggml.models.description import Description
from aggml.models.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from pathlib import Path

LAYOUTS = [
    "llama",
    "llama-tied",
    "qwen3moe",
    "gemma3",
    "gpt-oss",
    "deepseek2",
    "mamba2",
    "qwen3next",
]


def _description(file: aggml.GGUFFile) -> Description:
    found = describe(Hyperparameters(file.metadata))
    assert isinstance(found, Description)
    return found


def _batch(slot: int, ids: list[int], at: int, ctx: int) -> Batch:
    positions = np.arange(at, at + len(ids), dtype=np.int32)[None]
    group = Group(np.array([ids], np.int32), positions, positions + slot * ctx, slot, 256)
    return Batch((group,))


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cuts", [(2,), (1, 3)], ids=str)
async def test_stages_give_what_the_whole_gives(
    tmp_path: Path, layout: str, cuts: tuple[int, ...]
) -> None:
    path = random_models.write(tmp_path / "model.gguf", layout)
    ids = [5, 17, 3, 90, 33, 34, 7]
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        with aggml.GGUFFile.open(path) as file:
            whole = _description(file)
            file.map(be.device)
            decoder = Decoder(be, whole, file.tensors, ctx=256, sequences=2)
            bounds = [0, *cuts, len(whole.layers)]
            stages = [
                Decoder(be, whole.stage(*edges), file.tensors, ctx=256, sequences=2)
                for edges in itertools.pairwise(bounds)
            ]
            for at, piece in ((0, ids[:4]), (4, ids[4:])):
                batch = _batch(1, piece, at, 256)
                (expected,) = await (await decoder.queue(batch))
                values = None
                for stage in stages:
                    (values,) = await (await stage.queue(batch, values=values))
                assert values is not None
                np.testing.assert_array_equal(values, expected)


async def test_a_stage_needs_only_its_own_tensors(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "model.gguf", "llama")
    with aggml.GGUFFile.open(path) as file:
        whole = _description(file)
        first, second = whole.stage(0, 1), whole.stage(1, len(whole.layers))
        assert {*first.needs()} | {*second.needs()} == {*whole.needs()}
        assert not {*first.needs()} & {*second.needs()}
        assert [x for x in file.tensors if not first.uses(x) and not second.uses(x)] == []
        assert "output.weight" in file.tensors
        assert not first.uses("output.weight")
        assert not second.uses("blk.0.attn_q.weight")


@pytest.mark.parametrize("edges", [(-1, 2), (1, 1), (2, 9)], ids=str)
async def test_a_stage_outside_of_the_model_is_refused(
    tmp_path: Path, edges: tuple[int, int]
) -> None:
    path = random_models.write(tmp_path / "model.gguf", "llama")
    refused = pytest.raises(aggml.InvalidArgument, match="not within 0 and")
    with aggml.GGUFFile.open(path) as file, refused:
        _description(file).stage(*edges)
