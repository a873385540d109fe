"""What lives on a device: the backends, buffers and events that were made and have not gone.

Here: noting and asking, by weak references, so that nobody is kept alive. Not here: who asks
(registry/table.py, before it removes a family).
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol, TypeVar

__all__ = ["Named", "living", "note", "there"]

T = TypeVar("T")


class Named(Protocol):
    """What is known down here of a device: the whole is `aggml.Device`."""

    @property
    def name(self) -> str:
        """As the registry lists it."""
        ...


def there(weak: weakref.WeakSet[T]) -> list[T]:
    """What is in a weak set at this moment, which other threads may change.

    Its own iterator raises RuntimeError when another thread adds something meanwhile. A copy of the
    set of references is one step.
    """
    return [thing for ref in weak.data.copy() if (thing := ref()) is not None]  # type: ignore[attr-defined]


def note(device: object, thing: object) -> None:
    """Remember, with the device, that ``thing`` was made on it."""
    # setdefault is one step: two threads that come at once find the same set.
    known: weakref.WeakSet[Any] = vars(device).setdefault("_living", weakref.WeakSet())
    known.add(thing)


def living(device: object) -> list[Any]:
    """What was made on ``device`` and has not gone; closed things are left out once idle."""
    known: weakref.WeakSet[Any] | None = vars(device).get("_living")
    return [
        thing
        for thing in (() if known is None else there(known))
        if not getattr(thing, "closed", False) or getattr(thing, "pending", False)
    ]
