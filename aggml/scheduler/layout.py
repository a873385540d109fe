"""Layout: a program with memory: where each value lies, native plans, and a script of actions.

Here: rewritten nodes that read copies, memory shared where lifetimes do not overlap, what each
action reads and writes, and so which streams wait for which. Not here: enqueuing (run.py).

Two kinds. The compact one is what ggml has: all values share memory. It serves one submission at a
time. In the other, values that cross devices, inputs and results have memory apart, once for each
submission in flight, so that transfers run beside the computing of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.allocator.lifetimes import plan_graph
from aggml.buffer import HOST, BufferUsage, Placement, aligned
from aggml.graph import graph_of
from aggml.graph_memory import GraphBuffer
from aggml.scheduler.assign import VIEW_OPS
from aggml.scheduler.copies import Route, pieces, route
from aggml.scheduler.order import ordering
from aggml.tensor import new_like

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from aggml.allocator.lifetimes import AllocPlan, Sizing
    from aggml.backend import Backend
    from aggml.buffer import Buffer, BufferType
    from aggml.graph import Graph
    from aggml.native import _native
    from aggml.plan import DevicePlan
    from aggml.scheduler.program import Program
    from aggml.scheduler.replay import Recording
    from aggml.scheduler.split import Copy
    from aggml.steps import Steps
    from aggml.tensor import Tensor

__all__ = [
    "COMPUTE_LANES",
    "COPY",
    "EXPERTS",
    "PLAN",
    "SET",
    "WHOLE",
    "Action",
    "Layout",
    "Memory",
    "materialising",
    "measure",
]

#: What an action is: a value brought by the run, a copy, a plan, "all pieces are there", a copy of
#: some of the experts.
SET: Final = "set"
COPY: Final = "copy"
PLAN: Final = "plan"
WHOLE: Final = "whole"
EXPERTS: Final = "experts"
# Streams beside its own on which a backend may compute: for so many crossings of a graph there and
# back the submissions do not hold each other up.
COMPUTE_LANES: Final = 3


# Where a node lies that takes no memory, but keeps its source until it comes.
_NOWHERE: Final = Placement(HOST.alloc_buffer(0), 0, "")


class Action(NamedTuple):
    """One operation of a submission.

    Attributes:
        kind: SET, COPY, PLAN, WHOLE or EXPERTS.
        backend: whose stream it is on.
        waits: streams that it comes after, with all that is queued there so far.
        source: the leaf of a SET, what a COPY reads.
        target: what is written.
        plan: of a PLAN.
        split: index of the split it belongs to.
        reads: of a WHOLE, what has to be good; of EXPERTS, who they are.
        placed: whether it touches memory that the user placed.
    """

    kind: str
    backend: Backend
    waits: tuple[_native.Stream, ...]
    source: Tensor | None
    target: Tensor | None
    plan: DevicePlan | None
    split: int
    reads: tuple[Tensor, ...]
    placed: bool


class Memory:
    """Buffers that grow, by key; what was compiled for an old one looks whether it is still it."""

    def __init__(self) -> None:
        self.buffers: dict[Hashable, list[Buffer]] = {}

    def grow(self, key: Hashable, kind: BufferType, sizes: Sequence[int]) -> list[Buffer]:
        """Buffers of at least these sizes."""
        have = self.buffers.setdefault(key, [])
        fits = len(sizes) <= len(have) and all(
            n <= b.size for n, b in zip(sizes, have, strict=False)
        )
        if not fits:
            wanted = [max(n, have[i].size if i < len(have) else 0) for i, n in enumerate(sizes)]
            new = [kind.alloc_buffer(n) for n in wanted]
            for buffer in new:
                buffer.usage = BufferUsage.COMPUTE
            self.buffers[key] = have = new
        return have

    def size(self, key: Hashable) -> int:
        """Bytes under this key."""
        return sum(b.size for b in self.buffers.get(key, ()))


class _SplitMemory(GraphBuffer):
    """What a device's compiler asks: where the tensors of one split lie, all of them for good."""

    def __init__(
        self,
        block: Buffer,
        graph: Graph,
        backend: Backend,
        addresses: dict[Tensor, int],
        blocks: tuple[Buffer, ...],
    ) -> None:
        super().__init__(block, graph, backend, {}, 0)
        self._addresses = addresses
        self._blocks = blocks  # kept for as long as the plan

    def locate(self, tensor: Tensor) -> tuple[int, bool]:
        placement = tensor.placement
        if placement is not None:
            return placement.address, False
        return self._addresses[tensor], False


class Layout:
    """A program that can be enqueued: actions in order, and where results are.

    Attributes:
        program: what it is a layout of.
        slot: number of its memory apart; None if it is the compact one.
        script: the actions.
        twins: for each tensor of the graph, what stands for it here.
        streams: all streams that the script uses.
        touched: for each backend, streams that touch memory the user placed there.
        foreign: for a stream that orders access to memory the user placed, other streams that
            touch it.
        writes_placed: indexes of backends whose user-placed memory is written.
        recordings: submissions that were enqueued, by the form of their job.
    """

    def __init__(self, program: Program, slot: int | None) -> None:
        self.program = program
        self.slot = slot
        self.script: list[Action] = []
        self.twins: dict[Tensor, Tensor] = {}
        self.streams: list[_native.Stream] = []
        self.touched: dict[int, set[_native.Stream]] = {}
        self.foreign: dict[_native.Stream, list[_native.Stream]] = {}
        self.writes_placed: list[int] = []
        self.buffers: list[tuple[Hashable, list[Buffer]]] = []
        self.recordings: dict[Hashable, Recording] = {}

    def is_current(self, memory: Memory) -> bool:
        """Whether its buffers are still those of the scheduler."""
        now = memory.buffers
        for key, have in self.buffers:  # noqa: SIM110 - each run asks
            if now.get(key) is not have:
                return False
        return True


def _places(program: Program, *, apart: bool) -> tuple[list[tuple[int, int]], list[int]]:
    """(backend, lane) of all splits, without repetition, and for each split the index of its own.

    A stream is in order, so a split that waits for another device holds up all behind it, of the
    next submission too. With memory apart, the splits of one backend are therefore on several
    streams. The last is on the backend's own: what its user enqueues there comes after all of them.
    """
    places = [(b, 0) for b in range(len(program.q.backends))]
    of: list[int] = []
    left = [0] * len(places)
    for split in program.splits:
        left[split.backend] += 1
    seen = [0] * len(left)
    for split in program.splits:
        b = split.backend
        seen[b] += 1
        last = seen[b] == left[b] or not apart
        place = (b, 0 if last else 1 + (seen[b] - 1) % COMPUTE_LANES)
        if place not in places:
            places.append(place)
        of.append(places.index(place))
    return places, of


class _Own:
    """A buffer type seen as one that no other backend shares."""

    def __init__(self, kind: BufferType) -> None:
        self._kind = kind

    @property
    def alignment(self) -> int:
        return self._kind.alignment

    @property
    def max_size(self) -> int:
        return self._kind.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        return self._kind.alloc_size(tensor)


class _Maker:
    """Builds one Layout."""

    def __init__(
        self,
        program: Program,
        slot: int | None,
        memory: Memory,
        lane: Callable[[str, int], Backend],
    ) -> None:
        self.program = program
        self.q = program.q
        self.memory = memory
        self.lane = lane
        self.layout = Layout(program, slot)
        self.twins = self.layout.twins
        self.copies: dict[Copy, Tensor] = {}
        self.graphs: list[Graph] = []
        self.order: list[Tensor] = []  # for the allocator: copies and nodes, as they are needed
        self.ids: list[int] = []
        #: (backend, lane) of splits: each such pair has a stream and scratch of its own.
        self.places, self.of = _places(program, apart=slot is not None)
        self.keys: list[Hashable] = []
        self.by: dict[Tensor, int] = {}  # index of the place that makes a new storage
        self.across: set[Tensor] = set()  # new storages that another place touches
        self.at: dict[Tensor, int] = {}  # backend of each new storage
        self.shared: set[Tensor] = set()  # new storages that more than one action touches
        self.addresses: dict[Tensor, int] = {}
        self.blocks: list[Buffer] = []

    # -- rewriting

    def leafs(self) -> None:
        program = self.program
        for leaf in program.leafs:
            if leaf in program.floating:
                if leaf in program.direct:
                    twin = new_like(leaf, "none", ())
                    self.twins[leaf] = twin
                    self.at[twin] = program.found.backend[leaf]
                    self.shared.add(twin)
            else:
                self.twins[leaf] = leaf

    def twin(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor; a view may be needed before its turn, to be copied from."""
        found = self.twins.get(tensor)
        if found is None:
            assert tensor.view_src is not None
            src = tuple([None if s is None else self.twin(s) for s in tensor.src])
            found = new_like(tensor, tensor.op, src, self.twin(tensor.view_src))
            self.twins[tensor] = found
            self.order.append(found)
            self.ids.append(0)  # a view gets no memory
        return found

    def until_copied(self, origin: Tensor) -> None:
        """Have a value last until what comes next was copied."""
        source = self.twin(origin)
        root = source.view_src or source
        if root.placement is None:
            until = new_like(source, "copy", (source,))
            until.placement = _NOWHERE
            self.order.append(until)
            self.ids.append(self.program.at(origin))
            self.shared.add(root)

    def split(self, i: int) -> None:
        program, twins = self.program, self.twins
        part = program.splits[i]
        for copy in part.inputs:
            origin = copy.tensor
            if not program.is_upload(copy):
                self.until_copied(origin)
            if copy in program.experts:
                self.until_copied(program.experts[copy])
            twin = new_like(origin, "copy", ())
            twin._flags = 0
            twin.name = f"{self.q.backends[copy.backend].name}#{origin.name}"[:60]
            self.copies[copy] = twin
            self.at[twin] = copy.backend
            self.by[twin] = self.of[i]
            self.shared.add(twin)
            self.order.append(twin)
            self.ids.append(self.of[i])
        nodes: list[Tensor] = []
        outside: dict[Tensor, None] = {}
        mine: set[Tensor] = set()
        swaps, copies = part.swaps, self.copies
        src: tuple[Tensor | None, ...]
        shown: Tensor | None
        for node in program.nodes[part.start : part.end]:
            if node.op == "none":
                continue
            if swaps and node.op not in VIEW_OPS:
                src = tuple(
                    [
                        None if s is None else copies[swaps[s]] if s in swaps else twins[s]
                        for s in node.src
                    ]
                )
            else:
                src = tuple([None if s is None else twins.get(s) for s in node.src])
            viewed = node.view_src
            shown = None if viewed is None else twins.get(viewed)
            early = twins.get(node)
            twin = new_like(node, node.op, src, shown) if early is None else early
            if viewed is None:
                if node.placement is not None:
                    twin.placement = node.placement
                else:
                    self.at[twin] = part.backend
                    self.by[twin] = self.of[i]
                mine.add(twin)
            elif shown is None:  # a view of a leaf that only copies show
                continue
            twins[node] = twin
            nodes.append(twin)
            if early is None:
                self.order.append(twin)
                self.ids.append(self.of[i])
            if node.op not in VIEW_OPS:
                for s in src:
                    if s is not None:
                        r = s.view_src or s
                        if r not in mine:
                            outside[r] = None
                if shown is not None and shown not in mine:
                    outside[shown] = None
        for r in outside:
            if r in self.at:
                self.shared.add(r)
                if self.by.get(r, self.of[i]) != self.of[i]:
                    self.across.add(r)
        self.graphs.append(graph_of(nodes, list(outside)))

    # -- memory

    def kept(self) -> list[Tensor]:
        return [self.twins[t] for t in self.program.kept if t in self.twins]

    def place(self) -> None:
        """Give each new storage an address; those that several actions touch a Placement."""
        q, layout = self.q, self.layout
        self.shared.update(t for t in self.kept() if t in self.at)
        leafs = [t for t in self.twins.values() if t.op == "none"]
        apart = layout.slot is not None
        if apart:
            self.place_apart()
        shared_type = [sum(1 for t in q.types if t is kind) > 1 for kind in q.types]
        kinds = [q.types[b] for b, _ in self.places]
        own = [lane > 0 or (apart and shared_type[b]) for b, lane in self.places]
        keys: list[Hashable] = [
            ("own", *place) if alone else ("type", id(kind))
            for place, kind, alone in zip(self.places, kinds, own, strict=True)
        ]
        types: list[Sizing] = [
            _Own(kind) if alone else kind for kind, alone in zip(kinds, own, strict=True)
        ]
        self.keys = keys
        plan = self.allocation(leafs, types)
        blocks: list[list[Buffer]] = []
        for b, chunks in enumerate(plan.chunks):
            first = keys.index(keys[b])
            blocks.append(self.buffers(keys[b], kinds[b], chunks) if first == b else blocks[first])
        shared = self.shared
        for tensor, slot in plan.slots.items():
            if not blocks[slot.buffer_id]:
                block = self.buffers(keys[slot.buffer_id], kinds[slot.buffer_id], [0])[0]
            else:
                block = blocks[slot.buffer_id][slot.chunk]
            if tensor in shared:
                block.place(tensor, slot.offset)
            else:
                self.addresses[tensor] = block.base + slot.offset

    def allocation(self, leafs: list[Tensor], types: Sequence[Sizing]) -> AllocPlan:
        """Offsets of what has no memory yet, as ggml's graph allocator finds them."""
        return plan_graph(
            graph_of(self.order, leafs, self.kept()),
            self.ids,
            [self.at.get(leaf, 0) for leaf in leafs],
            types=types,
            reuse_inputs=True,
        )

    def place_apart(self) -> None:
        """Memory of this submission alone for what other streams than the computing one touch."""
        program = self.program
        tensors = [self.twins[t] for t in program.direct]
        tensors += [
            twin
            for copy, twin in self.copies.items()
            # Copies of weights stay where memory is shared: they are too large to have many.
            if program.is_upload(copy) or self.q.buffer(copy.tensor.root) is None
        ]
        tensors += [self.twins[t] for t in program.crossing if self.twins[t] in self.at]
        tensors += [t for t in self.kept() if t in self.at]
        tensors += [t for t in self.order if t in self.across]
        by_backend: dict[int, list[Tensor]] = {}
        for tensor in dict.fromkeys(tensors):
            by_backend.setdefault(self.at[tensor], []).append(tensor)
        for b, group in by_backend.items():
            kind = self.q.types[b]
            offsets, size = [], 0
            for tensor in group:
                offsets.append(size)
                size += aligned(kind.alloc_size(tensor), kind.alignment)
            (block,) = self.buffers(("slot", self.layout.slot, b), kind, [size])
            for tensor, offset in zip(group, offsets, strict=True):
                block.place(tensor, offset)

    def buffers(self, key: Hashable, kind: BufferType, sizes: Sequence[int]) -> list[Buffer]:
        have = self.memory.grow(key, kind, sizes)
        self.layout.buffers.append((key, have))
        self.blocks.extend(have)
        return have

    # -- actions

    def compile(self) -> Steps[list[DevicePlan | None]]:
        plans: list[DevicePlan | None] = []
        blocks = tuple(self.blocks)
        for i, (part, graph) in enumerate(zip(self.program.splits, self.graphs, strict=True)):
            if all(n.op in VIEW_OPS for n in graph.nodes):
                plans.append(None)
                continue
            backend = self.backend(self.of[i])
            block = blocks[0] if blocks else self.q.types[part.backend].alloc_buffer(0)
            graph.memory = _SplitMemory(block, graph, backend, self.addresses, blocks)
            plans.append((yield from backend._compile(graph, graph.memory)))
        return plans

    def resource(self, tensor: Tensor) -> Hashable:
        """What stands for the bytes of a tensor when actions are put in order.

        Storages have one each; those that share memory with others have one per such memory.
        """
        root = tensor.view_src or tensor
        placement = root.placement
        if root not in self.at or placement is None:
            return placement or ("scratch", self.at.get(root, -1))
        buffer = placement.buffer
        for key, blocks in self.layout.buffers:
            if isinstance(key, tuple) and key[0] != "slot" and buffer in blocks:
                return key
        return placement

    def backend(self, place: int) -> Backend:
        """Whose stream the splits of a place are on."""
        b, lane = self.places[place]
        return self.lane(f"compute {lane}", b) if lane else self.q.backends[b]

    def actions(self, plans: list[DevicePlan | None]) -> None:
        """The script, in program order, with what each action waits for."""
        program, q = self.program, self.q
        # The backend's own stream may wait for other devices: inputs do not wait with it.
        into = "in" if self.layout.slot is None else "feed"
        rows: list[tuple[_native.Stream, set[Hashable], set[Hashable]]] = []
        found: list[Action] = []
        touched: dict[int, set[_native.Stream]] = {}
        written: set[int] = set()

        def add(
            kind: str,
            backend: Backend,
            reads: Sequence[Tensor],
            writes: Sequence[Tensor],
            split: int,
            *,
            source: Tensor | None = None,
            target: Tensor | None = None,
            plan: DevicePlan | None = None,
            extra: Hashable = None,
            who: Tensor | None = None,
        ) -> None:
            r = {self.resource(t) for t in reads}
            w = {self.resource(t) for t in writes}
            if extra is not None:
                w.add(extra)
            rows.append((backend.stream.native, r, w))
            placed = False
            for group, writing in ((reads, False), (writes, True)):
                for t in group:
                    root = t.view_src or t
                    if root not in self.at and root in self.homes:
                        placed = True
                        touched.setdefault(self.homes[root], set()).add(backend.stream.native)
                        if writing:
                            written.add(self.homes[root])
            found.append(
                Action(
                    kind,
                    backend,
                    (),
                    source,
                    target,
                    plan,
                    split,
                    tuple(reads) if kind == WHOLE else () if who is None else (who,),
                    placed,
                )
            )

        def move(source: Tensor, target: Tensor, a: int, b: int, split: int) -> None:
            here, there = source.buffer, target.buffer
            assert here is not None
            assert there is not None
            way = route(q.backends[a].device, here.type, q.backends[b].device, there.type)
            if way is not Route.STAGED:
                side = self.lane("down", a) if way is Route.PUSH else self.lane("up", b)
                add(COPY, side, [source], [target], split, source=source, target=target)
                return
            down, up = self.lane("down", a), self.lane("up", b)
            through = down.device.host_buffer_type or up.device.host_buffer_type
            parts = pieces(source, target, through) if through else pieces(source, target)
            for p in parts:
                self.homes.pop(p.staging, None)
                add(COPY, down, [p.source], [p.staging], split, source=p.source, target=p.staging)
                add(COPY, up, [p.staging], [p.target], split, source=p.staging, target=p.target)
            if len(parts) > 1:  # a piece fills a part only: now the whole is good, or is not
                add(WHOLE, up, [p.staging for p in parts], [target], split, target=target)

        def choose(source: Tensor, target: Tensor, ids: Tensor, copy: Copy, split: int) -> None:
            """Copy some experts; ids that lie elsewhere come to host memory first."""
            at = program.at(program.experts[copy])
            if not ids.buffer or not ids.buffer.is_host:
                down = self.lane("down", at)
                staging = new_like(ids, "none", ())
                (down.device.host_buffer_type or HOST).alloc_tensors([staging])
                add(COPY, down, [ids], [staging], split, source=ids, target=staging)
                ids = staging
            up = self.lane("up", copy.backend)
            add(EXPERTS, up, [ids, source], [target], split, source=source, target=target, who=ids)

        self.homes = {
            t: b
            for t, b in program.found.backend.items()
            if t.view_src is None and (t.placement is not None) and t not in program.floating
        }
        self.homes.update({self.twins[t]: b for t, b in self.homes.items() if t in self.twins})
        for leaf in program.leafs:
            if leaf in program.direct:
                twin = self.twins[leaf]
                add(SET, self.lane(into, self.at[twin]), [], [twin], 0, source=leaf, target=twin)
        for i, part in enumerate(program.splits):
            for copy in part.inputs:
                target = self.copies[copy]
                b = copy.backend
                if program.is_upload(copy):
                    add(SET, self.lane(into, b), [], [target], i, source=copy.tensor, target=target)
                elif copy in program.experts:
                    ids = self.twins[program.experts[copy]]
                    choose(self.twins[copy.tensor], target, ids, copy, i)
                else:
                    move(self.twins[copy.tensor], target, program.at(copy.tensor), b, i)
            plan = plans[i]
            if plan is not None:
                nodes = self.graphs[i].nodes
                writes = [n for n in nodes if n.op not in VIEW_OPS]
                writes = [n for n in writes if (n.view_src or n).placement is not None]
                add(
                    PLAN,
                    self.backend(self.of[i]),
                    [t for t in self.graphs[i].leafs if t.placement is not None],
                    writes,
                    i,
                    plan=plan,
                    extra=self.keys[self.of[i]],
                )
        # Computing of other submissions may still use memory that is shared.
        layout = self.layout
        before = [
            (self.backend(i).stream.native, {key})
            for i, key in enumerate(self.keys)
            if layout.slot is not None
        ]
        layout.script = [
            action._replace(waits=tuple(waits))
            for action, waits in zip(found, ordering(rows, before), strict=True)
        ]
        layout.touched = touched
        layout.streams = list(dict.fromkeys(a.backend.stream.native for a in found))
        for b, streams in touched.items():
            home = q.backends[b].stream.native
            others = [s for s in streams if s != home]
            if others:
                layout.foreign[home] = others
        layout.writes_placed = sorted(written)


def materialising(
    program: Program,
    slot: int | None,
    memory: Memory,
    lane: Callable[[str, int], Backend],
) -> Steps[Layout]:
    """Give a program memory and plans, in small steps.

    Args:
        program: what is to run.
        slot: which memory apart; None for the compact layout.
        memory: the buffers of the scheduler, which grow if they have to.
        lane: the backend that carries a kind of operation out for a backend, by name and index.

    Raises:
        AllocFailed: no memory; what there was is as before.
    """
    maker = _Maker(program, slot, memory, lane)
    by_home: dict[int, list[Tensor]] = {}
    for leaf in program.fixed:
        if leaf.placement is None:
            by_home.setdefault(program.found.backend[leaf], []).append(leaf)
    for b, group in by_home.items():
        program.q.types[b].alloc_tensors(group)
    maker.leafs()
    for i in range(len(program.splits)):
        maker.split(i)
        yield
    maker.place()
    yield
    plans = yield from maker.compile()
    yield
    maker.actions(plans)
    return maker.layout


def measure(program: Program) -> tuple[int, ...]:
    """Bytes of the compact layout for each backend; a type that several share counts for each."""

    def none(name: str, b: int) -> Backend:
        raise AssertionError(f"no lane is needed to measure: {name} {b}")

    maker = _Maker(program, None, Memory(), none)
    maker.leafs()
    for i in range(len(program.splits)):
        maker.split(i)
    types = program.q.types
    leafs = [t for t in maker.twins.values() if t.op == "none"]
    sizes = maker.allocation(leafs, types).sizes()
    return tuple([sizes[types.index(kind)] for kind in types])
