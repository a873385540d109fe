"""Objects that live on a device: the backends, buffers and events that were made and still exist.

Here: registering and listing them by weak references, so that none is kept alive. Not here: the
user of the list (registry/table.py, before it removes a family).
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol, TypeVar

__all__ = ["Named", "list_alive", "note", "there"]

T = TypeVar("T")


class Named(Protocol):
    """The part of a device that this file uses; `aggml.Device` is the whole."""

    @property
    def name(self) -> str:
        """As the registry lists it."""
        ...


def there(weak: weakref.WeakSet[T]) -> list[T]:
    """The objects in a weak set at this moment; other threads may change the set.

    The set's own iterator raises RuntimeError if another thread adds an object meanwhile. Copying
    the set of references is one atomic step.
    """
    return [thing for ref in weak.data.copy() if (thing := ref()) is not None]  # type: ignore[attr-defined]


def note(device: object, thing: object) -> None:
    """Remember, with the device, that ``thing`` was made on it."""
    # setdefault is atomic: two threads that come at the same time find the same set.
    known: weakref.WeakSet[Any] = vars(device).setdefault("_living", weakref.WeakSet())
    known.add(thing)


def list_alive(device: object) -> list[Any]:
    """Objects made on ``device`` that still exist; closed ones are left out once they are idle."""
    known: weakref.WeakSet[Any] | None = vars(device).get("_living")
    return [
        thing
        for thing in (() if known is None else there(known))
        if not getattr(thing, "closed", False) or getattr(thing, "pending", False)
    ]
