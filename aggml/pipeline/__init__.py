"""Pipelines: stages that work at the same time, with bounded queues between them.

    async with run(source, split, Stage(model.embed, batch=32), fan(rank, label)) as results:
        async for item in results: ...

urgency.py: priority and deadline of an item, which travel with it. stages.py: what a stage is, and
its errors. queues.py: the queues. ordering.py: keeps the order of a stage with several workers.
running.py: the tasks of a run. Nothing here knows what the stages do: they are async functions.
"""

from __future__ import annotations

from aggml.pipeline.running import PipelineResults, run
from aggml.pipeline.stages import Fan, Stage, StageError, StageStats, fan
from aggml.pipeline.urgency import Urgency, Urgent, current_urgency

__all__ = [
    "Fan", "PipelineResults", "Stage", "StageError", "StageStats", "Urgency", "Urgent",
    "current_urgency", "fan", "run",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
