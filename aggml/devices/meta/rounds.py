"""From a graph to what each device computes: rounds of nodes, and copies between devices.

Here: changing the state of a value: adding summands, joining parts, cutting parts out of a whole.
Between two rounds devices send each other parts, or a library sums over all devices. Within a round
no device waits for another. Not here: the rounds as values (round.py), which state an op wants
(rules.py), memory between rounds (between.py), running (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml import ops
from aggml.devices.meta.memory import has_shard, lay_shard, shard_of
from aggml.devices.meta.parts import slice_of
from aggml.devices.meta.round import DeviceCopy, DeviceSum, Round, Rounds, StorageUse
from aggml.devices.meta.rules import wanted_states
from aggml.devices.meta.split import SUM, WHOLE, SplitState, can_hold, view_on_devices
from aggml.errors import Unsupported
from aggml.ops.table import OPS, VIEWS, WRITES_MORE
from aggml.tensor import change, cut, new_node, new_tensor, new_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.meta.memory import Each
    from aggml.graph import Graph
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["divide_graph"]


def divide_graph(
    graph: Graph, n: int, sums: Callable[[Tensor], bool] = lambda _: False
) -> Sliced[Rounds]:
    """Divide a placed graph among ``n`` devices, in small steps.

    Args:
        graph: placed.
        n: how many devices.
        sums: whether a library of the devices can sum a tensor. Other summands are sent.

    Raises:
        Unsupported: an op would write a part of a divided leaf in a way that has no rule.
        AllocFailed: a device has no memory for the values that can be read after a run.
    """
    draft = _Draft(n, sums)
    for leaf in graph.leafs:
        if leaf.view_src is None:
            draft.add_leaf(leaf)
    # A split of a scheduler may hold views that only copies to other devices read: their bytes may
    # lie elsewhere.
    read = {s for node in graph.nodes if node.op not in VIEWS for s in node.src}
    for i, node in enumerate(graph.nodes):
        if node.op not in VIEWS or node in read:
            draft.add(node)
        if i % 16 == 0:
            yield
    kept = {node.root: None for node in graph.nodes if node.root.op != "none"}
    for node in kept:
        if node.placement is not None:
            draft.keep(node)
        yield
    return draft.finish()


class _Draft:
    """A program that is being divided, node after node.

    Attributes:
        state: the state in which each tensor was computed.
        forms: each tensor in every state that was needed so far.
        rounds: see `Round`.
        made: for each storage on the devices, the round that computes it.
        last: the last round that uses it, if that is a later one.
    """

    def __init__(self, n: int, sums: Callable[[Tensor], bool]) -> None:
        self.n = n
        self.sums = sums
        self.state: dict[Tensor, SplitState] = {}
        self.forms: dict[tuple[Tensor, SplitState], Each] = {}
        self.rounds = [self._round()]
        self.made: dict[Tensor, tuple[int, Each]] = {}
        self.last: dict[Tensor, int] = {}

    def _round(self) -> Round:
        return Round([], [], [[] for _ in range(self.n)])

    @property
    def now(self) -> int:
        """The index of the round that is being filled."""
        return len(self.rounds) - 1

    def finish(self) -> Rounds:
        """Return the result, once all nodes were added."""
        between = [
            StorageUse(self.made[first][1], self.made[first][0], last)
            for first, last in self.last.items()
            if first.placement is None
        ]
        return Rounds(self.rounds, between)

    # -- tensors of the devices

    def _note(self, each: Each) -> Each:
        """Note that this round computes these storages."""
        self.made[each[0]] = (self.now, each)
        return each

    def _touch(self, each: Each) -> None:
        """Note that this round reads or writes these storages."""
        root = each[0].root
        found = self.made.get(root)
        if found is not None and found[0] < self.now:
            self.last[root] = self.now

    def _add(self, make: Callable[[int], Tensor], sources: Sequence[Each | None]) -> Each:
        """Add a node on each device."""
        for each in sources:
            if each is not None:
                self._touch(each)
        each = tuple([make(i) for i in range(self.n)])
        for nodes, node in zip(self.rounds[-1].nodes, each, strict=True):
            change(node, "frozen", True)
            nodes.append(node)
        if each[0].view_src is None:
            self._note(each)
        else:
            self._touch(each)
        return each

    def _send(self, each: Each) -> list[Each]:
        """Send the part of every device to every device; the result is in the order of devices."""
        if any(self.rounds[-1].nodes):
            self.rounds.append(self._round())
        self._touch(each)
        there: list[Each] = []  # entry i: the part of the device that is i places further on
        for shift in range(1, self.n):
            targets = []
            for i in range(self.n):
                j = (i + shift) % self.n
                part = each[j]
                target = new_tensor(part.dtype, part.ne, cut(f"{part.name} (sent)"))
                change(target, "frozen", True)
                targets.append(target)
                self.rounds[-1].copies.append(DeviceCopy(j, part, i, target))
            there.append(self._note(tuple(targets)))
        behind = [each, *there]
        return [tuple([behind[(j - i) % self.n][i] for i in range(self.n)]) for j in range(self.n)]

    # -- one state made of another

    def get(self, tensor: Tensor, state: SplitState) -> Each:
        """A tensor on each device in the given state, converted if needed."""
        found = self.forms.get((tensor, state))
        if found is not None:
            return found
        have = self.state[tensor]
        each = self.forms[tensor, have]
        if have == SUM:
            by_library = self.sums(each[0])
            joined = (
                self._sum_of(each) if by_library else self._join_pairs(self._send(each), ops.add)
            )
            self.forms[tensor, WHOLE] = joined
            self.state[tensor] = WHOLE
            return self.get(tensor, state)
        if have.is_divided and state.is_divided:
            self.get(tensor, WHOLE)
            each = self.forms[tensor, WHOLE]
        made = self._join(self._close(each), have) if state == WHOLE else self._cut(each, state)
        self.forms[tensor, state] = made
        return made

    def _join(self, each: Each, have: SplitState) -> Each:
        """The whole tensor on every device, of the parts of all."""
        parts = self._send(each)
        if len(have.segments) > 1:
            parts = [
                self._slice(parts[i], have.axis, [(begin, extent)] * self.n)
                for i, _, begin, extent in have.runs()
            ]
        return self._join_pairs(parts, lambda a, b: ops.concat(a, b, have.axis))

    def _join_pairs(self, parts: list[Each], join: Callable[[Tensor, Tensor], Tensor]) -> Each:
        """Parts joined two by two, on every device in the same order."""
        while len(parts) > 1:
            joined = []
            for a, b in zip(parts[::2], parts[1::2], strict=False):
                joined.append(self._add(lambda i, a=a, b=b: join(a[i], b[i]), (a, b)))  # type: ignore[misc]
            parts = joined + parts[len(parts) & ~1 :]
        return parts[0]

    def _sum_of(self, each: Each) -> Each:
        """The sum of the summands of all devices, on each of them, by their library."""
        if any(self.rounds[-1].nodes):
            self.rounds.append(self._round())
        self._touch(each)
        first = each[0]
        targets = tuple(
            [new_tensor(first.dtype, first.ne, cut(f"{first.name} (sum)")) for _ in each]
        )
        for target in targets:
            change(target, "frozen", True)
        self.rounds[-1].sums.append(DeviceSum(each, targets))
        self.last[targets[0]] = self.now  # its plans are compiled for a fixed address
        return self._note(targets)

    def _close(self, each: Each) -> Each:
        """The parts, made contiguous."""
        if each[0].is_contiguous:
            return each
        return self._add(lambda i: ops.cont(each[i]), (each,))

    def _slice(self, each: Each, axis: int, ranges: Sequence[tuple[int, int]]) -> Each:
        """A range of an axis on each device, contiguous; ranges are a begin and an extent each."""
        views = self._add(lambda i: slice_of(each[i], axis, *ranges[i]), (each,))
        return self._close(views)

    def _cut(self, each: Each, state: SplitState) -> Each:
        """The part of each device, cut out of the whole tensor."""
        ranges: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        for i, begin, _, extent in state.runs():
            ranges[i].append((begin, extent))
        pieces = [self._slice(each, state.axis, r) for r in zip(*ranges, strict=True)]
        return self._join_pairs(pieces, lambda a, b: ops.concat(a, b, state.axis))

    # -- nodes

    def add_leaf(self, leaf: Tensor) -> None:
        """Add a leaf, which lies on the devices already."""
        shard = shard_of(leaf)
        self.state[leaf] = shard.state
        self.forms[leaf, shard.state] = shard.each

    def add(self, node: Tensor) -> None:
        """Add a node, with the conversions of its sources that it needs."""
        if node.op == "none":
            return
        root = node.root
        if root is not node and root not in self.state:
            self.add_leaf(root)  # reached through views alone
        if node.op not in VIEWS:
            for source in node.src:
                if source is None or source in self.state:
                    continue
                if source.view_src is None:  # of an earlier split of a scheduler, as the views are
                    self.add_leaf(source)
                else:
                    self.add(source)
        if node.op in VIEWS:
            self._add_view(node)
        elif node.view_src is not None:
            self._add_write(node)
        else:
            states = [WHOLE if s is None else self.state[s] for s in node.src]
            found = wanted_states(node, states)
            if not _fits(node, found.sources) or node.op in WRITES_MORE:
                self._check_updates(node)
                found = found._replace(sources=(WHOLE,) * len(node.src), result=WHOLE)
            sources = self._sources(node, found.sources)
            self._record(node, found.result, self._like(node, sources, found.result))

    def _sources(self, node: Tensor, states: Sequence[SplitState]) -> list[Each | None]:
        return [
            None if s is None else self.get(s, state)
            for s, state in zip(node.src, states, strict=True)
        ]

    def _check_updates(self, node: Tensor) -> None:
        """Refuse an op that writes its operands if these are divided."""
        if node.op in WRITES_MORE:
            for source in node.src:
                if source is not None and self.state[source].is_divided:
                    raise Unsupported(
                        f"[MetaDevice] {node!r} would write {source!r}, which is divided among "
                        "devices"
                    )

    def _like(self, node: Tensor, sources: Sequence[Each | None], state: SplitState) -> Each:
        name = cut(node.name)

        def make(i: int) -> Tensor:
            src = tuple([None if each is None else each[i] for each in sources])
            ne = state.part(node.ne, i)
            return new_node(node.op, node.dtype, ne, src, node.op_params, name, node.ndim)

        return self._add(make, sources)

    def _record(self, tensor: Tensor, state: SplitState, each: Each) -> None:
        self.state[tensor] = state
        self.forms[tensor, state] = each

    def _on_root(
        self, node: Tensor, sources: Sequence[Each | None], op: str
    ) -> tuple[SplitState, Each]:
        """Add a node that views or writes bytes of its root, in the root's own state."""
        root = node.root
        state = self.state[root]
        if state == SUM:
            self.get(root, WHOLE)
            state = WHOLE
        found = view_on_devices(root, state, node) if state.is_divided else None
        if state.is_divided and found is None:
            self.get(root, WHOLE)
        on = self.forms[root, WHOLE if found is None else state]
        all_of_it = ((node.ne, node.nb, node.view_offs),) * self.n
        views = all_of_it if found is None else found.views
        name = cut(node.name)

        def make(i: int) -> Tensor:
            src = tuple([None if each is None else each[i] for each in sources]) or (on[i],)
            ne, nb, offset = views[i]
            return new_view(op, on[i], ne, nb, offset, src, node.op_params, name, node.ndim)

        each = self._add(make, [on, *sources])
        return (WHOLE if found is None else found.state), each

    def _add_view(self, node: Tensor) -> None:
        self._record(node, *self._on_root(node, (), "view"))

    def _add_write(self, node: Tensor) -> None:
        """Add a node that writes into an existing storage: a cache, or an operand."""
        root = node.root
        if self.state[root] == SUM:
            self.get(root, WHOLE)
        states: Sequence[SplitState] | None = _states_for_target(
            node, [WHOLE if s is None else self.state[s] for s in node.src]
        )
        state = self.state[root]
        if state.is_divided:
            found = view_on_devices(root, state, node)
            states = None if found is None else self._states_for(node, found.state)
            if states is None or not _fits(node, states):
                states = None
                if root.placement is not None and root.op == "none":
                    raise Unsupported(
                        f"[MetaDevice] {node!r} would write a part of {root!r}, which is divided "
                        f"among {self.n} devices along axis {state.axis.label}"
                    )
                self._whole_from_now(root)
        sources = self._sources(node, states or [WHOLE] * len(node.src))
        state, each = self._on_root(node, sources, node.op)
        self._forget(root)
        self._record(node, state, each)

    def _states_for(self, node: Tensor, state: SplitState) -> Sequence[SplitState] | None:
        """The states of the sources of a node whose result is written in parts."""
        if node.op == "set_rows":
            target = [self.state[s] for s in node.src[2:] if s]
            return [state, WHOLE, *target] if state.axis == 0 else None
        if node.op == "cpy":
            a = node.src[0]
            assert a is not None
            target = [self.state[s] for s in node.src[1:] if s]
            return [state, *target] if a.ne == node.ne else None
        found = wanted_states(node, [WHOLE if s is None else self.state[s] for s in node.src])
        return found.sources if found.result == state else None

    def _whole_from_now(self, root: Tensor) -> None:
        whole = self.get(root, WHOLE)
        self._forget(root)
        self.forms = {key: each for key, each in self.forms.items() if key[0].root is not root}
        self._record(root, WHOLE, whole)
        for tensor in [t for t in self.state if t.root is root and t is not root]:
            self._record(tensor, *self._on_root(tensor, (), "view"))

    def _forget(self, root: Tensor) -> None:
        """Forget the other states of a storage whose bytes change."""
        for key in [k for k in self.forms if k[0].root is root and self.state[k[0]] != k[1]]:
            del self.forms[key]

    def keep(self, node: Tensor) -> None:
        """Give a value memory in which it can be read after a run."""
        if self.state[node] == SUM:
            self.get(node, WHOLE)
        state = self.state[node]
        each = self.forms[node, state]
        if has_shard(node, each):
            return  # it is written where it lies: a copy, or a value of an earlier graph
        if each[0].view_src is not None or each[0].placement is not None:
            each = self._add(lambda i: ops.cont(each[i]), (each,))
        for part in each:
            change(part, "name", cut(node.name))
        lay_shard(node, state, each)


def _fits(node: Tensor, states: Sequence[SplitState]) -> bool:
    """Whether the sources can be split so."""
    return all(s is None or can_hold(s, state) for s, state in zip(node.src, states, strict=True))


def _states_for_target(node: Tensor, states: Sequence[SplitState]) -> Sequence[SplitState]:
    """All sources whole except the target, which keeps its state."""
    targets = OPS[node.op].targets
    return [state if i in targets else WHOLE for i, state in enumerate(states)]
