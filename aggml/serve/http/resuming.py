"""Lets one service go on with a stream that another one has begun and could not finish.

A front, a program that passes requests on to several services (`aggml.ray`), puts a `SoFar` into
the extensions of an ASGI scope, under `RESUMING`. Then each message of a stream has a `Note` beside
its events, and the front adds it to the `SoFar`. If the service dies, the next one gets the `SoFar`
with the same request. It computes from the prompt and the tokens that were sent, and sends the
rest. Here: what is known of a stream. Not here: choices (choice.py), events (forms.py).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

__all__ = ["NOTE", "RESUMING", "Note", "Sent", "SoFar", "Write", "so_far_of"]

RESUMING: Final = "aggml.resuming"  # key of the `SoFar` in the extensions of a scope
NOTE: Final = "aggml.note"  # key of the `Note` in a message of the body


class Note(NamedTuple):
    """What an event has told its client.

    Attributes:
        choice: the number of the choice that the event is about; None: of none.
        tokens: tokens of the choice that were in no event before.
        characters: how many characters of the choice's text the client has after the event.
        ended: this is the last event of the choice; without a choice, of the stream.
    """

    choice: int | None = None
    tokens: tuple[int, ...] = ()
    characters: int = 0
    ended: bool = False


class Write(Protocol):
    """Sends events, with a note of what they tell."""

    def __call__(self, data: bytes, note: Note | None = None) -> Awaitable[None]:
        """Send the bytes of one or more events."""
        ...


@dataclass
class Sent:
    """What a client has of one choice."""

    tokens: list[int] = field(default_factory=list)
    characters: int = 0
    ended: bool = False


@dataclass
class SoFar:
    """What a client has of a stream.

    Attributes:
        name: the answer's id, which stays the same on all services.
        created: when the answer began, in seconds since 1970.
        seed: for a request without a seed, so that all services draw the same tokens.
        seconds: how long ago the request came.
        choices: by number, the choices whose first event is sent.
        ended: whether the stream is complete.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    seconds: float = 0.0
    choices: dict[int, Sent] = field(default_factory=dict)
    ended: bool = False

    def add(self, note: Note) -> None:
        """Note that an event was sent."""
        if note.choice is None:
            self.ended = self.ended or note.ended
            return
        sent = self.choices.setdefault(note.choice, Sent())
        sent.tokens += note.tokens
        sent.characters = max(sent.characters, note.characters)
        sent.ended = note.ended

    def of(self, choice: int) -> Sent | None:
        """The part of a choice that was sent; None: not even its first event."""
        return self.choices.get(choice)


def so_far_of(scope: Mapping[str, object]) -> SoFar | None:
    """The `SoFar` that a front has put into the scope; None: there is none."""
    extensions = scope.get("extensions")
    found = extensions.get(RESUMING) if isinstance(extensions, dict) else None
    return found if isinstance(found, SoFar) else None
