"""The race checker: finds operations on different streams that touch the same bytes in no order.

Here: vector clocks over byte ranges, for every operation that is enqueued while the checker is
active. Not here: putting operations in order (stream/), the ranges of an operation (native). It is
for debugging: it costs some us per operation and per range.

Three things put operations in order: their stream; waits (`wait`, `copy` across backends); and a
Future that the program saw done before it went on (``await``, ``wait()``, a true ``done()``). An
operation that merely happened to finish early is not ordered. A host array is checked until the
Future is done; how the program itself uses it shows by checksums alone (`_compare`).
"""

from __future__ import annotations

import weakref
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from aggml.errors import InvalidState
from aggml.memory.buffer import find_tensors
from aggml.stream.observe import observers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.native import _native
    from aggml.stream.observe import Groups

    Array = np.ndarray[Any, Any]

__all__ = ["Race", "RaceChecker", "RaceError", "check_races"]


class RaceError(InvalidState):
    """Operations touch the same bytes, and nothing orders them."""


class _Access(NamedTuple):
    """One operation reads or writes bytes ``start`` to ``end``."""

    start: int
    end: int
    writes: bool
    stream: int
    name: str
    ticket: int
    operation: str
    array: _Layout | None = None  # of a host array
    owner: Callable[[], object] | None = None  # returns the owner of the bytes; None if gone


class Race(NamedTuple):
    """Two operations without order; ``first`` was enqueued earlier.

    Attributes:
        first, second: the operations, with their numbers on their streams.
            ``second`` is "the program" if the program itself changed an array that ``first`` reads.
        first_stream, second_stream: names; streams of one name are numbered as they were seen.
        start, end: addresses of the bytes that both touch.
        kind: which of the two writes.
        where: what lies there: tensors by name and their bytes, or an array of the host.
    """

    first: str
    first_stream: str
    second: str
    second_stream: str
    start: int
    end: int
    kind: str
    where: str

    def __str__(self) -> str:
        if self.second == _PROGRAM:
            return (
                f"{self.kind} of {self.where}: the program changed it after {self.first} was "
                f"enqueued on stream '{self.first_stream}', and before it saw that this was done. "
                "Missing: an await of its Future before the change, or copy=True, which takes a "
                "snapshot"
            )
        return (
            f"{self.kind} of {self.where}: {self.second} on stream "
            f"'{self.second_stream}' may run before or beside {self.first} on stream "
            f"'{self.first_stream}', which was enqueued first. Missing: an event recorded on "
            f"'{self.first_stream}' after {self.first}, and '{self.second_stream}' waiting for it "
            f"before {self.second}"
        )


class _Source(NamedTuple):
    """An array of the host that an operation reads, and the checksum when it was enqueued."""

    stream: int
    name: str
    ticket: int
    operation: str
    start: int
    end: int
    array: _Layout
    owner: Callable[[], object]
    checksum: int


#: The `Race.second` of a race between an operation and the program's own code.
_PROGRAM = "the program"

Clock = dict[int, int]  # key of a stream -> the last of its tickets that is known to be over


class _Timeline:
    """For each ticket of one stream, the operations of other streams that precede it."""

    def __init__(self) -> None:
        self.tickets: list[int] = [0]
        self.clocks: list[Clock] = [{}]

    def at(self, ticket: int) -> Clock:
        """The clock of operation ``ticket``: what precedes it on other streams."""
        return self.clocks[bisect_right(self.tickets, ticket) - 1]

    def learn(self, ticket: int, more: Clock) -> None:
        """Record that operations from ``ticket`` on also come after ``more``."""
        now = self.clocks[-1]
        if all(now.get(s, 0) >= t for s, t in more.items()):
            return
        joined = dict(now)
        _join(joined, more)
        self.tickets.append(ticket)
        self.clocks.append(joined)


def _join(clock: Clock, more: Clock) -> None:
    for stream, ticket in more.items():
        if clock.get(stream, 0) < ticket:
            clock[stream] = ticket


class RaceChecker:
    """Checks operations from the start of its ``with`` block to its end; see `check_races`.

    Attributes:
        races: what was found, each pair of operations and streams once.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self.races: list[Race] = []
        self._raises = raises
        self._lines: dict[int, _Timeline] = {}
        self._last: dict[int, int] = {}  # the last ticket of each stream that was seen
        self._host: Clock = {}
        self._accesses: list[_Access] = []
        self._sources: list[_Source] = []
        self._keep: list[_native.Stream] = []  # their keys are addresses
        self._found: set[tuple[str, str, str, str, str]] = set()
        self._names: dict[int, str] = {}  # of streams, each another one
        # Memory that was freed since: earlier accesses there concerned other bytes.
        self._gone: list[tuple[int, int]] = []
        self._owners: dict[int, weakref.ref[object]] = {}

    def __enter__(self) -> Self:
        observers.append(self)
        return self

    def __exit__(
        self, raised: type[BaseException] | None, value: BaseException | None, trace: object
    ) -> None:
        observers.remove(self)
        self._compare(self._sources)
        if raised is None and self._raises and self.races:
            raise RaceError(
                f"[check_races] {len(self.races)} found:\n" + "\n".join(map(str, self.races))
            )

    # -- what happens

    def on_new_memory(self, start: int, end: int, owner: object) -> None:
        """Memory was allocated: earlier accesses at these addresses concerned other bytes.

        Once its owner is gone, arrays of the host may come to lie there.
        """
        self._forget(start, end)
        key, gone, owners = id(owner), self._gone, self._owners

        def on_free(_: object) -> None:  # at any moment, maybe while the accesses are walked
            gone.append((start, end))
            owners.pop(key, None)

        owners[key] = weakref.ref(owner, on_free)

    def _forget(self, start: int, end: int) -> None:
        self._accesses = [a for a in self._accesses if a.end <= start or end <= a.start]

    def before(self, groups: Groups) -> list[list[tuple[Any, Any, str]]]:
        """See `aggml.stream.observe.Observer`."""
        return [[(d.waits(), _ranges(d), d.operation) for d in descs] for _, descs in groups]

    def after(self, groups: Groups, ops: list[list[_native.Op]], note: object) -> None:
        """See `aggml.stream.observe.Observer`."""
        notes: Any = note
        while self._gone:
            self._forget(*self._gone.pop())
        for (stream, _), found, row in zip(groups, ops, notes, strict=True):
            key = stream.key
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Timeline()
                self._keep.append(stream)
                same = sum(s.name == stream.name for s in self._keep)
                self._names[key] = stream.name if same == 1 else f"{stream.name} #{same}"
            for op, (waits, ranges, operation) in zip(found, row, strict=True):
                ticket = op.ticket
                line.learn(ticket, self._host)
                if waits is not None:
                    self._wait(line, key, ticket, waits)
                self._last[key] = ticket
                for start, end, writes, *host in ranges:
                    array, owner, checksum = host or (None, None, None)
                    name = self._names[key]
                    access = _Access(start, end, writes, key, name, ticket, operation, array, owner)
                    self._touch(access, line)
                    if writes:  # the array changes, and the program is not who changes it
                        self._sources = [
                            s for s in self._sources if s.end <= start or end <= s.start
                        ]
                    elif (
                        array
                        and owner
                        and checksum is not None
                        and not self._is_written(start, end)
                    ):
                        self._sources.append(
                            _Source(
                                key, name, ticket, operation, start, end, array, owner, checksum
                            )
                        )

    def _wait(self, line: _Timeline, key: int, ticket: int, waits: tuple[int, int | None]) -> None:
        other, upto = waits
        if other == key:
            return
        if upto is None:
            upto = self._last.get(other, 0)
        known = {other: upto}
        if other in self._lines:
            _join(known, self._lines[other].at(upto))
        line.learn(ticket, known)

    def on_done(self, ops: Sequence[_native.Op]) -> None:
        """See `aggml.stream.observe.Observer`."""
        for op in ops:
            key, ticket = op.stream.key, op.ticket
            if self._host.get(key, 0) >= ticket:
                continue
            if key in self._lines:
                _join(self._host, self._lines[key].at(ticket))
            self._host[key] = ticket
        pending: list[_Source] = []
        over: list[_Source] = []
        for source in self._sources:
            known = self._host.get(source.stream, 0) >= source.ticket
            (over if known else pending).append(source)
        self._sources = pending
        self._compare(over)

    # -- bytes

    def _is_written(self, start: int, end: int) -> bool:
        """Whether an operation that the program has not seen done writes some of these bytes."""
        host = self._host
        return any(
            a.writes and a.start < end and start < a.end and host.get(a.stream, 0) < a.ticket
            for a in self._accesses
        )

    def _compare(self, sources: Sequence[_Source]) -> None:
        """Report the arrays that have other bytes than when they were enqueued.

        The checker does not see how the program itself uses an array. But the program has changed
        it meanwhile if its checksum differs when the program learns that the operation is done.
        """
        for source in sources:
            keep = source.owner()  # so that the array stays while it is read
            if keep is not None and _checksum(source.array) != source.checksum:
                self._report_change(source)

    def _report_change(self, source: _Source) -> None:
        kind = "a write after a read"
        key = (source.operation, source.name, _PROGRAM, "", kind)
        if key in self._found:
            return
        self._found.add(key)
        self.races.append(
            Race(
                f"{source.operation} (number {source.ticket})",
                source.name,
                _PROGRAM,
                "Python",
                source.start,
                source.end,
                kind,
                _where(source.start, source.end, source.array),
            )
        )

    def _touch(self, new: _Access, line: _Timeline) -> None:
        clock = line.clocks[-1]
        kept = []
        host = self._host
        for old in self._accesses:
            if host.get(old.stream, 0) >= old.ticket:
                continue  # the program saw it done, so all later operations come after it
            if old.owner is not None and old.owner() is None:
                continue  # the array is gone; what lies there now are other bytes
            if old.end <= new.start or new.end <= old.start or _apart(old, new):
                kept.append(old)
                continue
            ordered = old.stream == new.stream or clock.get(old.stream, 0) >= old.ticket
            if not ordered and (old.writes or new.writes):
                self._report(old, new)
            # An earlier access that this one covers, and that is ordered before it, is dropped: an
            # operation after this one comes after that one, too. A read does not replace a write.
            covered = new.start <= old.start and old.end <= new.end
            if not (ordered and covered and (new.writes or not old.writes)):
                kept.append(old)
        kept.append(new)
        self._accesses = kept

    def _report(self, old: _Access, new: _Access) -> None:
        kind = (
            "two writes"
            if old.writes and new.writes
            else "a read after a write"
            if old.writes
            else "a write after a read"
        )
        key = (old.operation, old.name, new.operation, new.name, kind)
        if key in self._found:
            return
        self._found.add(key)
        start, end = max(old.start, new.start), min(old.end, new.end)
        self.races.append(
            Race(
                f"{old.operation} (number {old.ticket})",
                old.name,
                f"{new.operation} (number {new.ticket})",
                new.name,
                start,
                end,
                kind,
                _where(start, end, old.array or new.array),
            )
        )


def _ranges(desc: _native.Desc) -> list[tuple[Any, ...]]:
    """All bytes that an operation touches: of tensors, and of the array that it is given.

    A plan has hundreds of operands in a few blocks: what touches or overlaps is one range.
    """
    found: list[tuple[Any, ...]] = []
    for start, end, writes in sorted(desc.ranges(), key=lambda r: (r[2], r[0])):
        if found and found[-1][2] == writes and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]), writes)
        else:
            found.append((start, end, writes))
    host = desc.host()
    if host is not None:
        start, end, writes, view = host
        array, owner = _layout_of(view.obj)
        readable = array is not None and not writes
        found.append((start, end, writes, array, owner, _checksum(array) if readable else None))
    return found


def _checksum(array: _Layout | None) -> int:
    """A checksum of the elements of an array, in logical order."""
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)


def _where(start: int, end: int, array: _Layout | None) -> str:
    """The names of the tensors or the array at these bytes, for messages."""
    found = [
        f"bytes {max(start - at, 0)} to {min(end - at, tensor.nbytes)} of {tensor!r}"
        for tensor, at in find_tensors(start, end)
    ]
    if not found and array is not None:
        seen = array.__array_interface__
        found = [f"an array {seen['typestr']} {seen['shape']} of the host"]
    more = [f"{len(found) - 3} more"] if len(found) > 3 else []
    place = f"bytes {start:#x} to {end:#x}"
    return ", ".join([*found[:3], *more]) or f"{place}, where no tensor has memory of its own"


class _Layout:
    """The address and strides of an array, without a reference to it.

    Its bytes are read only while something else keeps them.
    """

    def __init__(self, array: Array) -> None:
        given = array.__array_interface__
        self.__array_interface__ = {
            k: given[k] for k in ("data", "shape", "strides", "typestr", "version")
        }


def _layout_of(given: object) -> tuple[_Layout | None, Callable[[], object]]:
    """The layout of an array and a weak reference to its owner, so that nothing is kept alive."""
    owner = given
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    layout = _Layout(given) if isinstance(given, np.ndarray) else None
    try:
        return layout, weakref.ref(owner)
    except TypeError:  # bytes, a memoryview: kept, so that nothing else comes to lie there
        return layout, lambda: owner


def _apart(a: _Access, b: _Access) -> bool:
    """Whether strided arrays share no byte though their ranges overlap; False if unclear."""
    if a.array is None or b.array is None:
        return False
    work: Any = 10_000  # which numpy's types do not know
    try:
        return not np.shares_memory(np.asarray(a.array), np.asarray(b.array), max_work=work)
    except np.exceptions.TooHardError:
        return False


def check_races(*, raises: bool = True) -> RaceChecker:
    """Observe all streams for operations that touch the same bytes in no order.

    ``with aggml.check_races() as found: ...``; then ``found.races``.

    Args:
        raises: raise RaceError at the end of the block if there were any.
    """
    return RaceChecker(raises=raises)
