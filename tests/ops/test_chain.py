"""Chains of fused nodes give the bits of single nodes: all instruction sets, numbers of threads.

Nodes that are outputs are never fused, so the same graph with all of them flagged is the
reference. Not here: which nodes may be fused at all (tests/plan/test_fusion.py).
"""

from __future__ import annotations

import random
from itertools import groupby
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from ops.computing import floats

import aggml
from aggml import DType, Graph, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

TIMEOUT = 15.0


class Leafs:
    """Leafs with values, made on demand. After `again` the same leafs are returned in order."""

    def __init__(self, seed: int = 1) -> None:
        self.values: dict[Tensor, NDArray[Any]] = {}
        self._made: list[Tensor] = []
        self._next = 0
        self._seed = seed

    def again(self) -> Leafs:
        self._next = 0
        return self

    def __call__(self, *ne: int, dtype: str = "f32") -> Tensor:
        if self._next == len(self._made):
            leaf = new_tensor(dtype, ne=ne)
            x = floats(*leaf.shape, seed=100 * self._seed + self._next)
            self._made.append(leaf)
            if leaf.dtype is DType.F32:
                self.values[leaf] = x
            elif leaf.dtype is DType.BF16:
                self.values[leaf] = x.astype(ml_dtypes.bfloat16)
            elif leaf.dtype is DType.F16:
                self.values[leaf] = x.astype(np.float16)
            else:
                self.values[leaf] = aggml.quantize(x, leaf.dtype)
        self._next += 1
        return self._made[self._next - 1]


def flag_all(node: Tensor) -> Tensor:
    """Flag all nodes OUTPUT: each is stored, so that none is fused with another."""
    if node.op != "none":
        if node.view_src is None:
            node.set_output()
        for source in node.src:
            if source is not None:
                flag_all(source)
    return node


def result(be: aggml.Backend, *ends: Tensor) -> tuple[list[NDArray[Any]], list[str]]:
    """The values of ``ends`` after a run, and the ops that the plan computes, fused ones as one."""
    graph = Graph(*ends)
    placed = be.alloc_graph(graph)
    plan = be.graph_plan(graph).plan
    steps = [op for (_, op), _ in groupby(plan.steps, key=lambda step: (step.node, step.op))]
    values = be.run(graph, None, list(ends))
    values.wait(TIMEOUT)
    arrays = [array.copy() for array in values.result()]
    placed.close()
    return arrays, steps


def linear(f: Leafs, k: int, m: int, x: Tensor, dtype: str = "f32") -> Tensor:
    return ops.add(ops.mul_mat(f(k, m, dtype=dtype), x), f(m))


def layer_norm(f: Leafs, x: Tensor) -> Tensor:
    n = x.ne[0]
    return ops.add(ops.mul(ops.norm(x, 1e-5), f(n)), f(n))


PATTERNS: dict[str, Callable[[Leafs], Tensor]] = {
    "mul_mat+add": lambda f: linear(f, 64, 96, f(64, 7)),
    "mul_mat+add+gelu": lambda f: ops.gelu(linear(f, 384, 100, f(384, 130))),
    "mul_mat+add+gelu_erf": lambda f: ops.gelu_erf(linear(f, 70, 200, f(70, 33))),
    "mul_mat+add+silu": lambda f: ops.silu(linear(f, 64, 64, f(64, 1))),
    "mul_mat+add+relu": lambda f: ops.relu(linear(f, 600, 96, f(600, 50))),
    "mul_mat+relu": lambda f: ops.relu(ops.mul_mat(f(64, 48, 2), f(64, 20, 6, 2))),
    "mul_mat+scale": lambda f: ops.scale(ops.mul_mat(f(32, 17, 1, 3), f(32, 5, 2, 3)), 0.25),
    "mul_mat+add+add": lambda f: ops.add(linear(f, 96, 64, f(96, 75)), f(64, 75)),
    "mul_mat+swiglu": lambda f: ops.swiglu_split(ops.mul_mat(f(64, 80), f(64, 9)), f(80, 9)),
    "mul_mat+geglu": lambda f: ops.geglu_split(f(80, 90), ops.mul_mat(f(64, 80), f(64, 90))),
    "mul_mat+sub": lambda f: ops.sub(f(40, 3), ops.mul_mat(f(64, 40), f(64, 3))),
    "norm+mul+add": lambda f: layer_norm(f, f(384, 31)),
    "add+norm+mul+add": lambda f: layer_norm(f, ops.add(f(100, 5, 3), f(100, 5, 3))),
    "rms_norm+mul": lambda f: ops.mul(ops.rms_norm(f(2048, 70), 1e-6), f(2048)),
    "add+rms_norm+mul": lambda f: ops.mul(ops.rms_norm(ops.add(f(65, 4), f(65)), 0.1), f(65)),
    "rms_norm+mul+mul": lambda f: ops.mul(
        ops.mul(ops.rms_norm(f(64, 8, 3), 1e-6), f(64)), f(64, 1, 3)
    ),
    "scale+add+soft_max": lambda f: ops.soft_max(
        ops.add(ops.scale(f(77, 40, 3), 0.125), f(77, 40))
    ),
    "scale+soft_max": lambda f: ops.soft_max_ext(
        ops.scale(f(50, 9, 4, 2), 3.0), f(50, 9, 1, 2, dtype="f16"), 0.5, 0.0
    ),
    "add+mul+sqr+silu+scale+tanh": lambda f: ops.tanh(
        ops.scale_bias(ops.silu(ops.sqr(ops.mul(ops.add(f(9000, 5), f(1)), f(9000)))), 2.0, -1.0)
    ),
    "div+swiglu": lambda f: ops.swiglu_split(ops.div(f(48, 40), f(48, 40)), f(48, 40)),
    "exp+log": lambda f: ops.log(ops.exp(f(333, 20))),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_same_bits_as_one_by_one(backend: aggml.Backend, name: str) -> None:
    f = Leafs()
    fused = PATTERNS[name](f)
    alone = flag_all(PATTERNS[name](f.again()))
    memory = backend.alloc(list(f.values))
    for leaf, value in f.values.items():
        backend.set(leaf, value)
    (wanted,), steps = result(backend, alone)
    assert len(steps) == name.count("+") + 1
    (got,), steps = result(backend, fused)
    scalar = getattr(backend, "cpu", 0) == 0
    assert steps == (name.split("+") if scalar else [name])
    np.testing.assert_array_equal(got, wanted)
    memory.close()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl"])
@pytest.mark.parametrize("columns", [1, 3, 8, 20, 200])
@pytest.mark.parametrize("usage", [aggml.BufferUsage.ANY, aggml.BufferUsage.WEIGHTS])
def test_products_of_every_kind(
    backend: aggml.Backend, dtype: str, columns: int, usage: aggml.BufferUsage
) -> None:
    f = Leafs()

    def build() -> Tensor:
        x = f(768, columns)
        return ops.add(ops.gelu(linear(f, 768, 112, x, dtype)), f(112, columns))

    fused = build()
    f.again()
    alone = flag_all(build())
    memory = backend.alloc(list(f.values))
    memory.usage = usage  # with usage WEIGHTS they may be packed
    for leaf, value in f.values.items():
        backend.set(leaf, value)
    (wanted,), _ = result(backend, alone)
    (got,), _ = result(backend, fused)
    np.testing.assert_array_equal(got, wanted)
    memory.close()


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e-42, 1e-36])
def test_products_of_numbers_that_are_multiplied_apart(
    backend: aggml.Backend, value: float
) -> None:
    f = Leafs()

    def build() -> Tensor:
        return ops.relu(linear(f, 300, 100, f(300, 70)))

    fused = build()
    f.again()
    alone = flag_all(build())
    x = next(iter(f.values.values()))
    assert x.shape == (70, 300)
    x[5] = value  # a whole column, and one element among others
    x[40, 7] = value
    memory = backend.alloc(list(f.values))
    for leaf, held in f.values.items():
        backend.set(leaf, held)
    (wanted,), _ = result(backend, alone)
    (got,), _ = result(backend, fused)
    np.testing.assert_array_equal(got, wanted)
    memory.close()


@pytest.fixture(scope="module", params=[1, 2, 3])
def threaded(request: pytest.FixtureRequest) -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=request.param) as be:
        yield be


def random_graph(f: Leafs, rng: random.Random) -> list[Tensor]:
    """Two ends of a random graph of fusible operations, whose values may be read several times."""
    n, rows = 64, 6
    pool = [f(n, rows), f(n, rows)]
    target = f(n, rows)
    for _ in range(rng.randint(4, 24)):
        a, b = rng.choice(pool[-4:]), rng.choice(pool)
        kind = rng.randrange(11)
        if kind == 0:
            made = ops.mul_mat(f(n, n), a)
        elif kind == 1:
            made = ops.add(a, f(n))
        elif kind == 2:
            made = ops.add(a, b)
        elif kind == 3:
            made = ops.sub(b, a)
        elif kind == 4:
            made = ops.mul(a, f(n))
        elif kind == 5:
            made = rng.choice([ops.silu, ops.gelu_erf, ops.tanh, ops.relu])(a)
        elif kind == 6:
            made = rng.choice([ops.norm, ops.rms_norm])(a, 1e-3)
        elif kind == 7:
            made = ops.scale(a, 0.5)
        elif kind == 8:
            made = ops.swiglu_split(a, b)
        elif kind == 9:
            made = ops.soft_max(a)
        else:  # writes into a tensor that exists, as into a KV cache
            made = ops.reshape_2d(ops.cpy(ops.reshape_2d(a, n * rows, 1), target), n, rows)
        pool.append(made)
    return [pool[-1], rng.choice(pool[2:])]


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(threaded: aggml.Backend, seed: int) -> None:
    f = Leafs(seed)
    fused = random_graph(f, random.Random(seed))
    alone = [flag_all(end) for end in random_graph(f.again(), random.Random(seed))]
    memory = threaded.alloc(list(f.values))

    def fill() -> None:
        for leaf, value in f.values.items():
            threaded.set(leaf, value)

    fill()
    wanted, _ = result(threaded, *alone)
    fill()
    got, _ = result(threaded, *fused)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    memory.close()
