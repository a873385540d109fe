"""Errors that nobody expects, at any call of a turn: requests end, the engine goes on.

Here: such errors, and orders of requests in which a prompt has no place. Not here: steps that fail
on the device (test_engine.py), transfers that fail (test_beginnings.py), random requests
(tests/fuzz/prefixes.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from models import random_models
from models.engine.running import all_of, alone, engine_of, running, text, until
from models.engine.tiny import settle

from aggml.models.engine import policy, steps
from aggml.models.engine.engine import Engine
from aggml.models.errors import EngineError
from aggml.models.kv.paging import PAGE, PagedDecoder, Pages
from aggml.models.kv.prefixes import Prefixes

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.text_model import TextModel

MESSAGE = "[generate] the computation failed: nobody expects this"
#: Where a turn may fail; any of these calls.
PLACES = [
    (steps, "plan_step"),
    (steps, "next_tokens"),
    (Engine, "_next"),
    (policy, "admit"),
    (PagedDecoder, "promise"),
    (PagedDecoder, "find_step"),
    (PagedDecoder, "prepare_step"),
    (PagedDecoder, "inputs_of"),
    (PagedDecoder, "run_step"),
    (PagedDecoder, "save"),
    (PagedDecoder, "load"),
    (PagedDecoder, "savable"),
    (Pages, "take"),
    (Pages, "surplus"),
    (Pages, "give_back"),
    (Prefixes, "match"),
    (Prefixes, "pending"),
    (Prefixes, "restore"),
    (Prefixes, "keep"),
    (Engine, "_apply"),
    (Engine, "_clear"),
    (Engine, "_plan_running"),
]


class Broken:
    """Fails the call number ``at`` of a function, and ``times - 1`` after it."""

    def __init__(
        self, patch: pytest.MonkeyPatch, place: object, name: str, at: int = 0, times: int = 1
    ) -> None:
        self.calls, self.failed = 0, 0
        self._at = range(at, at + times)
        self._does = getattr(place, name)
        patch.setattr(place, name, lambda *given, **more: self._call(*given, **more))

    def _call(self, *given: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls - 1 in self._at:
            self.failed += 1
            raise ZeroDivisionError("nobody expects this")
        return self._does(*given, **more)


BEGIN = text(80, 4)
ASKED: list[tuple[list[int], int, int]] = [  # a prompt, tokens of the answer, a priority
    ([*BEGIN, 9], 6, 0),
    ([*BEGIN, 9, 7], 4, 0),
    (text(20, 5), 5, 1),
    (text(70, 6), 3, 2),
]


async def together(model: TextModel) -> list[list[int] | str]:
    """All answers, or the errors; while the first two run, the others come and preempt them."""
    found: list[list[int] | str] = [""] * len(ASKED)

    async def one(i: int) -> None:
        prompt, n, priority = ASKED[i]
        try:
            found[i] = await all_of(model, prompt, n, priority=priority)
        except EngineError as error:
            found[i] = str(error)

    engine = engine_of(model)
    async with anyio.create_task_group() as tasks:
        for i in (0, 1):
            tasks.start_soon(one, i)
        await until(lambda: engine.active or all(found[:2]))
        for i in (2, 3):
            tasks.start_soon(one, i)
    return found


_alone: dict[str, list[list[int]]] = {}


async def answers_alone(file: Path, layout: str) -> list[list[int]]:
    """What each request of `ASKED` gets alone; computed once in a process for each layout."""
    if layout not in _alone:
        _alone[layout] = [await alone(file, prompt, n) for prompt, n, _ in ASKED]
    return _alone[layout]


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("layout", ["llama", "mamba2"])
@pytest.mark.parametrize(("place", "name"), PLACES)
async def test_an_error_in_a_turn_ends_requests_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str, layout: str
) -> None:
    file = random_models.write(tmp_path / "model.gguf", layout)
    wanted = await answers_alone(file, layout)
    async with running(file, slots=2) as model:
        engine = engine_of(model)
        engine.prefixes = Prefixes(engine.decoder, 8 << 20)
        failed = 0
        for at in (0, 1, 3, 7):
            with monkeypatch.context() as patch:
                broken = Broken(patch, place, name, at)
                found = await together(model)
            failed += broken.failed
            for got, right in zip(found, wanted, strict=True):
                assert got == right or (broken.failed and got == MESSAGE), at
            assert await together(model) == wanted, at
            await settle(engine)
        assert failed or (name, layout) == ("restore", "mamba2")  # a slot may still hold it


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("place", "name"), [(Prefixes, "match"), (PagedDecoder, "promise"), (Pages, "take")]
)
async def test_an_error_when_a_request_is_let_in_is_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    async with running(file) as model:
        engine = engine_of(model)
        engine.prefixes = Prefixes(engine.decoder, 8 << 20)
        await all_of(model, text(150, 3), 3)
        stream = model.generate([1, 40, 50], max_tokens=100, stop_ids=())
        found = [(await anext(stream)).id]
        with monkeypatch.context() as patch:
            broken = Broken(patch, place, name)
            with pytest.raises(EngineError, match=re.escape(MESSAGE)):
                await all_of(model, text(150, 3), 4)
        assert broken.failed
        found += [x.id async for x in stream]
        assert found == await alone(file, [1, 40, 50], 100)
        assert await all_of(model, text(150, 3), 4) == await alone(file, text(150, 3), 4)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Prefixes, "keep"),
        (Prefixes, "pending"),
        (Prefixes, "restore"),
        (PagedDecoder, "save"),
        (PagedDecoder, "load"),
    ],
)
async def test_an_error_with_what_is_stored_reaches_no_other_sequence(
    file: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    begin = text(150, 3)
    async with running(file) as model:
        engine = engine_of(model)
        engine.prefixes = Prefixes(engine.decoder, 8 << 20)
        await all_of(model, begin, 3)
        await all_of(model, [*begin[:100], 7], 3)
        stream = model.generate([1, 40, 50], max_tokens=100, stop_ids=())
        found = [(await anext(stream)).id]
        prompt = [*begin, *text(60, 9)]  # a page more than what is stored
        wanted = await alone(file, prompt, 4)
        with monkeypatch.context() as patch:
            broken = Broken(patch, place, name)
            got: list[int] | str
            try:
                got = await all_of(model, prompt, 4)
            except EngineError as error:
                got = str(error)
        assert broken.failed
        assert got in (wanted, MESSAGE)
        found += [x.id async for x in stream]
        assert found == await alone(file, [1, 40, 50], 100)
        assert await all_of(model, prompt, 4) == wanted
        await settle(engine)


async def test_a_turn_that_fails_again_and_again_ends_each_request_and_stops_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def one(model: TextModel) -> None:
        with pytest.raises(EngineError, match=re.escape(MESSAGE)):
            await all_of(model, [1, 5, 9], 3)
        ended.append(model)

    async with running(file) as model:
        expected = await all_of(model, [1, 5, 9], 3)
        with monkeypatch.context() as patch:
            broken = Broken(patch, Engine, "_admit", times=1000)
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(one, model)
            assert 1 <= broken.failed <= 20
        assert len(ended) == 6
        assert await all_of(model, [1, 5, 9], 3) == expected
        await settle(engine_of(model))


@pytest.mark.long
async def test_an_engine_in_which_nothing_goes_on_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(file) as model:
        expected = await all_of(model, [1, 5, 9], 3)
        for place, name, result in ((steps, "next_prompts", []), (Engine, "_admit", None)):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, lambda *_, result=result, **__: result)
                with pytest.raises(EngineError, match="the engine does not go on: <Engine "):
                    await all_of(model, [1, 5, 9], 3)
            assert await all_of(model, [1, 5, 9], 3) == expected
        await settle(engine_of(model))


async def test_a_prompt_without_a_place_does_not_hide_those_that_have_one(file: Path) -> None:
    begin = text(256, 1)
    # The second waits for the pages of the first. When they are stored, it needs 486 rows in a row,
    # and the third has been placed in the middle of the rows that prompts share.
    asked = [([1, 5, 9], 20), (begin, 2), (begin + text(231, 2)[1:], 2), (text(486, 3), 2)]
    found: dict[int, list[int]] = {}

    async with running(file) as model:
        engine = engine_of(model)
        engine.prefixes = Prefixes(engine.decoder, 16 * (engine.decoder.page_bytes() + 4 * PAGE))

        async def one(i: int) -> None:
            found[i] = await all_of(model, *asked[i])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, 0)
            await until(lambda: any(x.made for x in engine._active.values()))
            for i in (1, 2, 3):
                tasks.start_soon(one, i)
        await settle(engine)
    for i, (prompt, n) in enumerate(asked):
        assert found[i] == await alone(file, prompt, n)
