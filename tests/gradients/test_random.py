"""Gradients of random programs of ops, views, repeats and shared values, against differences.

The same program runs in numpy and float64. The gradient along a random direction is compared with
the difference along it. AGGML_RANDOM_GRADIENTS says how many programs are tried.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gradients import numpy_ops as np_ops

import aggml
from aggml import Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend

N_PROGRAMS = int(os.environ.get("AGGML_RANDOM_GRADIENTS", "120"))
Array = np.ndarray[Any, Any]

UNARY: dict[str, Callable[[Array], Array]] = {
    "sin": np.sin,
    "cos": np.cos,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "neg": np.negative,
    "dup": np.asarray,
    "cont": np.asarray,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}


class Random:
    """A random program: tensors, and for each the function that computes it in numpy.

    Attributes:
        tensors: leafs and results, all of them f32 and differentiable.
        steps: for each of `tensors` its numpy function of the values before it; None: a leaf.
        refused: calls that builders refused, and which are no part of the program.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.tensors: list[Tensor] = []
        self.steps: list[Callable[[list[Array]], Array] | None] = []
        self.refused = 0
        rank = int(rng.integers(1, 5))
        self.leaf(tuple(int(n) for n in rng.integers(1, 5, rank)))
        for _ in range(int(rng.integers(4, 14))):
            try:
                self.add()
            except aggml.AggmlError:
                self.refused += 1

    def leaf(self, ne: tuple[int, ...]) -> int:
        """A new parameter; its index."""
        self.tensors.append(new_tensor("f32", ne, f"leaf {len(self.tensors)}").set_param())
        self.steps.append(None)
        return len(self.tensors) - 1

    def step(self, tensor: Tensor, function: Callable[[list[Array]], Array]) -> None:
        self.tensors.append(tensor)
        self.steps.append(function)

    def add(self) -> None:
        """A random op of a random value."""
        rng = self.rng
        i = int(rng.integers(len(self.tensors))) if rng.random() < 0.3 else len(self.tensors) - 1
        t = self.tensors[i]
        choices = (self.unary, self.binary, self.view, self.sums, self.product)
        choice = int(rng.integers(len(choices)))
        choices[3 if t.nelements > 600 else choice](i, t)

    def unary(self, i: int, t: Tensor) -> None:
        kind = int(self.rng.integers(4))
        if kind == 0:
            self.step(ops.rms_norm(t, 0.1), lambda v: np_ops.rms_norm(v[i], 0.1))
        elif kind == 1:
            self.step(ops.soft_max_ext(t, None, 0.7), lambda v: np_ops.soft_max(0.7 * v[i]))
        else:
            name = str(self.rng.choice([*UNARY]))
            self.step(getattr(ops, name)(t), lambda v: UNARY[name](v[i]))

    def binary(self, i: int, t: Tensor) -> None:
        name = str(self.rng.choice([*BINARY]))
        same = [k for k, other in enumerate(self.tensors) if other.ne == t.ne]
        if self.rng.random() < 0.5:
            j = int(self.rng.choice(same))
        else:
            divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in t.ne]
            j = self.leaf(tuple(int(self.rng.choice(d)) for d in divisors))
        node = getattr(ops, name)(t, self.tensors[j])
        self.step(node, lambda v: BINARY[name](v[i], np_ops.tiled(v[j], v[i].shape)))

    def product(self, i: int, t: Tensor) -> None:
        shared = [
            int(self.rng.choice([d for d in range(1, n + 1) if n % d == 0])) for n in t.ne[2:]
        ]
        j = self.leaf((t.ne[0], int(self.rng.integers(1, 4)), *shared))
        a, b = self.tensors[j], t
        self.step(ops.mul_mat(a, b), lambda v: np_ops.mul_mat(v[j], v[i]) / 1.0)

    def sums(self, i: int, t: Tensor) -> None:
        kind = int(self.rng.integers(4))
        if kind == 0:
            self.step(ops.sum_rows(t), lambda v: v[i].sum(-1, keepdims=True))
        elif kind == 1:
            self.step(ops.mean(t), lambda v: v[i].mean(-1, keepdims=True))
        elif kind == 2:
            self.step(ops.scale(t, -0.6), lambda v: -0.6 * v[i])
        else:
            times = tuple(int(n) for n in self.rng.integers(1, 3, 4))
            ne = tuple(n * m for n, m in zip(t.ne, times, strict=True))
            if math.prod(ne) <= 600:
                self.step(ops.repeat_4d(t, *ne), lambda v: np.tile(v[i], times[::-1]))

    def view(self, i: int, t: Tensor) -> None:
        kind = int(self.rng.integers(4))
        if kind == 0:
            axes = [int(a) for a in self.rng.permutation(4)]
            back = [3 - axes.index(3 - a) for a in range(4)]
            self.step(ops.permute(t, *axes), lambda v: v[i].transpose(back))
        elif kind == 1:
            self.step(ops.transpose(t), lambda v: v[i].swapaxes(2, 3))
        elif kind == 2:
            parts: list[slice] = []
            for n in t.shape:
                start = int(self.rng.integers(n))
                stop = int(self.rng.integers(start + 1, n + 1))
                parts.append(slice(start, stop, int(self.rng.integers(1, 3))))
            index = (*[slice(None)] * (4 - len(parts)), *parts)
            self.step(t[tuple(parts)], lambda v: v[i][index])
        else:
            shape = list(t.ne)
            self.rng.shuffle(shape)
            ne = tuple(int(n) for n in shape)
            self.step(ops.reshape_4d(t, *ne), lambda v: v[i].reshape(ne[::-1]))

    def compute(self, leafs: list[Array], weight: Array) -> float:
        """The weighted sum of the last result, in numpy."""
        values: list[Array] = []
        rest = iter(leafs)
        for function in self.steps:
            values.append(next(rest) if function is None else function(values))
        return float((values[-1] * weight).sum())


@pytest.mark.parametrize("number", range(N_PROGRAMS))
def test_the_gradient_along_a_direction_is_the_difference(number: int, cpu: CPUBackend) -> None:
    rng = np.random.default_rng(900 + number)
    program = Random(rng)
    leafs = [t for t, step in zip(program.tensors, program.steps, strict=True) if step is None]
    result = ops.cont(program.tensors[-1])
    weights = new_tensor("f32", result.ne, "weights")
    loss = ops.sum(ops.mul(result, weights)).set_loss()
    values = [rng.normal(size=t.ne[::-1]) * 0.8 for t in leafs]
    along = [rng.normal(size=v.shape) for v in values]
    weight = rng.normal(size=result.ne[::-1])

    graph = Graph(loss)
    summed = [t for t in leafs[::2] if t in graph.leaf_set and number % 3 == 0]
    back = aggml.build_backward_expand(graph, summed)
    cpu.alloc_graph(back)
    cpu.graph_reset(back)
    used = [(t, v, u) for t, v, u in zip(leafs, values, along, strict=True) if back.grad(t)]
    given = {t: v.astype(np.float32).reshape(t.shape) for t, v, _ in used}
    given[weights] = weight.astype(np.float32).reshape(weights.shape)
    wanted = [g for t, _, _ in used if (g := back.grad(t)) is not None]
    assert [g.shape for g in wanted] == [t.shape for t, _, _ in used]
    found = cpu.run(back, {t: v for t, v in given.items() if t in back.leaf_set}, wanted).get(60)
    got = sum(
        float((g.reshape(u.shape).astype(np.float64) * u).sum())
        for g, (_, _, u) in zip(found, used, strict=True)
    )

    step = 1e-5
    sides = [
        program.compute([v + s * u for v, u in zip(values, along, strict=True)], weight)
        for s in (step, -step)
    ]
    expected = (sides[0] - sides[1]) / (2 * step)
    size = sum(
        float(np.abs(g.reshape(u.shape) * u).sum())
        for g, (_, _, u) in zip(found, used, strict=True)
    )
    assert abs(got - expected) <= 1e-3 * max(size, abs(expected), 1e-3)


def test_most_calls_are_part_of_a_program() -> None:
    programs = [Random(np.random.default_rng(900 + i)) for i in range(60)]
    assert sum(p.refused for p in programs) < sum(len(p.tensors) for p in programs) / 3
