"""PipelineTrace: what ran when on all nodes of a pipeline, by the clock of the driver.

Here: collecting from the stages, one file for Perfetto. Not here: recording the streams of one
process (aggml.tracing), clocks (clocks.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio

import aggml
from aggml import InvalidState, TraceEvent
from aggml.process.paths import user_path
from aggml.ray.clocks import Clock
from aggml.tracing.timeline import chrome

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from aggml.ray.clocks import Reading
    from aggml.ray.stage import Facts, Seen
    from aggml.ray.stages import Stages

__all__ = ["PipelineTrace", "StageTrace", "StepTimes"]


class StepTimes(NamedTuple):
    """When a step arrived at a stage and when it left, in seconds.

    In the driver: when the step was sent and when its results arrived.
    """

    number: int
    came: float
    went: float


@dataclass(frozen=True, slots=True)
class StageTrace:
    """What one stage did; times by `time.perf_counter` of the driver.

    Attributes:
        facts: its node and its layers.
        clock: of its node.
        steps: the steps that went through it.
        events: of its streams, as `aggml.trace` records them.
    """

    facts: Facts
    clock: Clock
    steps: list[StepTimes]
    events: list[TraceEvent]


class PipelineTrace:
    """Records what all stages and the driver do: ``async with model.trace() as t: ...; t.save(p)``.

    If a stage dies meanwhile, its records are lost; the restarted stage continues recording.

    Attributes:
        steps: of the driver.
        events: of the driver's own streams.
        stages: in their order; they are there when the trace has ended.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._first: dict[str, Reading] = {}
        self._own = aggml.trace()
        self.steps: list[StepTimes] = []
        self.events: list[TraceEvent] = []
        self.stages: list[StageTrace] = []

    async def __aenter__(self) -> Self:
        """Begin the trace.

        Raises:
            InvalidState: another trace of this pipeline has not ended.
            StageLost: a stage does not answer.
        """
        if self._stages.log is not None:
            raise InvalidState("[trace] another trace of this pipeline has not ended")
        self._stages.log = []
        try:
            self._first = await self._readings()
            await self._stages.trace(on=True)
        except BaseException:
            self._stages.log = None
            raise
        self._own.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._own.__exit__()
        log, self._stages.log = self._stages.log, None
        self.steps = [StepTimes(*x) for x in log or ()]
        self.events = self._own.events
        with anyio.CancelScope(shield=True):
            await self._collect()

    async def _collect(self) -> None:
        seen = await self._stages.trace(on=False)
        last = await self._readings()
        self.stages = [
            _align(facts, self._clock(facts.node, last[facts.node]), of)
            for facts, of in zip(self._stages.facts, seen, strict=True)
        ]

    async def _readings(self) -> dict[str, Reading]:
        """One reading of the clock of each node."""
        found: dict[str, Reading] = {}
        for number, facts in enumerate(self._stages.facts):
            if facts.node not in found:
                found[facts.node] = await self._stages.clock(number)
        return found

    def _clock(self, node: str, last: Reading) -> Clock:
        return Clock(self._first.get(node, last), last)

    def to_json(self) -> dict[str, Any]:
        """The trace in Chrome's format, with one process for the driver and one for each stage."""
        processes = [("driver", self.steps, self.events)]
        for i, x in enumerate(self.stages):
            first, end = x.facts.layers
            name = f"stage {i}: layers {first} to {end - 1}, node {x.facts.node[:8]}"
            processes.append((name, x.steps, x.events))
        starts = [x.came for _, steps, _ in processes for x in steps]
        starts += [x.submitted for _, _, events in processes for x in events]
        start = min(starts, default=0.0)
        out: list[dict[str, Any]] = []
        for pid, (name, steps, events) in enumerate(processes, 1):
            out.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
            out += chrome(events, start, pid)
            out += _spans(steps, start, pid)
        clocks = {
            f"stage {i}": {"ahead_us": x.clock.last.ahead * 1e6, "bound_us": x.clock.bound * 1e6}
            for i, x in enumerate(self.stages)
        }
        return {"traceEvents": out, "displayTimeUnit": "ms", "otherData": {"clocks": clocks}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file for https://ui.perfetto.dev."""
        user_path(path).write_text(json.dumps(self.to_json()))


def _spans(steps: Sequence[StepTimes], start: float, pid: int) -> list[dict[str, Any]]:
    """Steps as asynchronous spans, because several may be in one process at a time."""
    found: list[dict[str, Any]] = []
    for x in steps:
        same = {"cat": "step", "name": "step", "pid": pid, "tid": 0, "id2": {"local": x.number}}
        found.append({"ph": "b", "ts": (x.came - start) * 1e6, **same, "args": {"step": x.number}})
        found.append({"ph": "e", "ts": (x.went - start) * 1e6, **same})
    return found


def _align(facts: Facts, clock: Clock, seen: Seen) -> StageTrace:
    """A stage's records, with times converted to the driver's clock."""
    here = clock.here
    steps = [StepTimes(number, here(came), here(went)) for number, came, went in seen.steps]
    events = [
        x._replace(submitted=here(x.submitted), started=here(x.started), done=here(x.done))
        for x in (TraceEvent(*of) for of in seen.events)
    ]
    return StageTrace(facts, clock, steps, events)
