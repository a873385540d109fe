"""Turns of the engine: each one computes a step, or waits until a request comes, ends or goes.

Here: orders of requests in which a turn has nothing to compute, and errors between two steps. Not
here: steps (test_engine.py), pages (test_pages.py), random requests (tests/fuzz/prefixes.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aggml.models.engine.jobs import EngineError
from serve.running import all_of, greedy, running
from serve.support import until

from aggml.models.engine.engine import Engine
from aggml.models.kv.paging import PagedDecoder, Pages
from aggml.serve import steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml.models.engine.jobs import Job
    from aggml.models.kv.copying import Run


def text(n: int, first: int) -> list[int]:
    """A prompt of ``n`` tokens that no other ``first`` begins alike."""
    return [1, *((first * 17 + 7 * i) % 280 + 5 for i in range(n - 1))]


async def test_a_prompt_without_a_place_does_not_hide_those_that_have_one(file: Path) -> None:
    begin = text(256, 1)
    # The second waits for the pages of the first. When they are stored, it needs 486 rows in a row,
    # and the third has been placed in the middle of the 1,023 rows that prompts share.
    given = [begin, begin + text(231, 2)[1:], text(486, 3)]
    runs = greedy([1, 5, 9], 20)
    jobs: list[Job] = [runs, *(greedy(prompt, 2) for prompt in given)]
    found: dict[int, list[int]] = {}

    async with running(file, stored=16, budget=64) as engine:

        async def one(i: int) -> None:
            found[i] = await all_of(engine, jobs[i])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, 0)
            await until(lambda: runs.made)
            for i in (1, 2, 3):
                tasks.start_soon(one, i)
    assert [len(found[i]) for i in range(4)] == [20, 2, 2, 2]
    async with running(file, stored=0, budget=64) as engine:
        for i, job in enumerate(jobs):
            assert found[i] == await all_of(engine, greedy(job.prompt, job.n_predict))


class Broken:
    """Fails the next ``times`` calls of a function, with an error that nobody expects there."""

    def __init__(self, patch: pytest.MonkeyPatch, place: object, name: str, times: int = 1) -> None:
        self.left = times
        self._does = getattr(place, name)
        patch.setattr(place, name, lambda *given, **more: self._call(*given, **more))

    def _call(self, *given: Any, **more: Any) -> Any:
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("nobody expects this")
        return self._does(*given, **more)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (steps, "planned"),
        (steps, "next_prompts"),
        (PagedDecoder, "promise"),
        (PagedDecoder, "queue"),
        (Pages, "take"),
        (Pages, "surplus"),
        (Pages, "give_back"),
        (Engine, "_take"),
        (Engine, "_clear"),
    ],
)
async def test_an_unexpected_error_in_a_turn_fails_its_requests_and_no_later_ones(
    file: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    given = text(80, 4)
    async with running(file) as engine:
        expected = await all_of(engine, greedy(given, 3))
        with monkeypatch.context() as patch:
            broken = Broken(patch, place, name)
            with caplog.at_level(logging.CRITICAL, logger="serve"):
                try:
                    found: list[Any] = await all_of(engine, greedy(given, 3))
                except EngineError as error:
                    found = [str(error)]
                assert found in (expected, ["the computation failed: nobody expects this"])
            await until(lambda: not broken.left)
        again = [await all_of(engine, greedy(given, 3)) for _ in range(3)]
        assert again == [expected] * 3
        await until(lambda: not engine.active)
        assert (engine.pages.used, engine.pages.slots, engine.queued) == (0, [], 0)


async def test_a_turn_that_fails_again_and_again_fails_each_request_and_stops_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = []

    async def one(engine: Engine) -> None:
        with pytest.raises(EngineError, match="nobody expects this") as caught:
            await all_of(engine, greedy([1, 5, 9], 3))
        errors.append(caught.value)

    async with running(file) as engine:
        expected = await all_of(engine, greedy([1, 5, 9], 3))
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL, logger="serve"):
            Broken(patch, Engine, "_admit", times=6)
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(one, engine)
        assert len(errors) == 6
        assert await all_of(engine, greedy([1, 5, 9], 3)) == expected


async def test_pages_that_cannot_be_stored_stop_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(model: PagedDecoder, runs: Sequence[Run]) -> None:
        raise OSError("no thread can be started")

    begin = text(200, 5)
    async with running(file, stored=16) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(PagedDecoder, "copy_rows", fails)
            expected = await all_of(engine, greedy(begin, 5))
            await until(lambda: not engine.active)
        assert len(engine.prefixes) == engine.pages.stored == 0
        for cached in (0, 192):
            job = greedy(begin, 5)
            assert await all_of(engine, job) == expected
            assert job.cached == cached


async def test_sequences_of_which_none_goes_on_are_an_error_and_no_endless_turn(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(file) as engine:
        expected = await all_of(engine, greedy([1, 5, 9], 3))
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL, logger="serve"):
            patch.setattr(steps, "next_prompts", lambda *_: [])
            with pytest.raises(EngineError, match="1 sequences, and none of them goes on"):
                await all_of(engine, greedy([1, 5, 9], 3))
            patch.setattr(Engine, "_admit", lambda _: None)
            with pytest.raises(EngineError, match="1 sequences wait although none runs"):
                await all_of(engine, greedy([1, 5, 9], 3))
        assert await all_of(engine, greedy([1, 5, 9], 3)) == expected
