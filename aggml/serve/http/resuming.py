"""A stream that one service has begun, and that another one goes on with.

Whoever stands in front of several services (`aggml.ray`) puts a `SoFar` into the extensions of an
ASGI scope, under `RESUMING`. Then each message of a stream has a `Note` beside its events, which
the one in front adds to the `SoFar`. If the service dies, the next one gets it with the same
request: it computes from the prompt and the tokens that were sent, and sends what follows. Here:
what is known of a stream. Not here: choices (choice.py), events (forms.py).
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

__all__ = ["NOTE", "RESUMING", "Note", "Sent", "SoFar", "Write", "so_far_of"]

RESUMING: Final = "aggml.resuming"  # in the extensions of a scope
NOTE: Final = "aggml.note"  # in a message of the body


class Note(NamedTuple):
    """What an event tells its client.

    Attributes:
        choice: the answer's, that it is about; None: none.
        tokens: those of the choice that were not in an event before.
        characters: how many of the choice's text the client has then.
        ended: this is the last event of the choice; without a choice, of the stream.
    """

    choice: int | None = None
    tokens: tuple[int, ...] = ()
    characters: int = 0
    ended: bool = False


class Write(Protocol):
    """Sends events, with what they tell."""

    def __call__(self, data: bytes, note: Note | None = None) -> Awaitable[None]:
        """Send them."""
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
        name: of the answer, which stays the same.
        created: when that was, in seconds since 1970.
        seed: for a request without one, so that all services draw alike.
        seconds: since the request came.
        choices: by their numbers; the first event of each is sent.
        ended: nothing follows.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    seconds: float = 0.0
    choices: dict[int, Sent] = field(default_factory=dict)
    ended: bool = False

    def add(self, note: Note) -> None:
        """An event was sent."""
        if note.choice is None:
            self.ended = self.ended or note.ended
            return
        sent = self.choices.setdefault(note.choice, Sent())
        sent.tokens += note.tokens
        sent.characters = max(sent.characters, note.characters)
        sent.ended = note.ended

    def of(self, choice: int) -> Sent | None:
        """What was sent of a choice; None: nothing, not even its first event."""
        return self.choices.get(choice)


def so_far_of(scope: Mapping[str, object]) -> SoFar | None:
    """What was sent of an answer; None: nobody in front wants to know."""
    extensions = scope.get("extensions")
    found = extensions.get(RESUMING) if isinstance(extensions, dict) else None
    return found if isinstance(found, SoFar) else None
