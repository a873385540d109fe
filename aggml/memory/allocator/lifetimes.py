"""From a graph to offsets: the lifetime of each tensor, and which tensors may reuse whose bytes.

Here: pure functions over tensors and sizes; nothing is placed. Not here: buffers
(memory/allocators.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aggml.errors import InvalidArgument
from aggml.memory.allocator.arena import CHUNK_SHIFT, Arena, ArenaChunk
from aggml.ops.table import OPS
from aggml.stream.slices import at_once
from aggml.tensor import MAX_BYTES, Tensor, describe
from aggml.tensor.tensor import INPUT, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.stream.slices import Sliced

__all__ = [
    "INPLACE",
    "GraphLayout",
    "ScratchLayout",
    "Sizing",
    "Slot",
    "kept_storages",
    "lay_out_graph",
    "lay_out_scratch",
    "layout_steps",
    "scratch_steps",
]

#: For each op that may work in place: on how many of its first operands the result may lie.
INPLACE: Final[Mapping[str, int]] = {
    name: op.in_place for name, op in OPS.items() if op.in_place > 0
}

_SMALL: Final = 65536  # bytes; a larger tensor never lingers, see `lay_out_scratch`


class Sizing(Protocol):
    """The part of a buffer type that laying out a graph uses."""

    @property
    def alignment(self) -> int:
        """Tensors start at multiples of it, a power of two."""
        ...

    @property
    def max_size(self) -> int:
        """Largest single buffer in bytes."""
        ...

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that ``tensor`` needs, at least ``tensor.nbytes``."""
        ...


class ScratchLayout(NamedTuple):
    """Offsets of tensors in one arena, and the bytes that the arena needs."""

    offsets: dict[Tensor, int]
    size: int


class Slot(NamedTuple):
    """The place of a tensor: buffer, chunk of the buffer, offset in the chunk, bytes."""

    buffer_id: int
    chunk: int
    offset: int
    size: int


class GraphLayout(NamedTuple):
    """Slots of tensors, and for each buffer the bytes of its chunks.

    A buffer id with the type of an earlier id has no chunks: it shares those of the earlier id.
    """

    slots: dict[Tensor, Slot]
    chunks: tuple[tuple[int, ...], ...]

    def sizes(self) -> tuple[int, ...]:
        """Bytes per buffer id."""
        return tuple(map(sum, self.chunks))


class _Home:
    """A place for some of the tensors: an arena, and how many bytes each tensor takes in it."""

    __slots__ = ("alloc_size", "arena", "pad")

    def __init__(
        self, arena: ArenaChunk | Arena, alignment: int, alloc_size: Callable[[Tensor], int]
    ) -> None:
        if alignment < 1 or alignment & alignment - 1:
            raise InvalidArgument(f"[allocator] alignment {alignment} is not a power of two")
        self.arena = arena
        self.pad = alignment - 1
        self.alloc_size = alloc_size

    def size(self, tensor: Tensor) -> int:
        size = self.alloc_size(tensor)
        if size < tensor.nbytes:
            raise InvalidArgument(
                f"[allocator] alloc_size of the buffer type gives {size} bytes to "
                f"{describe(tensor)}, which has {tensor.nbytes}"
            )
        return size + self.pad & ~self.pad


def kept_storages(graph: Graph, reuse_inputs: bool) -> set[Tensor]:
    """Storages whose bytes must last to the end: results, and leafs unless ``reuse_inputs``."""
    kept = {end.view_src or end for end in graph.ends}
    for tensors in (graph.nodes, graph.leafs):
        kept.update([t.view_src or t for t in tensors if t.flag_bits & OUTPUT])
    if not reuse_inputs:
        kept.update(graph.leafs)
    kept.update([t for t in graph.nodes if t.op == "none"])
    return kept


def _place_in_arenas(
    graph: Graph, homes: Mapping[Tensor, _Home], kept: set[Tensor], linger: int = 0
) -> Sliced[dict[Tensor, tuple[int, int]]]:
    """Address and bytes in its home's arena for each tensor of ``homes``, none of them a view.

    The walk is ggml's (``ggml_gallocr_alloc_graph_impl``): leafs first, then each node in order.
    After each node, the sources that no later node needs are released. A view keeps its storage as
    long as a node reads the view; a view that no node reads keeps its storage to the end.
    """
    found: dict[Tensor, tuple[int, int]] = {}
    own: dict[Tensor, int] = {}  # storages that can be given back or taken over -> bytes
    children: dict[Tensor, int] = {}
    views: dict[Tensor, int] = {}

    def place(tensor: Tensor, home: _Home) -> None:
        size = home.size(tensor)
        found[tensor] = (home.arena.take(size) if size else 0, size)
        if tensor not in kept:
            own[tensor] = size

    for leaf in graph.leafs:
        children[leaf] = 0
        if leaf.view_src is not None:  # only in a part of a graph; in a whole graph views are nodes
            views[leaf.view_src] = views.get(leaf.view_src, 0) + 1
        if (home := homes.get(leaf)) is not None:
            place(leaf, home)
    for node in graph.nodes:
        # Sources come before: they all have an entry.
        children[node] = 0
        root = node.view_src
        if root is not None:
            views[root] = views.get(root, 0) + 1
        for source in node.src:
            if source is not None:
                children[source] += 1
        if (node.flag_bits & INPUT or node.op == "none") and (home := homes.get(node)) is not None:
            place(node, home)
        yield

    # Memory to release: after which node, in which arena, offset, bytes.
    dead: deque[tuple[int, ArenaChunk | Arena, int, int]] = deque()
    for i, node in enumerate(graph.nodes):
        yield
        while dead and dead[0][0] <= i:
            _, arena, start, size = dead.popleft()
            arena.give(start, size)
        if (home := homes.get(node)) is not None and node not in found:
            n = INPLACE.get(node.op)
            if n is None or not _take_over(node, n, home, homes, found, own, children, views):
                place(node, home)
            elif node in kept:
                del own[node]
        for source in node.src:
            if source is None:
                continue
            children[source] = left = children[source] - 1
            if left or source in views:
                continue
            root = source.view_src
            if root is None:
                root = source
            else:
                views[root] = left = views[root] - 1
                if left:
                    continue
                del views[root]
                if children[root]:
                    continue
            gone = own.pop(root, None)
            if gone is not None and linger and gone <= _SMALL:
                dead.append((i + linger, homes[root].arena, found[root][0], gone))
            elif gone is not None:
                homes[root].arena.give(found[root][0], gone)
    return found


def _take_over(
    node: Tensor,
    n: int,
    home: _Home,
    homes: Mapping[Tensor, _Home],
    found: dict[Tensor, tuple[int, int]],
    own: dict[Tensor, int],
    children: dict[Tensor, int],
    views: dict[Tensor, int],
) -> bool:
    """Let ``node`` take the place of one of its first ``n`` sources, if no other node reads it."""
    for parent in node.src[:n]:
        if parent is None or children[parent] != 1:
            continue
        if parent.nb != node.nb or parent.ne != node.ne or parent.dtype is not node.dtype:
            continue
        root = parent.view_src
        if root is None:
            root = parent
            if parent in views:
                continue
        elif views[root] != 1 or children[root] or parent.view_offs:
            # ggml never does this for a view. Here a view will do if it is the last user of its
            # storage and begins where the storage begins.
            continue
        size = own.get(root)
        if size is None or homes[root] is not home:
            continue
        needed = home.size(node)
        if needed > size:
            continue
        del own[root]
        start = found[root][0]
        home.arena.give(start + needed, size - needed)
        found[node] = (start, needed)
        own[node] = needed
        return True
    return False


def scratch_steps(
    graph: Graph,
    wanted: Callable[[Tensor], bool] | Collection[Tensor],
    *,
    alignment: int,
    alloc_size: Callable[[Tensor], int] | None = None,
    reuse_inputs: bool = False,
    linger: int = 0,
) -> Sliced[ScratchLayout]:
    """Plan one arena for the wanted tensors of a graph, in small steps.

    Views are never placed; they keep their storage. Wanted ends and OUTPUT tensors keep their bytes
    to the end. Tensors that are not wanted lie elsewhere and are ignored.

    Args:
        graph: the graph of the tensors.
        wanted: the tensors to place: a function or a set.
        alignment: offsets are multiples of it, a power of two.
        alloc_size: bytes of a tensor; ``nbytes`` if not given.
        reuse_inputs: whether wanted leafs may be overwritten after their last use, as ggml does.
        linger: small tensors keep their bytes for this many nodes after their last use. Nodes that
            do not share bytes may run concurrently.

    Returns:
        An offset for each wanted tensor that is no view, and the size of the arena.

    Raises:
        InvalidArgument: the alignment is no power of two, or ``alloc_size`` says less than
            ``nbytes``.
    """
    arena = ArenaChunk()
    home = _Home(arena, alignment, alloc_size or _nbytes)
    is_wanted = wanted if callable(wanted) else wanted.__contains__
    homes = {
        t: home
        for ts in (graph.leafs, graph.nodes)
        for t in ts
        if t.view_src is None and is_wanted(t)
    }
    placed = yield from _place_in_arenas(graph, homes, kept_storages(graph, reuse_inputs), linger)
    return ScratchLayout({t: start for t, (start, _) in placed.items()}, arena.high)


lay_out_scratch = at_once(scratch_steps)


def _nbytes(tensor: Tensor) -> int:
    return tensor.nbytes


def layout_steps(
    graph: Graph,
    node_ids: Sequence[int] | None = None,
    leaf_ids: Sequence[int] | None = None,
    *,
    types: Sequence[Sizing],
    reuse_inputs: bool = False,
    ours: Collection[Buffer] = (),
) -> Sliced[GraphLayout]:
    """Plan the places of every tensor of a graph that has no memory and is no view, in small steps.

    Args:
        graph: the graph of the tensors.
        node_ids: for each of ``graph.nodes`` the index of its type; all 0 if not given.
        leaf_ids: likewise for ``graph.leafs``.
        types: the types of the buffers; the same object twice means one buffer.
        reuse_inputs: whether leafs may be overwritten after their last use, as ggml does.
        ours: tensors that lie in these buffers count as having no memory.

    Raises:
        InvalidArgument: an id that is no index of ``types``, or not one id for each tensor.
    """
    arenas: dict[int, ArenaChunk | Arena] = {}
    homes_by_id: list[_Home] = []
    shared: list[bool] = []
    for buffer_type in types:
        key = id(buffer_type)
        shared.append(key in arenas)
        if key not in arenas:
            unlimited = buffer_type.max_size >= MAX_BYTES
            arenas[key] = ArenaChunk() if unlimited else Arena(buffer_type.max_size)
            homes_by_id.append(_Home(arenas[key], buffer_type.alignment, buffer_type.alloc_size))
        else:
            homes_by_id.append(
                homes_by_id[next(i for i, t in enumerate(types) if t is buffer_type)]
            )
    ids: dict[Tensor, int] = {}
    for what, tensors, given in (("node", graph.nodes, node_ids), ("leaf", graph.leafs, leaf_ids)):
        if given is not None and len(given) != len(tensors):
            raise InvalidArgument(
                f"[allocator] {len(given)} {what} ids are given for {len(tensors)}: {graph!r}"
            )
        for i, tensor in enumerate(tensors):
            if tensor.view_src is None and (
                tensor.placement is None or tensor.placement.buffer in ours
            ):
                ids[tensor] = number = 0 if given is None else given[i]
                if not 0 <= number < len(types):
                    raise InvalidArgument(
                        f"[allocator] id {number} of {describe(tensor)} is not within "
                        f"0..{len(types) - 1}"
                    )
    yield
    homes = {tensor: homes_by_id[number] for tensor, number in ids.items()}
    yield
    placed = yield from _place_in_arenas(graph, homes, kept_storages(graph, reuse_inputs))
    mask = (1 << CHUNK_SHIFT) - 1
    slots = {
        t: Slot(ids[t], start >> CHUNK_SHIFT, start & mask, size)
        for t, (start, size) in placed.items()
    }
    chunks = tuple(
        () if repeated else _highs(arenas[id(buffer_type)])
        for buffer_type, repeated in zip(types, shared, strict=True)
    )
    return GraphLayout(slots, chunks)


lay_out_graph = at_once(layout_steps)


def _highs(arena: ArenaChunk | Arena) -> tuple[int, ...]:
    chunks = arena.chunks if isinstance(arena, Arena) else [arena]
    return tuple(chunk.high for chunk in chunks if chunk.high)
