"""Copies a model file to nodes that do not have it, once for each node.

A node uses the driver's path if the same file lies there, else a copy in its cache, which it
fetches in pieces of 64 KiB. Ray sends pieces of that size within its messages, so weights never go
through the object store. Here: comparing files, fetching. Not here: reading them (aggml.gguf).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import ray

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FileServer", "Source", "cache_folder", "fetch", "source_of"]

PIECE: Final = 64 << 10  # bytes; Ray puts results above 100 KB into the object store
UNDER_WAY: Final = 16  # pieces asked for before the first has come
ENDS: Final = 1 << 20  # bytes at both ends of a file that go into its fingerprint


@dataclass(frozen=True, slots=True)
class Source:
    """A model file of the driver.

    Attributes:
        path: the absolute path on the driver's node.
        size: bytes.
        fingerprint: a hash of the size, the first and the last MiB; GGUF has names and shapes in
            the first.
        shared: whether other nodes may use a file at the same path.
    """

    path: str
    size: int
    fingerprint: str
    shared: bool = True


def source_of(path: Path, *, shared: bool = True) -> Source:
    """The source of a file here; reads its ends."""
    return Source(str(path.resolve()), path.stat().st_size, _fingerprint(path), shared)


def _fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        known = hashlib.sha256(str(size).encode())
        known.update(file.read(ENDS))
        file.seek(max(size - ENDS, 0))
        known.update(file.read(ENDS))
    return known.hexdigest()[:32]


def cache_folder() -> Path:
    """Where copies lie: AGGML_RAY_CACHE, else a folder in the user's cache."""
    given = os.environ.get("AGGML_RAY_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(given) if given else Path(home) / "aggml" / "ray"


def _same(path: Path, source: Source) -> bool:
    try:
        return path.stat().st_size == source.size and _fingerprint(path) == source.fingerprint
    except OSError:
        return False


class FileServer:
    """An actor on the driver's node that reads pieces of the file for others."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)

    async def read(self, offset: int) -> bytes:
        """The piece that begins at ``offset``."""
        return os.pread(self._file, PIECE, offset)


async def fetch(
    source: Source,
    files: str,
    progress: Callable[[int, int], None],
) -> Path:
    """Fetch a file unless it is here already, and return its path on this node.

    If several processes of a node need the same file, the first one fetches it and the others wait.

    Args:
        source: the file.
        files: name of the `FileServer` actor of its node.
        progress: called with bytes fetched so far and bytes in all.

    Cancellation: the incomplete copy is deleted.
    """
    here = Path(source.path)
    if source.shared and await anyio.to_thread.run_sync(_same, here, source):
        return here
    copy = cache_folder() / f"{source.fingerprint}{here.suffix}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with copy.with_suffix(".lock").open("w") as lock:
        await anyio.to_thread.run_sync(fcntl.flock, lock, fcntl.LOCK_EX, abandon_on_cancel=True)
        if not await anyio.to_thread.run_sync(_same, copy, source):
            await _fetch(source, ray.get_actor(files), copy, progress)
    return copy


async def _fetch(
    source: Source,
    files: Any,  # noqa: ANN401 Ray's handle of an actor has no type
    copy: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Write the copy under a temporary name, and rename it when it is complete."""
    offsets = deque(range(0, source.size, PIECE))
    asked: deque[Any] = deque()
    handle, name = tempfile.mkstemp(dir=copy.parent, prefix=copy.name)
    try:
        with os.fdopen(handle, "wb") as file:
            while offsets or asked:
                while offsets and len(asked) < UNDER_WAY:
                    asked.append(files.read.remote(offsets.popleft()))
                file.write(await asked.popleft())
                progress(file.tell(), source.size)
        os.replace(name, copy)
    except BaseException:
        await anyio.Path(name).unlink(missing_ok=True)
        raise
