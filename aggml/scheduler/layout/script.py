"""The third step of a layout: its actions in order, and what each of them waits for.

Here: which actions there are, on which stream, and what they touch of memory that the user placed;
by which route bytes get from one backend to another; which experts are copied before their router
names them; the order that follows from what actions read and write. Not here: which tensors are
copied (deciding/split.py), enqueuing (running/).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aggml.backend.guesser import ExpertGuesser
from aggml.memory.buffer_type import HOST
from aggml.native import _native
from aggml.ops import view_1d
from aggml.ops.table import VIEWS
from aggml.scheduler.layout.actions import (
    Action,
    Bring,
    ChooseExperts,
    Compute,
    GuessExperts,
    Join,
    Move,
    NoteExperts,
)
from aggml.scheduler.layout.place import find_uses
from aggml.scheduler.layout.plans import backend_at
from aggml.tensor import new_like, new_tensor
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from aggml.backend import Backend
    from aggml.backend.backend import Device
    from aggml.memory.buffer_type import BufferType
    from aggml.plan import DevicePlan
    from aggml.scheduler.deciding.split import Copy
    from aggml.scheduler.layout.memory import Key
    from aggml.scheduler.layout.place import Placed
    from aggml.scheduler.layout.plans import Side
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["CopyPiece", "Route", "Script", "pieces", "route", "waits_of_actions", "write_script"]

S = TypeVar("S")

# A piece should take much longer than starting it (some us here, 10 us on a device), and there
# should be enough pieces for the two halves of the route to overlap.
PIECE_BYTES: Final = 256 << 10
MAX_PIECES: Final = 16
#: Experts are guessed where a run names no more than so many: of a prompt that would be most.
MAX_GUESSED: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The actions of a layout, and which streams have to be ordered with the user's own work.

    "Placed" memory is memory that the user gave to a tensor of the graph. It belongs to the backend
    to which the tensor was assigned; the user expects that backend's stream to order access to it.

    Attributes:
        actions: in order.
        streams: all streams that they are on.
        touched: for each backend with placed memory, the streams that touch it.
        foreign: for the stream of such a backend, the other streams that touch its placed memory.
        sharers: for each backend with placed memory, other given backends that reach it.
        written: indexes of backends whose placed memory is written.
    """

    actions: tuple[Action, ...]
    streams: tuple[_native.Stream, ...]
    touched: Mapping[int, tuple[_native.Stream, ...]]
    foreign: Mapping[_native.Stream, tuple[_native.Stream, ...]]
    sharers: Mapping[int, tuple[Backend, ...]]
    written: tuple[int, ...]

    def __str__(self) -> str:
        names = {a.backend.stream.native: a.backend.name for a in self.actions}
        lines = [f"{len(self.actions)} actions on {len(self.streams)} streams"]
        for i, action in enumerate(self.actions):
            waits = ", ".join([names.get(stream, "a given backend") for stream in action.waits])
            after = f", after all queued on {waits}" if waits else ""
            where = f"split {action.split} on {action.backend.name}"
            lines.append(f"{i:4} {where}: {action.task}{after}")
        return "\n".join(lines)


def write_script(placed: Placed, plans: Sequence[DevicePlan | None], side: Side) -> Sliced[Script]:
    """List the actions of a submission, a split in each step.

    Args:
        placed: the program with its memory.
        plans: of the splits.
        side: further backends for transfers.
    """
    rewritten = placed.rewritten
    actions = list(_bring(placed, side))
    experts = _ExpertCopies(placed, side)
    guesses = experts.guess_layer(0, 0)
    for i, plan in enumerate(plans):
        for copy in rewritten.program.splits[i].inputs:
            if copy in rewritten.program.experts:
                actions += experts.copy(copy, i)
                guesses += experts.guess_after(copy, i)
            else:
                actions += _copy(placed, copy, i, side)
        # A computation waits for all that is queued on a stream so far. So guesses come behind it,
        # and what they wait for before it.
        actions += [Action(Join((), x.task.writes[0]), x.backend, i) for x in guesses]
        if plan is not None:
            actions.append(_compute(placed, plan, i, side))
        actions += guesses
        guesses = []
        yield
    homes = _homes(placed)
    touched, written = _storages_of(placed, actions, homes)
    return Script(
        actions=_in_order(placed, actions, side),
        streams=tuple(dict.fromkeys([a.backend.stream.native for a in actions])),
        touched=touched,
        foreign=_foreign(placed, touched),
        sharers=_sharers(placed, homes),
        written=written,
    )


# -- which actions there are


def _input_side(placed: Placed) -> str:
    """The side that transfers inputs, because the backend's own stream may wait for other devices.

    With memory apart, the inputs of the next submission must not wait for those devices.
    """
    return "in" if placed.slot is None else "feed"


def _bring(placed: Placed, side: Side) -> Iterator[Action]:
    """Write the leafs that each run brings and that are read on their own backend."""
    rewritten = placed.rewritten
    program = rewritten.program
    for leaf in program.leafs:
        if leaf in program.direct:
            target = rewritten.twins[leaf]
            backend = side(_input_side(placed), rewritten.home[target])
            yield Action(Bring(leaf, target), backend, 0)


def _copy(placed: Placed, copy: Copy, split: int, side: Side) -> list[Action]:
    """The actions that fill one copy."""
    rewritten = placed.rewritten
    program, twins = rewritten.program, rewritten.twins
    target, b = rewritten.copies[copy], copy.backend
    if program.is_upload(copy):
        backend = side(_input_side(placed), b)
        return [Action(Bring(copy.tensor, target), backend, split)]
    source = twins[copy.tensor]
    return _move(placed, source, target, (program.at(copy.tensor), b), split, side)


class _ExpertCopies:
    """The actions that copy experts' weights.

    A router names the experts of all stacks of its layer at once. So its ids are fetched once, and
    where the stacks have blocks of their own, the later ones are copied while the first ones are
    multiplied. While a layer is computed, the next layer's experts of the last run are copied to
    blocks that are free; what is missing then is copied when the ids are known.

    Args:
        placed: the program with its memory.
        side: further backends for transfers.
    """

    def __init__(self, placed: Placed, side: Side) -> None:
        self._placed = placed
        self._side = side
        self._fetched: dict[Tensor, Tensor] = {}  # ids, and where in host memory they are read
        self._used = find_uses(placed.rewritten.program)
        self._layers = self._divide()
        self._busy = self._find_busy()
        self._histories: dict[Copy, _native.ExpertHistory] = {}

    def _divide(self) -> list[list[Copy]]:
        """Copies in order, those together that one after the other have the same ids."""
        program = self._placed.rewritten.program
        layers: list[list[Copy]] = []
        for copy in self._placed.rewritten.copies:
            ids = program.experts.get(copy)
            if ids is None:
                continue
            if layers and program.experts[layers[-1][-1]] is ids:
                layers[-1].append(copy)
            else:
                layers.append([copy])
        return layers

    def _find_busy(self) -> set[int]:
        """Backends to which other weights are copied, too: guesses would hold these up."""
        program = self._placed.rewritten.program
        found = set()
        for copy in self._placed.rewritten.copies:
            buffer = program.q.buffer(copy.tensor.root)
            weights = buffer is not None and buffer.usage is BufferUsage.WEIGHTS
            if weights and copy not in program.experts:
                found.add(copy.backend)
        return found

    def copy(self, copy: Copy, split: int) -> list[Action]:
        """The copy of what the ids name, and that of the ids to host memory before it."""
        rewritten = self._placed.rewritten
        program, twins = rewritten.program, rewritten.twins
        chooser = program.experts[copy]
        ids, found = twins[chooser], []
        if not _is_in_host(ids):
            staging = self._fetched.get(ids)
            if staging is None:
                down = self._side("down", program.at(chooser))
                staging = self._fetched[ids] = new_like(ids, "none", ())
                (down.device.host_buffer_type or HOST).alloc_tensors([staging])
                found.append(Action(Move(ids, staging), down, split))
                layer = next(x for x in self._layers if copy in x)
                histories = [self._histories[x] for x in layer if x in self._histories]
                if histories:
                    found.append(Action(NoteExperts(staging, tuple(histories)), down, split))
            ids = staging
        task = ChooseExperts(
            twins[copy.tensor], rewritten.copies[copy], ids, self._histories.get(copy)
        )
        return [*found, Action(task, self._side("up", copy.backend), split)]

    def guess_after(self, copy: Copy, split: int) -> list[Action]:
        """The guesses for the next layer, if the copy is the last one of its layer.

        They are behind the computation of split ``split``, which reads the copy.
        """
        at = next(i for i, x in enumerate(self._layers) if copy in x)
        return self.guess_layer(at + 1, split) if copy is self._layers[at][-1] else []

    def guess_layer(self, number: int, split: int) -> list[Action]:
        """The guesses for a layer: see `guess_after`."""
        rewritten = self._placed.rewritten
        found = []
        for copy in self._layers[number] if number < len(self._layers) else ():
            up = self._side("up", copy.backend)
            history = self._history(copy, up, split)
            if history is not None:
                self._histories[copy] = history
                source, target = rewritten.twins[copy.tensor], rewritten.copies[copy]
                found.append(Action(GuessExperts(source, target, history), up, split))
        return found

    def _history(self, copy: Copy, up: Backend, split: int) -> _native.ExpertHistory | None:
        """What is to be remembered of a copy; None: it cannot be guessed before a split."""
        program, blocks_of = self._placed.rewritten.program, self._placed.blocks_of
        chooser = program.experts[copy]
        down = self._side("down", program.at(chooser))
        guess = isinstance(up, ExpertGuesser) and isinstance(down, ExpertGuesser)
        if not guess or copy not in blocks_of or copy.backend in self._busy:
            return None
        if _is_in_host(self._placed.rewritten.twins[chooser]):
            return None
        before: Copy | None = None  # what the block has until then
        for other, number in blocks_of.items():
            if other == copy:
                break
            if other.backend == copy.backend and number == blocks_of[copy]:
                before = other
        if before is not None and self._used[before].stop > split:
            return None
        n = chooser.nelements
        return _native.ExpertHistory(n) if n <= MAX_GUESSED else None


def _is_in_host(tensor: Tensor) -> bool:
    return tensor.buffer is not None and tensor.buffer.is_host


def _move(
    placed: Placed,
    source: Tensor,
    target: Tensor,
    backends: tuple[int, int],
    split: int,
    side: Side,
) -> list[Action]:
    """Copy from one backend to another by the shortest way, through host memory in pieces."""
    q = placed.rewritten.program.q
    a, b = backends
    here, there = source.buffer, target.buffer
    assert here is not None
    assert there is not None
    way = route(q.backends[a].device, here.type, q.backends[b].device, there.type)
    if way is not Route.STAGED:
        carrier = side("down", a) if way is Route.PUSH else side("up", b)
        return [Action(Move(source, target), carrier, split)]
    down, up = side("down", a), side("up", b)
    through = down.device.host_buffer_type or up.device.host_buffer_type
    parts = pieces(source, target, through) if through else pieces(source, target)
    found = []
    for part in parts:
        found.append(Action(Move(part.source, part.staging), down, split))
        found.append(Action(Move(part.staging, part.target), up, split))
    if len(parts) > 1:  # each piece fills a part; this decides whether the whole is valid
        stagings = tuple([part.staging for part in parts])
        found.append(Action(Join(stagings, target), up, split))
    return found


def _compute(placed: Placed, plan: DevicePlan, split: int, side: Side) -> Action:
    """Run the plan of a split."""
    rewritten = placed.rewritten
    graph, site = rewritten.graphs[split], rewritten.site_of[split]
    writes = [n for n in graph.nodes if n.op not in VIEWS]
    task = Compute(
        plan,
        tuple([t for t in graph.leafs if t.placement is not None]),
        tuple([n for n in writes if (n.view_src or n).placement is not None]),
        placed.scratch[site],
    )
    return Action(task, backend_at(rewritten, site, side), split)


# -- the streams that each action waits for


def _in_order(placed: Placed, actions: Sequence[Action], side: Side) -> tuple[Action, ...]:
    """The actions, each with the streams that it waits for."""
    rewritten = placed.rewritten
    home = rewritten.home
    key_of = {
        id(block): key for key, blocks in placed.buffers if key[0] != "slot" for block in blocks
    }
    rows = []
    for task, backend, _, _ in actions:
        reads = {_resource(tensor, home, key_of) for tensor in task.reads}
        writes = {_resource(tensor, home, key_of) for tensor in task.writes}
        if type(task) is Compute:
            writes.add(task.scratch)
        rows.append((backend.stream.native, reads, writes))
    before: list[tuple[_native.Stream, set[Hashable]]] = []
    if placed.slot is not None:  # other submissions may still compute in memory that is shared
        before = [
            (backend_at(rewritten, i, side).stream.native, {key})
            for i, key in enumerate(placed.scratch)
        ]
    waits = waits_of_actions(rows, before)
    return tuple(
        [
            Action(task, backend, split, tuple(streams))
            for (task, backend, split, _), streams in zip(actions, waits, strict=True)
        ]
    )


def _resource(tensor: Tensor, home: Mapping[Tensor, int], key_of: Mapping[int, Key]) -> Hashable:
    """A key for the bytes of a tensor, by which actions are put in order.

    Storages have one each; those that share memory with others have one per such memory.

    Args:
        tensor: what is read or written.
        home: backends of new storages; others are the user's.
        key_of: for each buffer that several submissions share, by id, its key.
    """
    root = tensor.view_src or tensor
    placement = root.placement
    if root not in home or placement is None:
        return placement or ("scratch", home.get(root, -1))
    return key_of.get(id(placement.buffer), placement)


# -- memory that the user placed


def _homes(placed: Placed) -> dict[Tensor, int]:
    """The backend of each storage that the user placed, and of what stands for it."""
    rewritten = placed.rewritten
    program, twins = rewritten.program, rewritten.twins
    homes = {
        t: b
        for t, b in program.found.backend.items()
        if t.view_src is None and t.placement is not None and t not in program.floating
    }
    homes.update({twins[t]: b for t, b in homes.items() if t in twins})
    return homes


def _storages_of(
    placed: Placed, actions: Sequence[Action], homes: Mapping[Tensor, int]
) -> tuple[dict[int, tuple[_native.Stream, ...]], tuple[int, ...]]:
    """(`Script.touched`, `Script.written`)."""
    ours = placed.rewritten.home
    touched: dict[int, dict[_native.Stream, None]] = {}
    written: set[int] = set()
    for action in actions:
        for tensors, is_write in ((action.task.reads, False), (action.task.writes, True)):
            for tensor in tensors:
                root = tensor.view_src or tensor
                b = homes.get(root)
                if b is None or root in ours:
                    continue
                touched.setdefault(b, {})[action.backend.stream.native] = None
                if is_write:
                    written.add(b)
    return {b: tuple(streams) for b, streams in touched.items()}, tuple(sorted(written))


def _foreign(
    placed: Placed, touched: Mapping[int, tuple[_native.Stream, ...]]
) -> dict[_native.Stream, tuple[_native.Stream, ...]]:
    """`Script.foreign`."""
    backends = placed.rewritten.program.q.backends
    found = {}
    for b, streams in touched.items():
        home = backends[b].stream.native
        others = tuple([stream for stream in streams if stream != home])
        if others:
            found[home] = others
    return found


def _sharers(placed: Placed, homes: Mapping[Tensor, int]) -> dict[int, tuple[Backend, ...]]:
    """`Script.sharers`."""
    q, ours = placed.rewritten.program.q, placed.rewritten.home
    types_at: dict[int, dict[int, None]] = {}  # types of placed memory, by id
    types = {}
    for root, b in homes.items():
        where = root.placement
        if where is not None and root not in ours:
            buffer_type = where.buffer.type
            types[id(buffer_type)] = buffer_type
            types_at.setdefault(b, {})[id(buffer_type)] = None
    return {
        b: tuple(
            [
                backend
                for i, backend in enumerate(q.backends)
                if i != b and any(q.reads(i, types[key]) for key in found)
            ]
        )
        for b, found in types_at.items()
    }


# -- routes of copies


class Route(Enum):
    """A way by which a value crosses from one device to another."""

    PULL = "pulled by the target"  # it reads the source's memory
    PUSH = "pushed by the source"  # it writes the target's memory
    STAGED = "staged through host memory"


class CopyPiece(NamedTuple):
    """Part of a staged copy: ``source`` -> ``staging`` -> ``target``, all of one layout."""

    source: Tensor
    staging: Tensor
    target: Tensor


def route(source: Device, here: BufferType, target: Device, there: BufferType) -> Route:
    """The shortest way from memory ``here`` of one device to memory ``there`` of another.

    If both are possible, it is pushed: the source's stream knows when the transfer may begin.
    """
    if there.is_host or source.supports_buffer_type(there):
        return Route.PUSH
    if here.is_host or target.supports_buffer_type(here):
        return Route.PULL
    return Route.STAGED


def pieces(source: Tensor, target: Tensor, through: BufferType = HOST) -> list[CopyPiece]:
    """Cut a staged copy into pieces, each with its own host memory, so that they fail separately.

    One piece (a bounce) if the tensor is small or has gaps.

    Args:
        source: placed.
        target: of the same layout.
        through: pinned host memory if the device has any.
    """
    block = source.dtype.blck_size
    n = source.nelements // block
    count = min(source.nbytes // PIECE_BYTES, MAX_PIECES, n)
    if count < 2 or not (source.is_contiguous and target.is_contiguous):
        staging = new_like(source, "none", ())
        through.alloc_tensors([staging])
        return [CopyPiece(source, staging, target)]
    found = []
    size = source.dtype.type_size
    for i in range(count):
        start, end = n * i // count, n * (i + 1) // count
        staging = new_tensor(source.dtype, ((end - start) * block,), source.name)
        through.alloc_tensors([staging])
        views = [view_1d(t, (end - start) * block, start * size) for t in (source, target)]
        found.append(CopyPiece(views[0], staging, views[1]))
    return found


# -- order


def waits_of_actions(
    actions: Sequence[tuple[S, set[Hashable], set[Hashable]]],
    before: Sequence[tuple[S, set[Hashable]]] = (),
) -> list[list[S]]:
    """For each action, the streams that its own stream has to wait for, as few as possible.

    A wait covers all work enqueued on the other stream so far, and all work for which that stream
    had waited (vector clocks). So actions have to be enqueued in the order given.

    Args:
        actions: (stream, resources read, resources written); resources are compared by equality.
        before: (stream, resources) that may still be written when the first action comes.
    """
    last_write: dict[Hashable, tuple[S, int]] = {}
    readers: dict[Hashable, dict[S, int]] = {}
    known: dict[S, dict[S, int]] = {}  # what each stream comes after
    latest: dict[S, int] = {}
    for stream, writes in before:
        for resource in writes:
            last_write[resource] = (stream, 0)
        latest[stream] = 0
    waits: list[list[S]] = []
    for i, (stream, reads, writes) in enumerate(actions, 1):
        clock = known.setdefault(stream, {})
        needed: dict[S, int] = {}
        for resource in (*reads, *writes):
            if resource in last_write:
                other, at = last_write[resource]
                if at > needed.get(other, -1):
                    needed[other] = at
        for resource in writes:
            for other, at in readers.pop(resource, {}).items():
                if at > needed.get(other, -1):
                    needed[other] = at
        mine = []
        for other, at in sorted(needed.items(), key=lambda item: -item[1]):
            if other == stream or clock.get(other, -1) >= at:
                continue
            mine.append(other)
            for s, n in known.get(other, {}).items():
                if n > clock.get(s, -1):
                    clock[s] = n
            clock[other] = latest[other]
        waits.append(mine)
        for resource in writes:
            last_write[resource] = (stream, i)
        for resource in reads:
            readers.setdefault(resource, {})[stream] = i
        latest[stream] = i
    return waits
