"""From a graph to what each device computes: rounds of nodes, and copies between devices.

Here: changing the state of a value: adding summands, joining parts, cutting parts out of a whole.
Between two rounds devices send each other parts, or a library sums over all devices. Within a round
no device waits for another. Not here: the rounds as values (round.py), which state an op wants
(rules.py), memory between rounds (between.py), running (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml import ops
from aggml.devices.meta.division import SUM, WHOLE, can_divide, part_of, shown
from aggml.devices.meta.memory import lay_shard, shard_of
from aggml.devices.meta.round import Needed, Round, Rounds, Sent, Summed
from aggml.devices.meta.rules import wanted
from aggml.errors import Unsupported
from aggml.ops.table import OPS, VIEWS, WRITES_MORE
from aggml.tensor import change, cut, new_node, new_tensor, new_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.meta.memory import Each
    from aggml.graph import Graph
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["dividing"]


def dividing(
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
    for i, node in enumerate(graph.nodes):
        draft.add(node)
        if i % 16 == 0:
            yield
    kept = {node.root: None for node in graph.nodes if node.root.op != "none"}
    for node in kept:
        if node.placement is not None:
            draft.keep(node)
        yield
    return draft.done()


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
        self.state: dict[Tensor, int] = {}
        self.forms: dict[tuple[Tensor, int], Each] = {}
        self.rounds = [self._round()]
        self.made: dict[Tensor, tuple[int, Each]] = {}
        self.last: dict[Tensor, int] = {}

    def _round(self) -> Round:
        return Round([], [], [[] for _ in range(self.n)])

    @property
    def now(self) -> int:
        """The index of the round that is being filled."""
        return len(self.rounds) - 1

    def done(self) -> Rounds:
        """The result, once all nodes were added."""
        between = [
            Needed(self.made[first][1], self.made[first][0], last)
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
            node._frozen = True
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
        first = each[0]
        there: list[Each] = []  # entry i: the part of the device that is i places further on
        for shift in range(1, self.n):
            targets = []
            for _ in range(self.n):
                target = new_tensor(first.dtype, first.ne, cut(f"{first.name} (sent)"))
                target._frozen = True
                targets.append(target)
            for i, target in enumerate(targets):
                j = (i + shift) % self.n
                self.rounds[-1].sent.append(Sent(j, each[j], i, target))
            there.append(self._note(tuple(targets)))
        behind = [each, *there]
        return [tuple([behind[(j - i) % self.n][i] for i in range(self.n)]) for j in range(self.n)]

    # -- one state made of another

    def get(self, tensor: Tensor, state: int) -> Each:
        """A tensor on each device in the given state, converted if needed."""
        found = self.forms.get((tensor, state))
        if found is not None:
            return found
        have = self.state[tensor]
        each = self.forms[tensor, have]
        if have == SUM:
            by_library = self.sums(each[0])
            joined = self._summed(each) if by_library else self._paired(each, ops.add)
            self.forms[tensor, WHOLE] = joined
            self.state[tensor] = WHOLE
            return self.get(tensor, state)
        if have >= 0 and state >= 0:
            self.get(tensor, WHOLE)
            each = self.forms[tensor, WHOLE]
        if state == WHOLE:
            made = self._paired(self._close(each), lambda a, b: ops.concat(a, b, have))
        else:
            made = self._cut(each, state)
        self.forms[tensor, state] = made
        return made

    def _paired(self, each: Each, join: Callable[[Tensor, Tensor], Tensor]) -> Each:
        """Parts of all devices joined two by two, on every device in the same order."""
        parts = self._send(each)
        while len(parts) > 1:
            joined = []
            for a, b in zip(parts[::2], parts[1::2], strict=False):
                joined.append(self._add(lambda i, a=a, b=b: join(a[i], b[i]), (a, b)))  # type: ignore[misc]
            parts = joined + parts[len(parts) & ~1 :]
        return parts[0]

    def _summed(self, each: Each) -> Each:
        """The sum of the summands of all devices, on each of them, by their library."""
        if any(self.rounds[-1].nodes):
            self.rounds.append(self._round())
        self._touch(each)
        first = each[0]
        targets = tuple(
            [new_tensor(first.dtype, first.ne, cut(f"{first.name} (sum)")) for _ in each]
        )
        for target in targets:
            target._frozen = True
        self.rounds[-1].summed.append(Summed(each, targets))
        self.last[targets[0]] = self.now  # its plans are compiled for a fixed address
        return self._note(targets)

    def _close(self, each: Each) -> Each:
        """The parts, made contiguous."""
        if each[0].is_contiguous:
            return each
        return self._add(lambda i: ops.cont(each[i]), (each,))

    def _cut(self, each: Each, axis: int) -> Each:
        """The part of each device, cut out of the whole tensor."""
        first, n = each[0], self.n
        ne = part_of(first.ne, axis, n)
        unit = first.dtype.blck_size if axis == 0 else 1
        step = ne[axis] // unit * first.nb[axis]
        views = self._add(
            lambda i: new_view("view", each[i], ne, first.nb, i * step, (each[i],)), (each,)
        )
        return self._close(views)

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
        if node.op in VIEWS:
            self._add_view(node)
        elif node.view_src is not None:
            self._add_write(node)
        else:
            states = [WHOLE if s is None else self.state[s] for s in node.src]
            found = wanted(node, states, self.n)
            if not _fits(node, found.sources, self.n) or node.op in WRITES_MORE:
                self._check_updates(node)
                found = found._replace(sources=(WHOLE,) * len(node.src), result=WHOLE)
            sources = self._sources(node, found.sources)
            self._made(node, found.result, self._like(node, sources, found.result))

    def _sources(self, node: Tensor, states: Sequence[int]) -> list[Each | None]:
        return [
            None if s is None else self.get(s, state)
            for s, state in zip(node.src, states, strict=True)
        ]

    def _check_updates(self, node: Tensor) -> None:
        """Refuse an op that writes its operands if these are divided."""
        if node.op in WRITES_MORE:
            for source in node.src:
                if source is not None and self.state[source] >= 0:
                    raise Unsupported(
                        f"[MetaDevice] {node!r} would write {source!r}, which is divided among "
                        "devices"
                    )

    def _like(self, node: Tensor, sources: Sequence[Each | None], state: int) -> Each:
        ne = part_of(node.ne, state, self.n)
        name = cut(node.name)

        def make(i: int) -> Tensor:
            src = tuple([None if each is None else each[i] for each in sources])
            return new_node(node.op, node.dtype, ne, src, node.op_params, name, node.ndim)

        return self._add(make, sources)

    def _made(self, tensor: Tensor, state: int, each: Each) -> None:
        self.state[tensor] = state
        self.forms[tensor, state] = each

    def _on_root(self, node: Tensor, sources: Sequence[Each | None], op: str) -> tuple[int, Each]:
        """Add a node that views or writes bytes of its root, in the root's own state."""
        root = node.root
        state = self.state[root]
        if state == SUM:
            self.get(root, WHOLE)
            state = WHOLE
        found = shown(root, state, self.n, node) if state >= 0 else None
        if state >= 0 and found is None:
            self.get(root, WHOLE)
        on = self.forms[root, WHOLE if found is None else state]
        ne, nb, offset = (
            (node.ne, node.nb, node.view_offs)
            if found is None
            else (found.ne, found.nb, found.offset)
        )
        name = cut(node.name)

        def make(i: int) -> Tensor:
            src = tuple([None if each is None else each[i] for each in sources]) or (on[i],)
            return new_view(op, on[i], ne, nb, offset, src, node.op_params, name, node.ndim)

        each = self._add(make, [on, *sources])
        return (WHOLE if found is None else found.axis), each

    def _add_view(self, node: Tensor) -> None:
        self._made(node, *self._on_root(node, (), "view"))

    def _add_write(self, node: Tensor) -> None:
        """Add a node that writes into an existing storage: a cache, or an operand."""
        root = node.root
        if self.state[root] == SUM:
            self.get(root, WHOLE)
        states: Sequence[int] | None = _written(
            node, [WHOLE if s is None else self.state[s] for s in node.src]
        )
        axis = self.state[root]
        if axis >= 0:
            found = shown(root, axis, self.n, node)
            states = None if found is None else self._states_for(node, found.axis)
            if states is None or not _fits(node, states, self.n):
                states = None
                if root.placement is not None and root.op == "none":
                    raise Unsupported(
                        f"[MetaDevice] {node!r} would write a part of {root!r}, which is divided "
                        f"among {self.n} devices along axis {axis}"
                    )
                self._whole_from_now(root)
        sources = self._sources(node, states or [WHOLE] * len(node.src))
        state, each = self._on_root(node, sources, node.op)
        self._forget(root)
        self._made(node, state, each)

    def _states_for(self, node: Tensor, axis: int) -> Sequence[int] | None:
        """The states of the sources of a node that writes parts along an axis of its result."""
        if node.op == "set_rows":
            return [0, WHOLE, *[self.state[s] for s in node.src[2:] if s]] if axis == 0 else None
        if node.op == "cpy":
            a = node.src[0]
            assert a is not None
            target = [self.state[s] for s in node.src[1:] if s]
            return [axis, *target] if a.ne == node.ne else None
        found = wanted(node, [WHOLE if s is None else self.state[s] for s in node.src], self.n)
        return found.sources if found.result == axis else None

    def _whole_from_now(self, root: Tensor) -> None:
        whole = self.get(root, WHOLE)
        self._forget(root)
        self.forms = {key: each for key, each in self.forms.items() if key[0].root is not root}
        self._made(root, WHOLE, whole)
        for tensor in [t for t in self.state if t.root is root and t is not root]:
            self._made(tensor, *self._on_root(tensor, (), "view"))

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
        if each[0].view_src is not None or each[0].placement is not None:
            each = self._add(lambda i: ops.cont(each[i]), (each,))
        for part in each:
            change(part, "name", cut(node.name))
        lay_shard(node, state, each)


def _fits(node: Tensor, states: Sequence[int], n: int) -> bool:
    """Whether the sources can be divided into these states."""
    return all(
        s is None or state < 0 or can_divide(s, state, n)
        for s, state in zip(node.src, states, strict=True)
    )


def _written(node: Tensor, states: Sequence[int]) -> Sequence[int]:
    """All sources whole except the target, which keeps its state."""
    targets = OPS[node.op].targets
    return [state if i in targets else WHOLE for i, state in enumerate(states)]
