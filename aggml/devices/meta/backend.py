"""MetaBackend: ordered work on several devices at once.

Here: each operation as operations of the member backends, in order with all others; plans. If a
member fails, the tensors that it would have written are poisoned, on its device and on those to
which they would have been copied. Work of other members that reads them fails with the same cause,
without running. Not here: dividing graphs (rounds.py), transfers of parts (parts.py).
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import numpy as np

from aggml.backend import Backend
from aggml.devices.meta.between import lay_out_storages
from aggml.devices.meta.memory import shard_of
from aggml.devices.meta.parts import Divided, cuts, division_of, is_uneven, pieces, reads
from aggml.devices.meta.rounds import divide_graph
from aggml.graph import graph_of
from aggml.memory.buffer_type import HOST, host_tensor
from aggml.native import _native
from aggml.plan import DevicePlan, Storages
from aggml.stream import Stream
from aggml.stream.future import Future
from aggml.tensor import new_view
from aggml.tensor.placement import placing
from aggml.tensor.spans import storages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aggml.backend.backend import Device
    from aggml.devices.meta.memory import MetaBuffer
    from aggml.devices.meta.round import DeviceCopy, StorageUse
    from aggml.errors import AggmlError
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["MetaBackend", "MetaPlan"]

Array = np.ndarray[Any, Any]


class _Planned(NamedTuple):
    """A round: transfers, the plans of all members for each sum, a graph of each member."""

    copies: list[DeviceCopy]
    sums: list[Sequence[DevicePlan]]
    graphs: list[Graph | None]


class MetaPlan(DevicePlan):
    """A graph divided among devices.

    Attributes:
        rounds: in order; each has the tensors that are sent and summed before it, and a graph for
            each member, None for a member without nodes.
    """

    __slots__ = ("blocks", "rounds", "storages")

    def __init__(self, graph: Graph) -> None:
        self.storages: Storages = Storages.of(graph)
        super().__init__(graph, storages=self.storages)
        self.rounds: list[_Planned] = []
        self.blocks: list[Buffer] = []  # for each member, the memory that rounds share


class MetaBackend(Backend):
    """A stream of work on a `MetaDevice`: one backend of each of its devices, kept in step.

    Args:
        device: the device.
        members: a backend of each of its devices.
        max_queued: see `Backend.ready`.

    Attributes:
        members: as given; they are closed with this one.
    """

    def __init__(
        self, device: Device, members: Sequence[Backend], *, max_queued: int | None = None
    ) -> None:
        super().__init__(device, Stream(device.name), max_queued=max_queued)
        self.members: tuple[Backend, ...] = tuple(members)
        self._library = self.members[0]._sums(self.members)
        self._between: list[Buffer] = [HOST.alloc_buffer(0)] * len(self.members)

    # -- order

    @contextmanager
    def _work_unit(
        self,
        what: str,
        reads: Iterable[Tensor] = (),
        writes: Iterable[Tensor] = (),
        staged: Sequence[Tensor] = (),
    ) -> Iterator[tuple[Future[Any], list[Future[Any]]]]:
        """A unit of work on all members, after all earlier work of this backend and of theirs.

        Its last operation fails if any member failed, and then poisons the tensors that the unit
        writes in full.

        Args:
            what: name of the operation.
            reads: tensors that fail it if they are poisoned.
            writes: tensors that it writes in full.
            staged: a list of tensors that hold parts on their way; the block may append to it. A
                part that did not arrive fails the unit as well.

        Yields the Future of the unit, and the list to which the Futures of its parts are appended.
        """
        reads, writes = tuple(reads), tuple(writes)
        future: Future[Any] = Future(None, None, what)
        parts: list[Future[Any]] = []
        with ExitStack() as stack:
            for member in self.members:
                stack.enter_context(self.stream.sharing(member.stream))
            for member in self.members:
                member.stream.wait(self.stream)
            yield future, parts
            for member in self.members:
                self.stream.wait(member.stream)
            touched = [p for t in (*reads, *writes) if self._is_mine(t) for p in _shards(t)]
            told = storages_of(reads) + storages_of(touched) + storages_of(staged)
            last = _native.delay(0.0, what, told, storages_of(writes), ())
            parts.append(self.stream.enqueue([last], None, what))  # done after all others
            batch = self.stream.open_batch()
            assert batch is not None
            batch.join(future, parts)

    def _over(
        self, what: str, writes: Sequence[Tensor], of_member: Callable[[int, Backend], Any]
    ) -> Future[None]:
        with self._work_unit(what, writes=writes) as (future, parts):
            parts += [
                part
                for i, member in enumerate(self.members)
                if (part := of_member(i, member)) is not None
            ]
        return future

    # -- data

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        with self._work_unit("set", writes=_whole(tensor)) as (future, parts):
            self._write(parts, tensor, array)
        return future

    def _write(self, parts: list[Future[Any]], tensor: Tensor, array: Array) -> None:
        to = division_of(tensor)
        for member, part, cut in zip(self.members, to.each, cuts(to, array), strict=True):
            parts.append(member._set(part, cut))

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        with self._work_unit("get", reads=[tensor]) as (future, parts):
            self._read(parts, tensor, array)
        return future

    def _read(self, parts: list[Future[Any]], tensor: Tensor, array: Array) -> None:
        for i, part, cut in reads(division_of(tensor), array[(None,) * (4 - array.ndim)]):
            parts.append(self.members[i]._get(part, cut))

    def _read_staged(
        self, parts: list[Future[Any]], of: Divided, array: Array, staged: list[Tensor]
    ) -> None:
        """`_read` by way of host tensors, which are poisoned where a member fails.

        An array cannot be: work that uses it next would take what it held before for the values.
        """
        filled = []
        for i, part, cut in reads(of, array):
            tensor = host_tensor(part)
            staged.append(tensor)
            filled.append(cut)
            parts.append(self.members[i]._copy(part, tensor))
        for member in self.members:
            self.stream.wait(member.stream)
        for tensor, cut in zip(staged, filled, strict=True):
            parts.append(self.stream.copy(cut[(0,) * (4 - tensor.ndim)], tensor))

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        whole = tensor.view_src is None and data.nbytes == tensor.nbytes
        with self._work_unit("set", writes=[tensor] if whole else ()) as (future, parts):
            for i, part, piece, at in pieces(tensor, data, offset):
                member = self.members[i]
                if at is None:
                    parts.append(member._set(part, piece))
                else:
                    parts.append(member._set_bytes(part, piece, at))
        return future

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        whole = not division_of(tensor.root).state.is_divided
        with self._work_unit("get", reads=[tensor]) as (future, parts):
            for i, part, piece, at in pieces(tensor, data, offset):
                member = self.members[i]
                if whole and i > 0:
                    break
                if at is None:
                    parts.append(member._get(part, piece))
                else:
                    parts.append(member._get_bytes(part, piece, at))
        return future

    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        whole = tensor.view_src is None and offset == 0 and size == tensor.nbytes
        if whole or not division_of(tensor.root).state.is_divided:
            each = division_of(tensor).each
            return self._over(
                "memset",
                [tensor] if whole else [],
                lambda i, m: m._memset(each[i], value, offset, each[i].nbytes if whole else size),
            )
        return self._set_bytes(tensor, np.full(size, value, np.uint8), offset)

    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        block: MetaBuffer = buffer.owner  # type: ignore[assignment]
        shards = block.all_shards()
        with self._work_unit("clear") as (future, parts):
            for shard in shards:
                for member, part in zip(self.members, shard.each, strict=True):
                    parts.append(member._memset(part, value, 0, part.nbytes))
        return future

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        """Copy between tensors of this device, or between one of them and host memory."""
        there = self._of_mine(dst)
        if self._is_mine(src) and is_uneven(src):
            return self._copy_uneven(src, dst, there)
        here = self._of_mine(src)
        staged: list[Tensor] = []
        with self._work_unit("copy", [src], _whole(dst), staged) as (future, parts):
            if here is not None and there is not None and here.state == there.state:
                for member, a, b in zip(self.members, here.each, there.each, strict=True):
                    parts.append(member._copy(a, b))
                return future
            staging = src if here is None else host_tensor(src) if there is not None else dst
            view = staging.host_view()
            array = view[(None,) * (4 - view.ndim)]
            if here is not None:
                self._read_staged(parts, here, array, staged)
            if here is not None and there is not None:
                for member in self.members:
                    self.stream.wait(member.stream)
                for member in self.members:
                    member.stream.wait(self.stream)
            if there is not None:
                self._write(parts, dst, array)
        return future

    def _copy_uneven(self, src: Tensor, dst: Tensor, there: Divided | None) -> Future[None]:
        """Copy a view that takes unequal parts of the devices: the whole tensor is read first."""
        whole = host_tensor(src.root)
        staged: list[Tensor] = []
        with self._work_unit("copy", [src.root], _whole(dst), staged) as (future, parts):
            array = whole.host_view()
            self._read_staged(
                parts, division_of(src.root), array[(None,) * (4 - array.ndim)], staged
            )
            staged.append(whole)
            for member in self.members:
                self.stream.wait(member.stream)
            view = new_view("view", whole, src.ne, src.nb, src.view_offs, (whole,)).host_view()
            if there is None:
                parts.append(self.stream.copy(dst, view))
                return future
            for member in self.members:
                member.stream.wait(self.stream)
            self._write(parts, dst, view)
        return future

    def _is_mine(self, tensor: Tensor) -> bool:
        buffer = tensor.buffer
        return buffer is not None and buffer.type is self.buffer_type

    def _of_mine(self, tensor: Tensor) -> Divided | None:
        return division_of(tensor) if self._is_mine(tensor) else None

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare the contents of a tensor's storage to be valid, on every device."""
        self._check_tensor(tensor, "Backend.accept")
        each = division_of(tensor.root).each
        future = super().accept(tensor)
        self._over("accept", (), lambda i, m: m.stream.accept(each[i]))
        return future

    # -- graphs

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[MetaPlan]:
        library = self._library
        takes = (lambda _: False) if library is None else library.takes
        found = yield from divide_graph(graph, len(self.members), takes)
        blocks = self._place(found.between)
        plan = MetaPlan(graph)
        plan.blocks = blocks
        for sent, sums, nodes in found.rounds:
            plans_of_sums: list[Sequence[DevicePlan]] = []
            for one in sums:
                assert library is not None
                plans_of_sums.append(library.plan(one.sources, one.targets))
            graphs: list[Graph | None] = []
            for member, own in zip(self.members, nodes, strict=True):
                graphs.append(_graph(own) if own else None)
                if graphs[-1] is not None:
                    member.alloc_graph(graphs[-1])
                    member._ensure_compiled(graphs[-1], "Backend.graph_compute")
                yield
            plan.rounds.append(_Planned(sent, plans_of_sums, graphs))
        return plan

    def _place(self, needed: Sequence[StorageUse]) -> list[Buffer]:
        """Allocate the memory that rounds share; all plans share it, since plans run in turn."""
        alignment = self.buffer_type.alignment
        offsets, size = lay_out_storages(needed, alignment)
        with placing:  # another thread may compile, too: blocks only grow
            for i, member in enumerate(self.members):
                if self._between[i].size < size:
                    self._between[i] = member.buffer_type.alloc_buffer(size)
                for one, offset in zip(needed, offsets, strict=True):
                    self._between[i].place(one.each[i], offset)
            return list(self._between)

    def _compute(self, plan: MetaPlan, arena: Buffer | None) -> Future[None]:
        storages = plan.storages
        with self._work_unit("graph_compute", storages.reads, storages.writes) as (future, parts):
            for sent, summed, graphs in plan.rounds:
                for plans in summed:
                    assert self._library is not None
                    parts += self._library.run(plans)
                for one in sent:
                    source, target = self.members[one.source], self.members[one.target]
                    parts.append(source._copy_to(one.what, one.to, target))
                for member, graph in zip(self.members, graphs, strict=True):
                    if graph is not None:
                        own = member._ensure_compiled(graph, "Backend.graph_compute").plan
                        parts.append(member._compute(own, member.memory.arena(own.arena_size)))
        return future

    async def prepare(self, graph: Graph) -> None:
        """Place the graph (unless done), divide it, compile the parts of each device.

        Cancellation: a graph that was placed stays placed.
        """
        self._check_open("Backend.prepare")
        if self._library is not None:
            await self._library.prepare()
        await super().prepare(graph)
        plan: MetaPlan = self._plan(graph, "Backend.prepare")  # type: ignore[assignment]
        for _, _, graphs in plan.rounds:
            for member, own in zip(self.members, graphs, strict=True):
                if own is not None:
                    await member.prepare(own)

    # -- end

    def _unseen(self) -> list[AggmlError]:
        streams = [self.stream, *(member.stream for member in self.members)]
        return [failure for stream in streams for failure in stream.failures()]

    def close(self) -> None:
        """Refuse new work, on every device; never blocks."""
        super().close()
        for member in self.members:
            member.close()

    async def aclose(self) -> None:
        """Close, then wait until all that is queued is done, on every device.

        Cancellation: as `Backend.aclose`.
        """
        await super().aclose()
        with anyio.CancelScope(shield=True):
            for member in self.members:
                await member.aclose()

    async def __aexit__(self, raised: object, *rest: object) -> None:
        if raised is not None:
            for member in self.members:
                member.stream.abort()
        await super().__aexit__(raised, *rest)

    def __exit__(self, raised: object, *rest: object) -> None:
        if raised is not None:
            for member in self.members:
                member.stream.abort()
        super().__exit__(raised, *rest)


def _shards(tensor: Tensor) -> Sequence[Tensor]:
    """The parts, one per device, of the storage of a tensor."""
    return shard_of(tensor.root).each


def _whole(tensor: Tensor) -> Sequence[Tensor]:
    """The tensors that a write of all elements of ``tensor`` writes in full."""
    return () if tensor.view_src is not None else (tensor,)


def _graph(nodes: Sequence[Tensor]) -> Graph:
    """A graph of these nodes; its leafs are the tensors they read that are not among them."""
    made = {*nodes}
    outside: dict[Tensor, None] = {}
    for node in nodes:
        for source in (*node.src, node.view_src):
            for one in () if source is None else (source.root, source):
                if one not in made:
                    outside[one] = None  # a view of an earlier round, too
    return graph_of(nodes, list(outside))
