"""Fusion: which nodes of a graph are computed together, so that values between them are not stored.

Here: chains. A chain begins with a product or with rows of f32. Each further node reads the one
before it element by element or row by row, and is its only reader. The kernels are the same as for
single nodes, so the results are bit for bit the same. Also here: nodes that only one product reads,
which may therefore be stored in the product's packed form. Not here: compiling (lowering.py),
running a chain (native/lower/chain.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.dtype import DType
from aggml.ops import table
from aggml.tensor.tensor import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aggml.graph import Graph
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = [
    "NOTHING_FUSED",
    "ChainStage",
    "Fused",
    "FusionChain",
    "Readers",
    "find_chains",
    "without_last",
]

#: (whether in the arena, first byte, end) of a tensor
Span = tuple[bool, int, int]

_BINARY: Final = table.with_stage("BINARY")
_GATED: Final = table.with_stage("GATED")
_WHOLE_ROWS: Final = table.with_stage("NORM", "SOFT_MAX")
_STAGES: Final = _BINARY | _GATED | _WHOLE_ROWS | table.with_stage("SCALE", "UNARY")
_BEGINS: Final = _STAGES - _GATED

_MAX_STAGES: Final = 6  # AGK_MAX_STAGES
_MAX_SOURCES: Final = 10  # AGK_MAX_SRC
_MAX_GAP: Final = 32  # nodes in between that do not belong to the chain; each has to be checked
_LONGEST_ROW: Final = 32768  # elements: 128 KB; a longer row is better divided among threads
_NARROW: Final = 32  # elements; for shorter rows a kernel call costs more than a pass over memory


class ChainStage(NamedTuple):
    """One node of a chain: its operand besides the value so far, and on which side that is."""

    node: Tensor
    other: Tensor | None
    first: bool


class FusionChain(NamedTuple):
    """Nodes that are computed together, in order.

    Only the last one is written. If the first is a product, it is not among the stages.
    """

    nodes: tuple[Tensor, ...]
    stages: tuple[ChainStage, ...]

    @property
    def sources(self) -> list[Tensor]:
        """The tensors that it reads: operands of the first node, then those of the other stages."""
        lead = self.nodes[0]
        begin = lead.src[:1] if self.stages[0].node is lead else lead.src
        others = [stage.other for stage in self.stages]
        return [t for t in (*begin, *others) if t is not None]


class Fused(NamedTuple):
    """The nodes of a graph that are computed together.

    Attributes:
        chains: by their last node, which decides when they are computed.
        inner: the other nodes of the chains: they are computed with the last one, and not stored.
        columns: nodes that only one product reads, as its columns. They may be stored in the
            product's packed form. If that form is bf16, they are computed to that accuracy.
    """

    chains: Mapping[Tensor, FusionChain]
    inner: frozenset[Tensor]
    columns: frozenset[Tensor]


#: No fusion: each node is computed by itself.
NOTHING_FUSED: Final = Fused({}, frozenset(), frozenset())


class Readers(NamedTuple):
    """The readers of each value of a graph.

    Attributes:
        reader: for each tensor that is read: its only reader, None if it has several.
        viewed: for each storage that nodes view: how many do.
        ends: the ends of the graph.
        order: the index of each node.
        reads: for each tensor that is read: how often.
    """

    reader: Mapping[Tensor, Tensor | None]
    viewed: Mapping[Tensor, int]
    ends: set[Tensor]
    order: Mapping[Tensor, int]
    reads: Mapping[Tensor, int]

    def is_watched(self, value: Tensor) -> bool:
        """Whether the value may be read from outside of the graph."""
        return value.placement is not None or bool(value.flag_bits & OUTPUT) or value in self.ends

    def only_viewed(self, value: Tensor, n: int) -> bool:
        """Whether ``value`` is read by ``n`` views of it and nothing else."""
        if self.is_watched(value) or value.view_src is not None:
            return False
        return self.viewed.get(value, 0) == self.reads.get(value, 0) == n

    def next_of(self, value: Tensor, views: int = 0) -> Tensor | None:
        """The only node that reads ``value``; None if anything else can read it.

        Args:
            value: a tensor of the graph.
            views: how many nodes view it; the reader may be one of them.
        """
        if self.is_watched(value) or value.view_src is not None:
            return None
        return self.reader.get(value) if self.viewed.get(value, 0) == views else None

    def after_view(self, value: Tensor) -> Tensor | None:
        """The only reader of the only view of ``value``; None if anything else can read it."""
        view = self.next_of(value, views=1)
        if view is None or view.view_src is not value or view in self.ends:
            return None
        return None if view.flag_bits & OUTPUT else self.reader.get(view)


def _readers_of(graph: Graph) -> Sliced[Readers]:
    """Find the readers of each value, in small steps."""
    reader: dict[Tensor, Tensor | None] = {}
    reads: dict[Tensor, int] = {}
    viewed: dict[Tensor, int] = {}
    order: dict[Tensor, int] = {}
    for i, node in enumerate(graph.nodes):
        order[node] = i
        if node.view_src is not None:
            viewed[node.view_src] = viewed.get(node.view_src, 0) + 1
        for source in node.src:
            if source is not None:
                reader[source] = None if source in reader else node
                reads[source] = reads.get(source, 0) + 1
        yield
    return Readers(reader, viewed, set(graph.ends), order, reads)


def find_chains(
    graph: Graph,
    span: Callable[[Tensor], Span],
    fits: Callable[[FusionChain], bool] | None = None,
    more: Callable[[Tensor, Readers], FusionChain | None] | None = None,
) -> Sliced[Fused]:
    """Find the chains of a graph and the columns of its products, in small steps.

    A value is left unstored only if nothing outside could read it (it lies in scratch and is
    neither an end nor an OUTPUT), no node views it, and exactly one node reads it. Values that a
    user wants to see are ends or OUTPUT tensors, so they are always stored.

    Args:
        graph: the graph to be compiled.
        span: tells where the bytes of a tensor lie.
        fits: whether a chain may be used; None: all may.
        more: finds a chain that begins with a given node and that only this device can fuse.
    """
    readers = yield from _readers_of(graph)
    taken: set[Tensor] = set()
    columns: set[Tensor] = set()
    chains: dict[Tensor, FusionChain] = {}
    for node in graph.nodes:
        chain = None if more is None or node in taken else more(node, readers)
        if chain is not None and taken.isdisjoint(chain.nodes):
            if not _is_safe(chain, graph, readers.order, span):
                chain = None
            else:
                taken.update(chain.nodes)
                chains[chain.nodes[-1]] = chain
        if node not in taken:
            chain = _longest(node, readers, taken)
            while chain is not None and not (
                (fits is None or fits(chain)) and _is_safe(chain, graph, readers.order, span)
            ):
                chain = without_last(chain)
            if chain is not None:
                taken.update(chain.nodes)
                chains[chain.nodes[-1]] = chain
        read = _source(node, 1) if node.op == "mul_mat" else None
        if read is not None and read.op != "none" and readers.next_of(read) is node:
            columns.add(read)
        yield
    return Fused(chains, frozenset(taken.difference(chains)), frozenset(columns))


def _longest(lead: Tensor, readers: Readers, taken: set[Tensor]) -> FusionChain | None:
    """The longest chain that begins with ``lead`` by ops, types and shapes alone."""
    if lead.dtype is not DType.F32 or 0 in lead.ne:
        return None
    product = lead.op == "mul_mat"
    stages: list[ChainStage] = []
    if not product:
        begin = _begin(lead)
        if begin is None:
            return None
        stages.append(begin)
    if lead.ne[0] < _NARROW and lead.nbytes > 16384:
        return None
    nodes = [lead]
    n_sources = 2
    while len(stages) < _MAX_STAGES:
        value = nodes[-1]
        node = readers.next_of(value)
        if node is not None and product and node not in taken and _narrows(node, value):
            nodes.append(node)
            stages.append(ChainStage(node, None, False))
            break
        if node is None or node in taken or node.op not in _STAGES:
            break
        if node.op in _WHOLE_ROWS and (product or node.ne[0] > _LONGEST_ROW):
            break
        stage = _stage(node, value)
        if stage is None:
            break
        if stage.other is not None:
            n_sources += 1
            if n_sources > _MAX_SOURCES:
                break
        nodes.append(node)
        stages.append(stage)
    return FusionChain(tuple(nodes), tuple(stages)) if len(nodes) > 1 else None


def _narrows(node: Tensor, value: Tensor) -> bool:
    """Whether ``node`` converts ``value`` to bf16, a form in which a product may store it."""
    whole = node.op == "cpy" and node.view_src is None and node.dtype is DType.BF16
    return whole and node.ne == value.ne and node.nb[0] == 2


def without_last(chain: FusionChain) -> FusionChain | None:
    """The chain without its last node; None if the rest is no chain."""
    if len(chain.nodes) == 2:
        return None
    return FusionChain(chain.nodes[:-1], chain.stages[:-1])


def _begin(node: Tensor) -> ChainStage | None:
    """The first stage of a chain of rows."""
    value = node.src[0] if node.op in _BEGINS else None
    if value is None or not _rows(value) or (node.op in _WHOLE_ROWS and node.ne[0] > _LONGEST_ROW):
        return None
    return _stage(node, value)


def _stage(node: Tensor, value: Tensor) -> ChainStage | None:
    """The stage by which ``node`` continues a chain from ``value``; None if it cannot."""
    if not _rows(node) or node.ne != value.ne:
        return None
    op, src = node.op, node.src
    if op in _BINARY:
        first = src[0] is not value
        other = src[0] if first else src[1]
        if other is None or not _rows(other):
            return None
        fits = other.ne == node.ne if first else _repeats(other, node)
        return ChainStage(node, other, first) if fits else None
    if op in _GATED:
        if len(src) < 2 or src[1] is None:
            return None
        first = src[0] is not value
        other = src[0] if first else src[1]
        ok = other is not None and _rows(other) and other.ne == node.ne
        return ChainStage(node, other, first) if ok else None
    if op == "soft_max":
        plain = src[0] is value and _source(node, 2) is None and node.op_params[4:8] == bytes(4)
        return ChainStage(node, _source(node, 1), False) if plain else None  # no sinks, no ALiBi
    return ChainStage(node, None, False) if value in src else None  # its only operand


def _source(node: Tensor, i: int) -> Tensor | None:
    return node.src[i] if i < len(node.src) else None


def _rows(tensor: Tensor) -> bool:
    return tensor.dtype is DType.F32 and (tensor.nb[0] == 4 or tensor.ne[0] == 1)


def _repeats(other: Tensor, node: Tensor) -> bool:
    """Whether ``other`` is broadcast to ``node`` by whole rows, or by one element per row."""
    a, b = other.ne, node.ne
    return a[0] in {1, b[0]} and a[1] in {1, b[1]} and b[2] % a[2] == 0 and b[3] % a[3] == 0


def _is_safe(
    chain: FusionChain, graph: Graph, order: Mapping[Tensor, int], span: Callable[[Tensor], Span]
) -> bool:
    """Whether the bytes that the chain reads are still intact when its last node runs.

    The allocator does not know about chains. So it may have given the memory of an earlier node's
    source to a later node.
    """
    last = chain.nodes[-1]
    first, end = order[chain.nodes[0]], order[last]
    sources = chain.sources
    spans = [span(source) for source in sources]
    target = span(last)
    product = chain.stages[0].node is not chain.nodes[0]
    for i, (source, place) in enumerate(zip(sources, spans, strict=True)):
        if not _overlap(place, target):
            continue
        # Rows are read before they are written, by the first stage only.
        same = place == target and source.nb == last.nb and source.ne == last.ne
        in_first = i == 0 or source is chain.stages[0].other
        later = any(stage.other is source for stage in chain.stages[1:])
        if product or not same or not in_first or later:
            return False
    if end - first == len(chain.nodes) - 1:
        return True
    members = set(chain.nodes)
    gap = graph.nodes[first + 1 : end]
    between = [n for n in gap if n not in members and n.op not in table.IDLE]
    if len(between) > _MAX_GAP or any(n.op in table.WRITES_MORE for n in between):
        return False
    # Values that are not stored keep their memory as well: the nodes may have to be computed one by
    # one after all.
    sources += chain.nodes[:-1]
    spans += [span(node) for node in chain.nodes[:-1]]
    return not any(
        n is not source.root and _overlap(span(n), place)
        for n in between
        for source, place in zip(sources, spans, strict=True)
    )


def _overlap(a: Span, b: Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
