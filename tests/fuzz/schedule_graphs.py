"""Random graphs over cells (vectors that the user placed) and brought leafs, with a numpy model.

Values are small whole numbers, so that every order of arithmetic gives the same floats. Not here:
programs that submit them (schedules.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    Array: TypeAlias = np.ndarray[Any, Any]
    #: Tensors and their contents. A cell has the state's own array, and a view of a cell a numpy
    #: view.
    Values: TypeAlias = dict[aggml.Tensor, Array]

__all__ = ["HALF", "OPS", "Drawn", "N", "State", "draw_graph", "small"]

N = 8
HALF = N // 2
LIMIT = 99
#: The contents of each cell, by its number.
State: TypeAlias = "list[Array]"

UNARY: dict[str, tuple[Callable[..., aggml.Tensor], Callable[[Array], Array]]] = {
    "neg": (ops.neg, lambda x: -x),
    "abs": (ops.abs, np.abs),
    "sgn": (ops.sgn, np.sign),
    "relu": (ops.relu, lambda x: np.maximum(x, 0)),
}
#: Ops that a simulated device may lack. Not clamp: it writes in place, so the device of its source
#: has to be able to run it.
OPS = (*UNARY, "add", "mul")


def small(rng: random.Random, n: int = N) -> Array:
    """An array of random whole numbers from -9 to 9."""
    return np.array([rng.randint(-9, 9) for _ in range(n)], np.float32)


@dataclass
class Drawn:
    """A graph and its numpy model.

    Attributes:
        graph: over cells and brought leafs.
        brought: leafs that each run brings.
        cells: the cells that it reads or writes, each with its number.
        outs: tensors that can be read after a run.
        made: for each node, a function that computes its value with numpy.
    """

    graph: Graph
    brought: list[aggml.Tensor]
    cells: dict[aggml.Tensor, int]
    outs: list[aggml.Tensor]
    made: dict[aggml.Tensor, Callable[[Values], Array]]

    def run(
        self, state: State, inputs: dict[aggml.Tensor, Array], wanted: Sequence[aggml.Tensor]
    ) -> list[Array]:
        """Change ``state`` as a run does; return the contents of ``wanted``."""
        values = {tensor: state[i] for tensor, i in self.cells.items()}
        for tensor, x in inputs.items():
            if tensor in values:
                values[tensor][...] = x
            else:
                values[tensor] = x
        for node in self.graph.nodes:
            values[node] = self.made[node](values)
        return [values[tensor].copy() for tensor in wanted]


class _Making:
    def __init__(self, rng: random.Random, cells: Sequence[aggml.Tensor]) -> None:
        self.rng = rng
        self.cells = cells
        self.made: dict[aggml.Tensor, Callable[[Values], Array]] = {}
        self.used: dict[aggml.Tensor, int] = {}
        self.brought: list[aggml.Tensor] = []
        self.values: list[aggml.Tensor] = []
        self.writes: list[aggml.Tensor] = []

    def cell(self) -> aggml.Tensor:
        i = self.rng.randrange(len(self.cells))
        self.used[self.cells[i]] = i
        return self.cells[i]

    def value(self) -> aggml.Tensor:
        """Draw a tensor to read: a node, a cell, or a leaf that each run brings."""
        kind = self.rng.random()
        if self.values and kind < 0.5:
            return self.rng.choice(self.values)
        if kind < 0.8:
            return self.cell()
        if not self.brought or kind < 0.9:
            leaf = aggml.new_tensor("f32", ne=(N,), name=f"x{len(self.brought)}")
            self.brought.append(leaf.set_input())
        return self.rng.choice(self.brought)

    def put(self, node: aggml.Tensor, does: Callable[[Values], Array]) -> aggml.Tensor:
        self.made[node] = does
        return node

    def half(self, tensor: aggml.Tensor) -> aggml.Tensor:
        at = self.rng.choice((0, HALF))
        view = ops.view_1d(tensor, HALF, 4 * at)
        return self.put(view, lambda v: v[tensor][at : at + HALF])

    def unary(self) -> None:
        name = self.rng.choice(list(UNARY))
        build, does = UNARY[name]
        a = self.value()
        self.values.append(self.put(build(a), lambda v: does(v[a])))

    def binary(self) -> None:
        """Add a sum or a product whose values stay within `LIMIT`."""
        a, b = self.value(), self.value()
        if self.rng.random() < 0.6:
            inner = self.put(ops.add(a, b), lambda v: v[a] + v[b])
        else:
            inner = self.put(ops.mul(a, b), lambda v: v[a] * v[b])
        clamped = ops.clamp(inner, -LIMIT, LIMIT)
        self.values.append(self.put(clamped, lambda v: np.clip(v[inner], -LIMIT, LIMIT)))

    def write(self) -> None:
        """Add a node that writes a cell, or half of a cell."""
        source, target = self.value(), self.cell()
        # a meta device refuses graphs that write a part of what it divides
        if self.rng.random() < 0.4 and target.name.startswith("cell"):
            source, target = self.half(source), self.half(target)

        def does(v: Values) -> Array:
            v[target][...] = v[source].copy()
            return v[target]

        node = self.put(ops.cpy(source, target), does)
        self.writes.append(node)
        if node.ne[0] == N:
            self.values.append(node)


def draw_graph(rng: random.Random, cells: Sequence[aggml.Tensor]) -> Drawn:
    """Draw a graph of one to ten nodes over ``cells``."""
    making = _Making(rng, cells)
    steps = [making.unary, making.binary, making.write]
    for _ in range(rng.randint(1, 8)):
        rng.choices(steps, (5, 4, 2))[0]()
    if not making.values and not making.writes:
        making.unary()
    plain = [t for t in making.values if t not in making.writes]
    ends = rng.sample(plain, min(len(plain), rng.randint(1, 2)))
    for node in plain:
        if node not in ends and rng.random() < 0.2:
            node.set_output()
    wanted = [t for t in making.made if t in ends or t in making.writes]
    graph = Graph(*wanted)
    there = {*graph.nodes, *graph.leafs}
    outs = [t for t in (*ends, *making.writes) if t in there]
    outs += [t for t in plain if t in there and t.flags & aggml.TensorFlag.OUTPUT]
    used = {t: i for t, i in making.used.items() if t in there}
    return Drawn(
        graph,
        [t for t in making.brought if t in there],
        used,
        [*dict.fromkeys(outs), *used],
        making.made,
    )
