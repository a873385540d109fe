"""TextEngine: the protocol by which a `TextModel` has requests computed.

`Engine` (engine.py) implements it on one machine, aggml.ray on many. Not here: requests
(requests.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aggml.models.engine.requests import Counters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.engine.requests import PageUsage, TextRequest

__all__ = ["Counters", "TextEngine"]


class TextEngine(Protocol):
    """Computes any number of requests. `Engine` documents each method.

    Attributes:
        decoder: what computes: its ``model``, ``ctx`` and ``vocabulary``.
        slots: sequences at a time.
        max_waiting: requests that wait for a slot.
        counters: counts of past events.
    """

    decoder: Any
    slots: int
    max_waiting: int
    counters: Counters

    @property
    def queued(self) -> int:
        """Requests that have no slot yet."""
        ...

    @property
    def page_usage(self) -> PageUsage:
        """Pages of keys and values."""
        ...

    @property
    def active(self) -> int:
        """Requests that have a slot."""
        ...

    @property
    def owed(self) -> int:
        """Tokens of prompts and answers that are still to come, at most."""
        ...

    def check(self, requests: Sequence[TextRequest]) -> None:
        """Check that all of these requests may be queued now."""
        ...

    def submit(self, request: TextRequest) -> None:
        """Queue a request."""
        ...

    async def fetch(self, request: TextRequest) -> None:
        """Read what is stored in files of the beginning of a prompt, before it is submitted."""
        ...

    async def flush(self) -> None:
        """Wait until what was stored so far is in files."""
        ...

    async def next(self, request: TextRequest) -> list[int]:
        """The tokens of a request that its task has not taken yet; none: it is over."""
        ...

    def cancel(self, request: TextRequest) -> None:
        """End a request. From any thread."""
        ...

    def tidy(self) -> None:
        """Have the slots of requests that are over freed soon; in a task."""
        ...

    def stop(self, why: str = ...) -> None:
        """Refuse new requests."""
        ...

    def cut_off(self, error: BaseException | None = None) -> None:
        """Refuse new requests and end the present ones."""
        ...
