"""Who drives the engine: tasks of several event loops, of which some have stopped."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import anyio

import aggml

if TYPE_CHECKING:
    from pathlib import Path


def test_a_loop_that_has_stopped_leaves_its_slot_to_those_of_other_loops(file: Path) -> None:
    model = anyio.run(partial(aggml.models.load, file, ctx=256, slots=1))

    async def whole() -> list[int]:
        return [x.id async for x in model.generate([1, 7], max_tokens=4, stop_ids=())]

    wanted = anyio.run(whole)
    loop = asyncio.new_event_loop()
    begun = asyncio.Event()

    async def consume() -> None:
        async for _ in model.generate([1, 5], max_tokens=30, stop_ids=()):
            begun.set()

    task = loop.create_task(consume())
    loop.run_until_complete(begun.wait())

    async def patient() -> list[int]:
        with anyio.fail_after(60):
            return await whole()

    assert anyio.run(patient) == wanted
    loop.run_until_complete(task)
    loop.close()
    anyio.run(model.aclose)
