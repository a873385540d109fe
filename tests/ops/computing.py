"""Results of graphs that a test builds itself, for behaviour that no recorded case covers.

Here: computing with given values, on any number of threads; gradients by differences. Not here:
recorded cases (recorded.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    import aggml
    from aggml import Tensor

__all__ = ["by_differences", "compute", "floats", "run", "same_for_any_threads"]

_TIMEOUT = 15.0


def compute(
    backend: aggml.Backend, node: Tensor, values: Mapping[Tensor, NDArray[Any]]
) -> NDArray[Any]:
    """Compute ``node``: (ne3, ne2, ne1, ne0); if quantized, (ne3, ne2, ne1, bytes of a row)."""
    memory = backend.alloc(list(values))
    for leaf, value in values.items():
        backend.set(leaf, value)
    graph = Graph(node)
    placed = backend.alloc_graph(graph)
    computed = backend.graph_compute(graph)
    result = backend.get(node)
    result.wait(_TIMEOUT)
    computed.result()
    last = node.dtype.row_size(node.ne[0]) if node.dtype.is_quantized else node.ne[0]
    array = result.result().reshape(*node.ne[:0:-1], last)
    placed.close()  # so that the tensors can be placed again
    memory.close()
    return array


def run(
    backend: aggml.Backend, result: Tensor, data: Mapping[Tensor, NDArray[Any]]
) -> NDArray[Any]:
    """Compute ``result`` with `Backend.run`, which gives it in the rank that was built."""
    graph = Graph(result)
    memory = backend.alloc_graph(graph)
    future = backend.run(graph, data, result)
    future.wait(_TIMEOUT)
    assert memory is not None  # keeps the memory alive until here
    value: NDArray[Any] = future.result()
    return value


def same_for_any_threads(
    backends: Sequence[aggml.Backend],
    build: Callable[[], tuple[Tensor, Mapping[Tensor, NDArray[Any]]]],
) -> NDArray[Any]:
    """Compute on each backend and assert that all results are equal bit for bit."""
    results = [run(backend, *build()) for backend in backends]
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return results[0]


def floats(*shape: int, seed: int) -> NDArray[np.float32]:
    """Normally distributed numbers; the same numbers for the same seed, in an array of its own."""
    return _floats(shape, seed).copy()


@functools.lru_cache(maxsize=32)  # the cases of a test, such as types, often have the same numbers
def _floats(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_differences(
    function: Callable[[NDArray[np.float64]], float], x: NDArray[Any], step: float = 1e-2
) -> NDArray[np.float64]:
    """The gradient of a scalar function at x, by central differences."""
    x = x.astype(np.float64)
    gradient = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        kept = x[i]
        x[i] = kept + step
        above = function(x)
        x[i] = kept - step
        gradient[i] = (above - function(x)) / (2 * step)
        x[i] = kept
    return gradient
