"""Small steps on Ray's compiled graphs: through shared memory and threads that wait for it.

A call of an actor takes about 1 ms; a step through a compiled graph 0.2 to 0.3 ms for each stage
(two idle actors on one machine, ray 2.60). Its buffers have a fixed size, so pieces of prompts go
by calls. Here: compiling, sending, receiving. Not here: which steps go this way (dispatch.py).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ray.dag import InputNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.ray.stage import Step

__all__ = ["Channel", "raising"]

BESIDE: Final = 64 << 10  # bytes of a message beside its arrays


class Channel:
    """A way through all stages. Made and closed in a thread that may block.

    Args:
        actors: the stages, open.
        nbytes: of the largest message.
        most: messages under way.
    """

    def __init__(self, actors: Sequence[Any], nbytes: int, most: int) -> None:
        with InputNode() as message:
            for actor in actors:
                message = actor.through.bind(message)
        self._graph = message.experimental_compile(
            _buffer_size_bytes=nbytes + BESIDE, _max_inflight_executions=most + 1
        )
        self._sent: queue.SimpleQueue[tuple[Any, Callable[[Callable[[], Any]], None]] | None]
        self._sent = queue.SimpleQueue()
        self._closing = False
        self._reader = threading.Thread(target=self._receive, name="aggml-channel", daemon=True)
        self._reader.start()

    def send(self, step: Step, tell: Callable[[Callable[[], Any]], None]) -> None:
        """Send a step.

        Args:
            step: as `aggml.ray.stage.Stage.step` takes it.
            tell: called by another thread when the step is done, with a function that returns the
                results or raises.
        """
        self._sent.put((self._graph.execute((step, None)), tell))

    def close(self) -> None:
        """End it; steps under way fail."""
        self._closing = True
        with contextlib.suppress(Exception):  # stages may be gone
            self._graph.teardown()
        self._sent.put(None)
        self._reader.join()

    def _receive(self) -> None:
        """Tell of results, in the order in which their steps were sent."""
        while (sent := self._sent.get()) is not None:
            ref, tell = sent
            try:
                found = _own(ref.get(timeout=-1))  # as long as it takes
            except BaseException as error:  # whatever it was: those who wait must hear of it
                tell(raising(error))
            else:
                tell(raising(found) if isinstance(found, BaseException) else _returning(found))


def _own(message: tuple[Any, Any]) -> Any:  # noqa: ANN401 arrays or an exception
    """Copies of the results: the message lies in a buffer, which waits until nobody reads it."""
    found = message[1]
    return found if isinstance(found, BaseException) else [np.array(x) for x in found]


def _returning(found: Any) -> Callable[[], Any]:  # noqa: ANN401
    return lambda: found


def raising(error: BaseException) -> Callable[[], Any]:
    """A function that raises it."""

    def fail() -> Any:  # noqa: ANN401
        raise error

    return fail
