"""Files of stored beginnings: one page, or the states at one position, in each.

A file is written aside, brought to the disk, and renamed when it is whole. So a reader, in this
process or another one, finds a whole file or none, and two writers of one name write the same. A
file is used only if all of it is as expected: the model, the tokens, all lengths, all checksums.

    magic (8) | length of the head (4, little-endian) | head (JSON) | hash of the head (16) | blobs

The head has the checksum of each blob. Here: the format, the folder, its size. Not here: which
beginnings are stored (prefixes.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import stat
import struct
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aggml.models.errors import ModelError
from aggml.process.locks import new_lock
from aggml.process.signals import signals_blocked
from aggml.process.threads import new_thread
from aggml.stream.parker import Parker
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from aggml.models.kv.snapshots import Bytes

__all__ = ["FileReading", "FileThread", "PageFiles", "PageHead", "identity_of"]

_log = logging.getLogger("aggml")

MAGIC: Final = b"aggml-kv"
VERSION: Final = 1
HASH: Final = 16  # bytes
LONGEST: Final = 1 << 16  # bytes of a head; one of 64 tokens and 200 caches has 15,000
LENGTH: Final = struct.Struct("<I")
SUFFIX: Final = ".aggml-kv"
ASIDE: Final = ".writing"
OLD: Final = 3600.0  # seconds after which a file that was left aside is deleted
ENDS: Final = 1 << 20  # bytes at both ends of a file that go into its identity


class PageHead(NamedTuple):
    """What a file must say of itself to be used.

    Attributes:
        root: the hash of the model and of all else that keys and values depend on.
        parent: the hash of all tokens before.
        key: the hash of these tokens as well.
        first: the first position.
        tokens: from that position on.
    """

    root: str
    parent: str
    key: str
    first: int
    tokens: list[int]

    @property
    def page_name(self) -> str:
        """The name of the file, if it is a page."""
        return self.key + SUFFIX

    @property
    def end_name(self) -> str:
        """The name of the file, if it has states: those that follow a page are found by it."""
        return f"{self.parent}-{len(self.tokens):02}-{self.key}{SUFFIX}"


class PageFiles:
    """The files of a folder, which several processes may share.

    Its methods read and write files, so a loop must not call them.

    Args:
        folder: is made if it is not there.
        most: bytes of all files in it; the ones that were not used for the longest time go first.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = folder
        self.most = most
        self._told: set[str] = set()  # names of files that are not good
        self._size: int | None = None  # of all files, as far as known
        self._written = 0  # since the folder was listed

    def names(self) -> set[str]:
        """The names of all whole files."""
        try:
            return {name for name in os.listdir(self.folder) if name.endswith(SUFFIX)}
        except OSError:
            return set()

    def read(self, name: str, head: PageHead, into: Sequence[Bytes]) -> bool:
        """Fill arrays from a file; False: it is not there, or not good, which the log tells once.

        The contents of the arrays count only if the result is True.
        """
        path = self.folder / name
        try:
            with _open_regular(path) as file:
                _read(file, head, into)
            os.utime(path)  # it was used
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError) as error:
            self._tell(name, f"ignored, and the tokens are computed again: {error}")
            return False
        self._told.discard(name)
        return True

    def write(self, name: str, head: PageHead, blobs: Sequence[Bytes]) -> None:
        """Write a file, unless it is there and good."""
        path = self.folder / name
        if name not in self._told:
            with suppress(OSError):
                os.utime(path)
                return
        parts: list[bytes | memoryview] = [_head_of(head, blobs), *(blob.data for blob in blobs)]
        size = sum(len(part) for part in parts)
        if size > self.most:
            return
        aside = self.folder / f"{name}.{os.getpid()}-{secrets.token_hex(4)}{ASIDE}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(size)
            try:
                with aside.open("xb") as file:
                    for part in parts:
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(path)
            except BaseException:
                with suppress(OSError):
                    aside.unlink()
                raise
        except OSError as error:
            self._size = None
            self._tell(str(self.folder), f"could not be written, and is left out: {error}")
            return
        self._told.discard(name)
        self._size = (self._size or 0) + size
        self._written += 1

    def _make_room(self, size: int) -> None:
        """Delete the files that were not used for the longest time until ``size`` bytes fit."""
        # Another process may write, too; so the folder is listed again now and then.
        if self._size is not None and self._written < 32 and self._size + size <= self.most:
            return
        found, now = [], time.time()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.name.endswith((SUFFIX, ASIDE)):
                    continue
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(ASIDE) and about.st_mtime < now - OLD:
                        os.unlink(entry.path)
                        continue
                    found.append((about.st_mtime_ns, about.st_size, entry.path))
        total = sum(n for _, n, _ in found)
        for _, n, old in sorted(found):
            if total + size <= self.most:
                break
            if old.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    os.unlink(old)
                total -= n
        self._size, self._written = total, 0

    def _tell(self, name: str, what: str) -> None:
        if name in self._told:
            return
        if len(self._told) > 10_000:
            self._told.clear()
        self._told.add(name)
        _log.warning("[Prefixes] %s: %s", self.folder / name, what)


def _open_regular(path: Path) -> Any:  # noqa: ANN401 - a binary file
    """A regular file, opened without waiting for somebody else."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError("it is no regular file")
        return os.fdopen(number, "rb", buffering=0)
    except BaseException:
        os.close(number)
        raise


def _facts(head: PageHead, sizes: Iterable[int]) -> dict[str, Any]:
    return {"version": VERSION, **head._asdict(), "sizes": [*sizes]}


def _head_of(head: PageHead, blobs: Sequence[Bytes]) -> bytes:
    facts = _facts(head, (blob.nbytes for blob in blobs))
    facts["sums"] = [_sum(blob).hex() for blob in blobs]
    text = json.dumps(facts, separators=(",", ":")).encode()
    return b"".join((MAGIC, LENGTH.pack(len(text)), text, _sum(text)))


def _read(file: Any, head: PageHead, into: Sequence[Bytes]) -> None:  # noqa: ANN401
    """Fill the arrays.

    Raises:
        ValueError: something is not as expected.
    """
    begin = _bytes(file, len(MAGIC) + LENGTH.size)
    if not begin.startswith(MAGIC):
        raise ValueError("it is no file of aggml's keys and values")
    (length,) = LENGTH.unpack(begin[len(MAGIC) :])
    if length > LONGEST:
        raise ValueError(f"a head of {length} bytes is too long")
    text = _bytes(file, length)
    if _bytes(file, HASH) != _sum(text):
        raise ValueError("its head is damaged")
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError("its head holds no facts")
    sums = facts.pop("sums", None)
    wanted = _facts(head, (piece.nbytes for piece in into))
    for name, value in wanted.items():
        if facts.get(name) != value:
            raise ValueError(f"its {name} is not that of this model and prompt")
    size = len(begin) + length + HASH + sum(piece.nbytes for piece in into)
    if os.fstat(file.fileno()).st_size != size:
        raise ValueError(f"it has not {size} bytes")
    if not isinstance(sums, list) or len(sums) != len(into):
        raise ValueError(f"its head has not {len(into)} checksums")
    for i, (piece, known) in enumerate(zip(into, sums, strict=True)):
        view, at = piece.data, 0
        while at < piece.nbytes:
            n = file.readinto(view[at:])
            if not n:
                raise ValueError("it ends too early")
            at += n
        if _sum(piece).hex() != known:
            raise ValueError(f"part {i} is damaged")


def _bytes(file: Any, n: int) -> bytes:  # noqa: ANN401
    found = b""
    while len(found) < n:
        more = file.read(n - len(found))
        if not more:
            raise ValueError("it ends too early")
        found += more
    return found


def _sum(blob: Any) -> bytes:  # noqa: ANN401 - bytes, or an array of them
    return hashlib.blake2b(blob, digest_size=HASH).digest()


def identity_of(*paths: Path) -> str:
    """What tells the files of a model from those of another one, or from later ones at that place.

    For each file its name, size, time, and a hash of its first and last MiB; a GGUF file has its
    metadata and the names and shapes of all tensors in the first. Of a folder, all files in it; of
    a file that is one of several parts (``-00001-of-00003``), all parts. It reads files, so a loop
    must not call it.

    Raises:
        ModelError: a file cannot be read.
    """
    known = hashlib.blake2b(digest_size=HASH)
    try:
        for path in paths:
            for each in _files_of(path):
                about = each.stat()
                known.update(repr((each.name, about.st_size, about.st_mtime_ns)).encode())
                with each.open("rb") as file:
                    known.update(file.read(ENDS))
                    file.seek(max(about.st_size - ENDS, 0))
                    known.update(file.read(ENDS))
    except OSError as error:
        raise ModelError(f"cannot tell which model this is: {error}") from error
    return known.hexdigest()


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(x for x in path.iterdir() if x.is_file())
    begin, of, end = path.name.rpartition("-of-")
    if of and begin[-6:-5] == "-":
        return sorted(path.parent.glob(f"{begin[:-5]}?????-of-{end}"))
    return [path]


class FileReading:
    """The reading of a file, in the place of the future of a device's read."""

    def __init__(self) -> None:
        self._over = False
        self._error: Exception | None = None
        self._waiting: list[Parker] = []

    def end(self, error: Exception | None = None) -> None:
        """Note that it is over."""
        self._error, self._over = error, True
        for parker in self._waiting:
            parker.unpark()

    def done(self) -> bool:
        """Whether it is over."""
        return self._over

    def exception(self) -> Exception | None:
        """Why it failed."""
        return self._error

    def wait(self) -> bool:
        """Whether it is over; the thread that asks is the one that reads."""
        return self._over

    async def wait_until_done(self) -> None:
        """Wait until it is over. Cancellation: abandons only the wait."""
        await CHECKPOINT
        parker = Parker()
        self._waiting.append(parker)
        if not self._over:
            await parker.park()


class FileThread:
    """A thread that does jobs one after the other, and ends when there are none."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = new_lock()
        self._runs = 0  # the process in which the thread runs

    def do(self, job: Callable[[], None], *, first: bool = False) -> None:
        """Have a job done, before all others that wait if ``first``. Callable from any thread."""
        with self._lock:
            if self._runs and self._runs != os.getpid():  # after a fork there is no thread
                self._jobs.clear()
                self._runs = 0
            (self._jobs.appendleft if first else self._jobs.append)(job)
            if self._runs:
                return
            self._runs = os.getpid()
            thread = new_thread(self._run, "aggml prefixes")
            with signals_blocked():
                thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._runs = 0
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:  # the jobs after it must be done
                _log.exception("[Prefixes] a job of the file thread failed")
            del job

    async def wait_for(self, job: Callable[[], None] | None = None) -> None:
        """Have a job done soon and wait for it; without a job, wait for all that were given.

        Cancellation: abandons only the wait.
        """
        await CHECKPOINT
        parker = Parker()

        def work() -> None:
            try:
                if job is not None:
                    job()
            finally:
                parker.unpark()

        self.do(work, first=job is not None)
        await parker.park()
