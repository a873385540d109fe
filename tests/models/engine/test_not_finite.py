"""Logits that are NaN: an error for that request, the right answer for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models.engine.running import all_of, engine_of, running

import aggml
from aggml.models.errors import EngineError, NotFiniteError
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aggml.models.text_model import TextModel

BAD = 7  # the token whose embedding is NaN
NEVER = 9  # the token whose logit is NaN
WAYS: list[dict[str, Any]] = [
    {},
    {"logprobs": 3},
    {"temperature": 1.0, "seed": 3},
    {"repetition_penalty": 1.3, "logit_bias": {20: 5.0}},
]


def damage(path: Path, row: int | None) -> Path:
    """Write a model with NaN in a row of the output, and in that row of the embeddings."""
    write: Callable[..., Any] = aggml.GGUFWriter.add_tensor

    def spoil(writer: aggml.GGUFWriter, name: str, values: np.ndarray) -> None:
        if name == "token_embd.weight" and row is not None:
            values[row] = np.nan
        if name == "output.weight":
            values[NEVER] = np.nan
        write(writer, name, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggml.GGUFWriter, "add_tensor", spoil)
        return write_small(path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(tmp_path_factory.mktemp("models") / "damaged.gguf", BAD)


def good_text(n: int, first: int) -> list[int]:
    return [1, *(10 + (first + 13 * i) % 240 for i in range(n - 1))]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("way", WAYS)
async def test_a_request_whose_logits_are_nan_fails_and_no_other_does(
    damaged: Path, way: dict[str, Any]
) -> None:
    good, begin = good_text(150, 3), good_text(150, 60)
    later = begin + good_text(30, 11)[1:]
    async with running(damaged, slots=3) as model:
        rest = await all_of(model, later, 6)
    async with running(damaged, slots=3) as model:
        wanted = await all_of(model, good, 30)
        found: list[list[int]] = []

        async def right(model: TextModel) -> None:
            found.append(await all_of(model, good, 30))

        async def wrong(model: TextModel, prompt: list[int]) -> None:
            with pytest.raises(NotFiniteError, match="all logits are NaN or -inf") as caught:
                await all_of(model, prompt, 6, **way)
            assert isinstance(caught.value, EngineError)

        for _ in range(3):  # the second time in slots and shared rows that have held NaN
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(right, model)
                tasks.start_soon(wrong, model, [*begin, BAD, *good_text(40, 9)])
                tasks.start_soon(wrong, model, [BAD])
            assert await all_of(model, later, 6) == rest
        assert found == [wanted] * 3
        engine = engine_of(model)
        engine.turn()
        assert (engine.active, engine.pages.used) == (0, 0)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("way", WAYS)
async def test_a_token_whose_logit_is_nan_is_never_in_an_answer(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    async with running(damage(tmp_path / "damaged.gguf", None)) as model:
        made: list[int] = []
        for i in range(3):
            made += await all_of(model, good_text(5, i), 30, **way)
    assert len(made) == 90
    assert NEVER not in made
