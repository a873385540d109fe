"""Who may ask, and how much: API keys, requests a minute and at a time of each of them.

A client is known by its key, or by its address if the service has no keys. Not here: the routes
that need no key (app.py), how many requests may wait (`Limits.max_waiting`).
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml import InvalidArgument
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["ClientShares", "Keys", "read_keys"]

CLIENTS: Final = 4096  # clients that are remembered; the one that was idle longest is forgotten
MINUTE: Final = 60.0


def read_keys(path: Path) -> list[tuple[str, str]]:
    """The keys of a file, each with its name: lines of a key, or of a name and a key.

    Empty lines and those that begin with ``#`` are skipped.

    Raises:
        InvalidArgument: a line has more than two words; there is no key.
        OSError: the file cannot be read.
    """
    found: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise InvalidArgument(
                f"[serve] line {number} of {path} has {len(words)} words, expected a key, or a "
                "name and a key"
            )
        name = words[0] if len(words) == 2 else f"key{len(found) + 1}"
        found.append((name, words[-1]))
    if not found:
        raise InvalidArgument(f"[serve] {path} has no key")
    return found


class Keys:
    """The keys of a service.

    Args:
        keys: each with the name by which records tell it; none: everybody may ask.
    """

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        self._keys = [(name, key.encode()) for name, key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, headers: Mapping[str, str]) -> str | None:
        """The name of the key that a request brings; None: the service has no keys.

        Raises:
            RequestError: the key is missing or wrong.
        """
        if not self._keys:
            return None
        given = [headers.get("x-api-key", ""), headers.get("api-key", "")]
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(token.strip())
        brought = [x.encode() for x in given if x]
        found = None
        for name, key in self._keys:  # all of them, so that the time tells nothing
            for one in brought:
                if secrets.compare_digest(one, key):
                    found = name
        if found is None:
            raise RequestError(
                401, "the key of this server is missing or wrong: send it as the header "
                "'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                code="invalid_api_key",
            )  # fmt: skip
        return found


@dataclass
class _Share:
    """What a client has taken.

    Attributes:
        left: requests that it may begin now.
        seen: when that was so.
        running: its requests under way.
    """

    left: float
    seen: float
    running: int = 0


class ClientShares:
    """How many requests each client may begin in a minute, and have under way.

    Args:
        rate: requests in a minute; None: any number.
        at_once: requests under way; None: any number.
        clock: seconds.
    """

    def __init__(
        self,
        rate: int | None = None,
        at_once: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._at_once = at_once
        self._clock = clock
        self._clients: OrderedDict[str, _Share] = OrderedDict()

    @contextmanager
    def take(self, client: str) -> Iterator[None]:
        """A request of a client, until the end of the block.

        Raises:
            RequestError: the client has too many requests under way, or began too many.
        """
        if self._rate is None and self._at_once is None:
            yield
            return
        share = self._share(client)
        if self._at_once is not None and share.running >= self._at_once:
            raise RequestError(
                429, f"this client has {share.running} requests under way, which is the most",
                code="rate_limit_exceeded", retry=1,
            )  # fmt: skip
        if self._rate is not None:
            if share.left < 1:
                wait = (1 - share.left) * MINUTE / self._rate
                raise RequestError(
                    429, f"this client began {self._rate} requests within a minute, which is the "
                    "most", code="rate_limit_exceeded", retry=wait,
                )  # fmt: skip
            share.left -= 1
        share.running += 1
        try:
            yield
        finally:
            share.running -= 1

    def _share(self, client: str) -> _Share:
        now = self._clock()
        most = float(self._rate or 0)
        share = self._clients.get(client)
        if share is None:
            share = self._clients[client] = _Share(most, now)
            self._forget()
        share.left = min(most, share.left + (now - share.seen) * most / MINUTE)
        share.seen = now
        self._clients.move_to_end(client)
        return share

    def _forget(self) -> None:
        if len(self._clients) <= CLIENTS:
            return
        for name, share in self._clients.items():
            if not share.running:
                del self._clients[name]
                return
