"""What goes into a step and when, with imitated stages."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing

from aggml.ray.dispatch import Dispatcher, PendingAsk, ResultForm
from aggml.ray.errors import StageLost
from aggml.ray.step import Ask, PipelineStep

if TYPE_CHECKING:
    from aggml.ray.stages import Stages


class _Wire:
    """Holds the steps under way until the test ends them."""

    def __init__(self) -> None:
        self.sent: list[tuple[PipelineStep, Any]] = []

    def send(self, step: PipelineStep, tell: Any) -> None:
        self.sent.append((step, tell))

    def end(self, i: int = 0) -> None:
        """End the i-th step. The best token of each ask is its slot's number."""
        step, tell = self.sent.pop(i)
        slots = np.array([[x.slot] * step.best for x in step.asks], np.int32)
        logits = -np.arange(slots.size, dtype=np.float32).reshape(slots.shape)
        tell(lambda: [slots, logits])

    def fail(self, error: Exception) -> None:
        _, tell = self.sent.pop(0)
        failed: Future[Any] = Future()
        failed.set_exception(error)
        tell(failed.result)


class _Stages:
    def __init__(self) -> None:
        self.epoch = 0
        self.actors: list[Any] = []
        self.wire: Any = _Wire()

    def lost(self, error: BaseException) -> StageLost:
        return StageLost(str(error))


def _dispatcher(stages: _Stages, most: int) -> Dispatcher:
    return Dispatcher(cast("Stages", stages), most)


def _ask(dispatcher: Dispatcher, slot: int, best: int = 1) -> PendingAsk:
    return dispatcher.queue(Ask(slot, 9, (5,), 0, 1, last=True), ResultForm(best))


def _under_way(stages: _Stages) -> list[list[int]]:
    return [[x.slot for x in step.asks] for step, _ in stages.wire.sent]


async def test_slots_are_shared_among_the_steps_under_way() -> None:
    stages = _Stages()
    dispatcher = _dispatcher(stages, 2)
    asked = [_ask(dispatcher, slot) for slot in range(6)]
    # a step starts at once and does not wait until it is full
    assert _under_way(stages) == [[0], [1]]
    stages.wire.end()
    await asked[0].result()
    assert _under_way(stages) == [[1], [2, 3, 4]]  # half of the five slots that are left
    stages.wire.end()
    await asked[1].result()
    assert _under_way(stages) == [[2, 3, 4], [5]]


async def test_each_ask_gets_its_rows_and_as_many_of_the_best_as_it_wants() -> None:
    stages = _Stages()
    dispatcher = _dispatcher(stages, 1)
    first = _ask(dispatcher, 7)
    both = [_ask(dispatcher, 2, best=1), _ask(dispatcher, 3, best=4)]
    stages.wire.end()
    await first.result()
    assert _under_way(stages) == [[2, 3]]
    stages.wire.end()
    found = [await x.result() for x in both]
    assert [x[0].tolist() for x in found] == [[[2]], [[3, 3, 3, 3]]]
    assert found[0][1].tolist() == [[0.0]]  # the logits of the best token


async def test_what_waits_while_stages_are_started_anew_fails_and_does_not_hang() -> None:
    stages = _Stages()
    dispatcher = _dispatcher(stages, 1)
    flying, waiting = _ask(dispatcher, 0), _ask(dispatcher, 1)
    stages.epoch = 1
    stages.wire.fail(StageLost("gone"))
    with anyio.fail_after(300):
        with pytest.raises(StageLost, match="gone"):
            await flying.result()
        with pytest.raises(StageLost, match="restarted before"):
            await waiting.result()
    assert _under_way(stages) == []


async def test_what_is_withdrawn_while_it_waits_is_not_sent() -> None:
    stages = _Stages()
    dispatcher = _dispatcher(stages, 1)
    first, second, third = (_ask(dispatcher, slot) for slot in range(3))
    second.withdraw()
    stages.wire.end()
    await first.result()
    assert _under_way(stages) == [[2]]
    stages.wire.end()
    await third.result()


async def test_a_wire_that_breaks_while_it_is_sent_to_gives_its_place_back() -> None:
    stages = _Stages()
    broken = stages.wire

    def refuse(step: PipelineStep, tell: Any) -> None:
        stages.wire = broken
        raise StageLost("closed")

    stages.wire = _Wire()
    stages.wire.send = refuse
    dispatcher = _dispatcher(stages, 1)
    first, second = _ask(dispatcher, 0), _ask(dispatcher, 1)
    with anyio.fail_after(300):
        with pytest.raises(StageLost, match="closed"):
            await first.result()
        assert _under_way(stages) == [[1]]
        stages.wire.end()
        await second.result()
