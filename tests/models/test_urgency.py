"""Models take the priority and the deadline of the item on which a stage of a pipeline works."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import pytest
from models import random_models

import aggml
from aggml.models.arguments import urgency_of
from aggml.models.engine.requests import TextRequest
from aggml.pipeline import StageError, Urgent, current_urgency, run
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


async def through(items: Any, *stages: Any) -> list[Any]:
    async with run(items, *stages) as results:
        return [x async for x in results]


async def test_what_a_caller_leaves_open_is_that_of_the_item() -> None:
    async def look(given: tuple[int, float | None]) -> tuple[int, float | None]:
        return urgency_of("test", *given)

    items = [
        (0, None), Urgent((0, None), 4, 100), Urgent((2, 5.0), 4, 100), Urgent((0, 7.0), -3),
    ]  # fmt: skip
    found = await through(items, look)
    assert [x for x, _ in found] == [0, 4, 2, -3]
    assert [None if x is None else math.ceil(x) for _, x in found] == [None, 100, 5, 7]
    assert urgency_of("test", 0, None) == (0, None)


async def test_requests_of_a_text_model_are_as_urgent_as_the_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[TextRequest] = []
    begin = TextRequest.__init__

    def noted(self: TextRequest, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(TextRequest, "__init__", noted)
    async with await aggml.models.load(llama_files.write(tmp_path / "llama.gguf")) as model:
        assert isinstance(model, aggml.models.TextModel)

        async def embed(x: int) -> Any:
            return await model.embed_ids([[1, 2, x]])

        async def logits(x: int) -> Any:
            return await model.logits([1, x])

        for stage in (lambda x: model.generate([1, x], max_tokens=2), embed, logits):
            made.clear()
            await through([Urgent(3, priority=6, deadline=1000), 4], stage)
            assert [x.priority for x in made] == [6, 0]
            first, second = (x.deadline for x in made)
            assert second is None
            assert first is not None
            assert 900 < first - time.monotonic() <= 1000
        with pytest.raises(StageError, match="deadline"):
            await through([Urgent(3, deadline=0.0)], embed)


async def test_an_encoder_refuses_what_cannot_be_in_time(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    async with await aggml.models.load(path) as model:

        async def embed(x: int) -> Any:
            while not current_urgency().late:
                pass
            return await model.embed_ids([[1, x]])

        with pytest.raises(StageError) as caught:
            await through([Urgent(3, deadline=0.05)], embed)
        assert isinstance(caught.value.__cause__, TimeoutError)
