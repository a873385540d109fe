"""Which replica gets a request: the one with most of its prompt's beginning, unless it is busy.

A prompt is cut into pieces of 256 bytes, of text or of token ids: about a page of 64 tokens, as
`aggml.serve` stores them. The name of a piece is a hash of it and of all pieces before it. Here:
plain functions on values. Not here: Ray's router (router.py), the calls (front.py).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ReplicaPrefixes", "pieces_of", "rank_replicas"]

PIECE: Final = 256  # bytes
MOST: Final = 1024  # the most pieces of a prompt that are used: 64,000 tokens
DIGEST: Final = 16


class _Asked(msgspec.Struct):
    """The parts of a request's body that matter here, of completions and of chats."""

    model: Any = None
    prompt: Any = None
    messages: Any = None


def pieces_of(body: bytes) -> list[bytes]:
    """The hashes of the full pieces of a request's prompt; none if the body has no prompt.

    Args:
        body: of a request. If it has several prompts, the first one counts.
    """
    try:
        asked = _DECODER.decode(body)
    except msgspec.MsgspecError:
        return []  # the replica will answer what is wrong
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


class ReplicaPrefixes:
    """The pieces of prompts that each replica has got, the least recently used first.

    A replica may have dropped these pages meanwhile. Then it computes them, as any other would.

    Args:
        most: the most pieces that are remembered of each replica.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def note(self, replica: str, pieces: Sequence[bytes]) -> None:
        """Note that a replica has got a prompt."""
        held = self._held.setdefault(replica, OrderedDict())
        for piece in reversed(pieces):  # so that the last pieces are dropped first
            held[piece] = None
            held.move_to_end(piece)
        while len(held) > self._most:
            held.popitem(last=False)

    def keep(self, replicas: Sequence[str]) -> None:
        """Forget all replicas but these; the others are gone."""
        self._held = {k: v for k, v in self._held.items() if k in set(replicas)}

    def match(self, replica: str, pieces: Sequence[bytes]) -> int:
        """How many of a prompt's first pieces a replica has got."""
        held = self._held.get(replica, OrderedDict())
        return next((n for n, piece in enumerate(pieces) if piece not in held), len(pieces))

    def size(self, replica: str) -> int:
        """How many pieces are remembered of a replica."""
        return len(self._held.get(replica, ()))


def rank_replicas(
    pieces: Sequence[bytes], loads: Mapping[str, int], table: ReplicaPrefixes, imbalance: int
) -> list[str]:
    """Replicas in the order of preference.

    Args:
        pieces: of the prompt.
        loads: requests under way at each replica.
        table: which pieces the replicas have got.
        imbalance: a replica with so many more requests than the least loaded one, or more, is not
            preferred for its pieces.
    """
    least = min(loads.values(), default=0)

    def order(replica: str) -> tuple[int, int, int, str]:
        load = loads[replica]
        match = table.match(replica, pieces) if load - least < imbalance else 0
        return -match, load, table.size(replica), replica

    return sorted(loads, key=order)
