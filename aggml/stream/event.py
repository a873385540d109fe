"""Event: a point in a backend's work that tasks and other backends can wait for.

Here: asking and waiting for the latest mark. Not here: recording it and holding a backend until it
is reached, which are operations of a backend (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.process.alive import note
from aggml.stream.waits import checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator

    from aggml.process.alive import Named
    from aggml.stream.future import Future

__all__ = ["Event"]


class Event:
    """Marks "all that was queued before" on the backend that recorded it last.

    An event that was never recorded counts as reached. Recording it again moves the mark; earlier
    waits keep the old mark (as with CUDA events). ``await event`` waits for the latest mark.

    Cancellation: abandons the wait.
    """

    __slots__ = ("__weakref__", "_mark", "device")

    def __init__(self, device: Named) -> None:
        self.device = device
        note(device, self)
        self._mark: Future[None] | None = None

    def done(self) -> bool:
        """Whether the latest mark is reached."""
        return self._mark is None or self._mark.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the mark is reached (ggml_backend_event_synchronize).

        Args:
            timeout: seconds, or None for ever.

        Returns:
            Whether it is reached.
        """
        return self._mark is None or self._mark.wait(timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        if self._mark is None:
            yield from checkpoint()
        else:
            yield from self._mark.__await__()

    def __repr__(self) -> str:
        state = "never recorded" if self._mark is None else "reached" if self.done() else "pending"
        return f"<Event of {self.device.name}, {state}>"
