"""Answers that are kept in memory for `previous_response_id`: the newest ones, within bounds.

Not here: what an answer is (responses.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from aggml.serve.http.schema import RequestError

__all__ = ["ResponseStore", "StoredResponse"]

ANSWERS: Final = 256  # that are kept
BYTES: Final = 64 << 20  # of the answers that are kept and of what went before them


class StoredResponse(NamedTuple):
    """An answer that is kept.

    Attributes:
        owner: the name of the key that asked for it; None: there are no keys.
        items: the conversation with the answer.
        answer: the response as it was told.
        size: bytes.
    """

    owner: str | None
    items: list[dict[str, Any]]
    answer: dict[str, Any]
    size: int


class ResponseStore:
    """Answers by their ids: the newest ones, within bounds.

    Args:
        most: answers.
        size: bytes of all of them.
    """

    def __init__(self, most: int = ANSWERS, size: int = BYTES) -> None:
        self._most = most
        self._size = size
        self._used = 0
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(
        self, name: str, owner: str | None, items: list[dict[str, Any]], answer: dict[str, Any]
    ) -> None:
        """Keep an answer, and forget the oldest ones if there are too many."""
        size = len(msgspec.json.encode(items)) + len(msgspec.json.encode(answer))
        if size > self._size:
            return
        self._kept[name] = StoredResponse(owner, items, answer, size)
        self._used += size
        while len(self._kept) > self._most or self._used > self._size:
            _, oldest = self._kept.popitem(last=False)
            self._used -= oldest.size

    def find(self, name: str, owner: str | None) -> StoredResponse:
        """An answer of the same client.

        Raises:
            RequestError: there is none, or it was forgotten.
        """
        found = self._kept.get(name)
        if found is None or found.owner != owner:
            raise RequestError(
                404, f"there is no response {name[:64]!r}: it was not stored, or was forgotten",
                code="response_not_found",
            )  # fmt: skip
        return found

    def delete(self, name: str, owner: str | None) -> None:
        """Forget an answer.

        Raises:
            RequestError: as `find`.
        """
        self._used -= self.find(name, owner).size
        del self._kept[name]
