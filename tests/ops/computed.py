"""Results of graphs that a test builds itself, for what no recorded case has.

Here: computing with given values, and the check that the number of threads does not matter. Not
here: recorded cases (recorded.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aggml import Graph, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    import aggml

__all__ = ["compute", "gradient", "same_for_any_threads"]

_TIMEOUT = 15.0


def compute(
    backend: aggml.Backend, result: Tensor, data: Mapping[Tensor, NDArray[Any]]
) -> NDArray[Any]:
    """The elements of ``result`` for these values of the leafs."""
    graph = Graph(result)
    memory = backend.alloc_graph(graph)
    future = backend.run(graph, data, result)
    future.wait(_TIMEOUT)
    assert memory is not None  # alive until here
    value: NDArray[Any] = future.result()
    return value


def same_for_any_threads(
    backends: Sequence[aggml.Backend],
    build: Callable[[], tuple[Tensor, Mapping[Tensor, NDArray[Any]]]],
) -> NDArray[Any]:
    """What all these backends give, bit for bit."""
    results = [compute(backend, *build()) for backend in backends]
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return results[0]


def gradient(
    f: Callable[[NDArray[np.float64]], float], x: NDArray[np.float64], step: float = 1e-5
) -> NDArray[np.float64]:
    """Central differences of ``f`` in each element of ``x``, in double."""
    found = np.empty_like(x)
    for i in np.ndindex(x.shape):
        moved = x.copy()
        moved[i] += step
        above = f(moved)
        moved[i] -= 2 * step
        found[i] = (above - f(moved)) / (2 * step)
    return found
