"""``aggml bench --tune``: numbers for this processor, by a short measured search.

The numbers are searched one after the other. Each value is timed on matrix products with 1 and 8
columns, whose weights come from memory, in turns with the value built into the kernels. That value
stays unless another one is clearly faster. Not here: the numbers that can be chosen
(native/table/tunables.def), where they are kept (devices/cpu/tuning.py).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aggml
from aggml import BufferUsage, Graph, ops
from aggml.cli.shared import bar
from aggml.native import _native

if TYPE_CHECKING:
    from aggml import Backend, Tensor

__all__ = ["Found", "search"]

K: Final = 4096
ROWS: Final = 4096
BYTES: Final = 96 << 20  # of weights for each number: too many for the caches
ROUNDS: Final = 7
BETTER: Final = 1.03  # a value is chosen only if it is so many times as fast as the built-in one
AHEAD: Final = (2048, 3072, 4096, 6144, 8192, 12288)
#: For each number the element type of weights to time it with, and the values to try.
TRIED: Final = {
    "ahead_q8_0": ("q8_0", AHEAD),
    "ahead_32": ("q4_0", AHEAD),
    "ahead_q4_K": ("q4_K", AHEAD),
    "ahead_q6_K": ("q6_K", AHEAD),
    "ahead_bf16": ("bf16", AHEAD),
    "packed_chunk": ("q4_K", (50, 200)),
}


@dataclass(frozen=True)
class Found:
    """The result of the search for one number.

    Attributes:
        name: the name of the number.
        value: the value to use; 0: the one built into the kernels.
        gain: the time with the built-in value, divided by the time with ``value``.
    """

    name: str
    value: int
    gain: float


async def search(backend: Backend) -> list[Found]:
    """The best value of each number, for this processor and the threads of ``backend``."""
    before = {name: value for name, _, _, _, value in _native.tunables()}
    found = []
    try:
        with bar("tuning") as progress:
            for done, (name, (dtype, values)) in enumerate(TRIED.items()):
                found.append(await _best(backend, name, dtype, (0, *values)))
                _native.tune(name, found[-1].value)
                if progress is not None:
                    progress(done + 1, len(TRIED))
    finally:
        for name, value in before.items():
            _native.tune(name, value)
    return found


async def _best(backend: Backend, name: str, dtype: str, values: tuple[int, ...]) -> Found:
    size = aggml.new_tensor(dtype, ne=(K, ROWS)).nbytes
    weights = [aggml.new_tensor(dtype, ne=(K, ROWS)) for _ in range(max(2, BYTES // size))]
    buffer = backend.alloc(weights)
    buffer.usage = BufferUsage.WEIGHTS
    for w in weights:
        await backend.memset(w, 0)
    graphs: dict[int, list[Graph]] = {}
    for value in values:
        _native.tune(name, value)  # before graphs are compiled: that divides their rows
        graphs[value] = [_products(backend, weights, columns) for columns in (1, 8)]
        for graph in graphs[value]:
            await backend.graph_compute(graph)
    first = await _medians(backend, name, graphs, ROUNDS)
    best = min(first, key=lambda value: first[value])
    if first[0] < BETTER * first[best]:
        return Found(name, 0, 1.0)
    # The best of many values may have been lucky, so it must win a second time.
    again = await _medians(backend, name, {0: graphs[0], best: graphs[best]}, 2 * ROUNDS)
    gain = min(first[0] / first[best], again[0] / again[best])
    return Found(name, best, gain) if gain >= BETTER else Found(name, 0, 1.0)


async def _medians(
    backend: Backend, name: str, graphs: dict[int, list[Graph]], rounds: int
) -> dict[int, float]:
    """The median seconds of each value; the values are timed in turns."""
    taken: dict[int, list[float]] = {value: [] for value in graphs}
    for _ in range(rounds):
        for value, some in graphs.items():
            _native.tune(name, value)
            begin = time.perf_counter()
            for graph in some:
                await backend.graph_compute(graph)
            taken[value].append(time.perf_counter() - begin)
    return {value: statistics.median(times) for value, times in taken.items()}


def _products(backend: Backend, weights: list[Tensor], columns: int) -> Graph:
    x = aggml.new_tensor("f32", ne=(K, columns))
    backend.alloc([x])
    graph = Graph(*(ops.mul_mat(w, x) for w in weights))
    backend.alloc_graph(graph)
    return graph
