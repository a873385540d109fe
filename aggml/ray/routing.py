"""Which replica gets a request: the one that has most of its prompt's beginning, unless it is busy.

A prompt is cut into pieces of 256 bytes, of text or of token ids: about a page of 64 tokens, as
`aggml.serve` stores them. Each piece is named by a hash of itself and of all before it. Here: plain
functions on values. Not here: Ray's router (router.py), the way of a request (front.py).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Table", "pieces_of", "ranked"]

PIECE: Final = 256  # bytes
MOST: Final = 1024  # pieces of a prompt that are looked at: 64,000 tokens
DIGEST: Final = 16


class _Asked(msgspec.Struct):
    """What names the beginning of a prompt, of completions and of chats."""

    model: Any = None
    prompt: Any = None
    messages: Any = None


def pieces_of(body: bytes) -> list[bytes]:
    """The hashes of the whole pieces of a request's prompt; none if the body has none.

    Args:
        body: of a request. Of several prompts the first one counts.
    """
    try:
        asked = _DECODER.decode(body)
    except msgspec.MsgspecError:
        return []  # the replica says what is wrong
    prompt = asked.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        data = prompt.encode("utf-8", "replace")
    elif isinstance(prompt, list):
        try:
            data = np.asarray(prompt[: MOST * PIECE // 4], np.int32).tobytes()
        except (ValueError, TypeError, OverflowError):
            return []
    elif isinstance(asked.messages, list):
        data = b"".join(msgspec.json.encode(message) for message in asked.messages)
    else:
        return []
    before = hashlib.blake2b(repr(asked.model).encode(), digest_size=DIGEST).digest()
    found = []
    for at in range(0, min(len(data) // PIECE, MOST) * PIECE, PIECE):
        piece = before + data[at : at + PIECE]
        before = hashlib.blake2b(piece, digest_size=DIGEST).digest()
        found.append(before)
    return found


_DECODER: Final = msgspec.json.Decoder(_Asked)


class Table:
    """The pieces of prompts that each replica was given, the least recently used first.

    A replica may have given up its pages meanwhile: then it computes them as any other would.

    Args:
        most: pieces of each replica.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def note(self, replica: str, pieces: Sequence[bytes]) -> None:
        """A replica was given a prompt."""
        held = self._held.setdefault(replica, OrderedDict())
        for piece in reversed(pieces):  # so that none goes before those that follow it
            held[piece] = None
            held.move_to_end(piece)
        while len(held) > self._most:
            held.popitem(last=False)

    def keep(self, replicas: Sequence[str]) -> None:
        """Forget all others: they are gone."""
        self._held = {k: v for k, v in self._held.items() if k in set(replicas)}

    def match(self, replica: str, pieces: Sequence[bytes]) -> int:
        """With how many pieces that a replica was given a prompt begins."""
        held = self._held.get(replica, OrderedDict())
        return next((n for n, piece in enumerate(pieces) if piece not in held), len(pieces))

    def size(self, replica: str) -> int:
        """How many pieces a replica was given and has not lost."""
        return len(self._held.get(replica, ()))


def ranked(
    pieces: Sequence[bytes], loads: Mapping[str, int], table: Table, imbalance: int
) -> list[str]:
    """Replicas in the order in which they are asked.

    Args:
        pieces: of the prompt.
        loads: requests that each replica has under way.
        table: what they were given.
        imbalance: a replica that would have more than so many requests above the least loaded one
            is not preferred for what it was given.
    """
    least = min(loads.values(), default=0)

    def order(replica: str) -> tuple[int, int, int, str]:
        load = loads[replica]
        match = table.match(replica, pieces) if load - least < imbalance else 0
        return -match, load, table.size(replica), replica

    return sorted(loads, key=order)
