"""Tasks that run beside a block of code and end with it.

Not here: the tasks themselves (aggml/models/engine/engine.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["Beside"]


class Beside:
    """A task group that is cancelled at the end of its ``async with`` block.

    An exception that the block itself raises is passed on as it is, not within an ExceptionGroup.
    """

    async def __aenter__(self) -> TaskGroup:
        self._tasks = anyio.create_task_group()
        return await self._tasks.__aenter__()

    async def __aexit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(raised, error, trace)
        except BaseExceptionGroup as group:
            if error is not None and group.exceptions == (error,):
                return False
            raise
