"""The part "ops" in ggml: the cases of op_cases.py as graphs of libggml, in a process of its own.

Here: an object whose methods are ggml's builders, called with plain Python values. Not here:
aggml's side (ops.py), the library (ggml.py).
"""

from __future__ import annotations

import ctypes
import time
from ctypes import c_float, c_int, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import DType
from benchmarks.ggml import F32, GGML, context_of
from benchmarks.op_cases import data
from benchmarks.op_rows import all_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.op_cases import OpCase

SAMPLE: Final = 4096  # so many results, evenly spread, are compared


class Builders:
    """``builders.add(x, y)`` is ``ggml_add(context, x, y)``; a tensor is its address."""

    def __init__(self, g: GGML, context: int) -> None:
        self._g, self._context = g, context

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = self._g.base[f"ggml_{name}"]  # a new object: those of GGML have C types set
        function.restype = c_void_p
        return lambda *given: int(function(c_void_p(self._context), *map(_as_c, given)))

    def param(self, x: int) -> int:
        """Mark x as a parameter; returns it."""
        self._g.base.ggml_set_param(c_void_p(x))
        return x

    def sinks(self, x: int, sinks: int) -> int:
        """Add sinks to an attention node; returns the node."""
        self._g.base.ggml_flash_attn_ext_add_sinks(c_void_p(x), c_void_p(sinks))
        return x


def _as_c(value: Any) -> Any:
    """A C argument. Integers are 64 bits wide: a callee that takes fewer ignores the others."""
    if isinstance(value, float):
        return c_float(value)
    if isinstance(value, str):
        return c_int64(DType.parse(value).value)
    if isinstance(value, list):
        return (c_int * len(value))(*value)
    return c_void_p(value) if value is None else c_int64(value)


class Graph:
    """A case, ready to run.

    Args:
        threads: how many.
    """

    def __init__(self, g: GGML, case: OpCase, threads: int) -> None:
        self._g = g
        self._backend = g.cpu_init()
        g.set_n_threads(self._backend, threads)
        self._context = context_of(g, 4 << 20)
        builders = Builders(g, self._context)
        inputs = []
        for operand in case.inputs:
            ne = (*operand.ne, 1, 1, 1)[:4]
            inputs.append(g.tensor_4d(self._context, DType.parse(operand.dtype).value, *ne))
        self._ends = [case.build(builders, *inputs) for _ in range(case.copies)]
        self._buffer = g.alloc(self._context, self._backend)
        for number, (operand, tensor) in enumerate(zip(case.inputs, inputs, strict=True)):
            made = data(operand, number)
            assert made.nbytes == g.nbytes(tensor), (operand, made.nbytes, g.nbytes(tensor))
            g.set(tensor, made.ctypes.data, 0, made.nbytes)
        self._graph = g.new_graph(self._context, 1024, False)
        for end in self._ends:
            g.expand(self._graph, end)

    def run(self, times: int) -> list[float]:
        """The seconds of each run."""
        found = []
        for _ in range(times):
            start = time.perf_counter()
            self._g.backend_compute(self._backend, self._graph)
            found.append(time.perf_counter() - start)
        return found

    def values(self) -> list[float]:
        """Some results, evenly spread, if they are f32 without gaps."""
        end = self._ends[0]
        if not self._g.base.ggml_is_contiguous(c_void_p(end)):
            return []
        if ctypes.cast(end, ctypes.POINTER(c_int))[0] != F32:
            return []
        out = np.empty(self._g.nbytes(end) // 4, np.float32)
        self._g.get(end, out.ctypes.data, 0, out.nbytes)
        found: list[float] = out[:: -(-out.size // SAMPLE)].tolist()
        return found

    def close(self) -> None:
        """Free the memory of the case."""
        self._g.buffer_free(self._buffer)
        self._g.free(self._context)
        self._g.backend_free(self._backend)


def _serve() -> None:
    from benchmarks.child import serve

    g, known = GGML(), all_cases()
    graphs: list[Graph] = []

    def close() -> None:
        while graphs:
            graphs.pop().close()

    def prepare(what: str, threads: int) -> None:
        close()
        graphs.append(Graph(g, known[what], threads))

    functions: dict[str, Callable[..., Any]] = {
        "prepare": prepare,
        "run": lambda times: graphs[0].run(times),
        "values": lambda: graphs[0].values(),
        "close": close,
    }
    serve(functions)


if __name__ == "__main__":
    _serve()
