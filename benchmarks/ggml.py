"""ggml itself, called directly: the libggml that llama-cpp-python carries.

Here: what building, allocating and running tiny nodes costs there. Not here: what it is compared
with (executor.py).
"""

from __future__ import annotations

import ctypes
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import MissingPeerError

F32: Final = 0


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def _libraries() -> list[Any]:
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise MissingPeerError("llama-cpp-python is not installed (pip install '.[bench]')")
    folder = Path(spec.origin).parent / "lib"
    found = []
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        paths = sorted(folder.glob(f"libggml{name.removeprefix('ggml')}.*"))
        if not paths:
            raise MissingPeerError(f"{folder} has no lib{name}")
        found.append(ctypes.CDLL(str(paths[0]), mode=ctypes.RTLD_GLOBAL))
    return found


class GGML:
    """The functions that are timed, with their C types."""

    def __init__(self) -> None:
        base, cpu, _ = _libraries()
        self.init = _typed(base.ggml_init, c_void_p, _InitParams)
        self.free = _typed(base.ggml_free, None, c_void_p)
        self.tensor_1d = _typed(base.ggml_new_tensor_1d, c_void_p, c_void_p, c_int, c_int64)
        self.set_input = _typed(base.ggml_set_input, None, c_void_p)
        self.scale = _typed(base.ggml_scale, c_void_p, c_void_p, c_void_p, c_float)
        self.new_graph = _typed(base.ggml_new_graph_custom, c_void_p, c_void_p, c_size_t, c_bool)
        self.expand = _typed(base.ggml_build_forward_expand, None, c_void_p, c_void_p)
        self.gallocr_new = _typed(base.ggml_gallocr_new, c_void_p, c_void_p)
        self.gallocr_free = _typed(base.ggml_gallocr_free, None, c_void_p)
        self.alloc_graph = _typed(base.ggml_gallocr_alloc_graph, c_bool, c_void_p, c_void_p)
        self.backend_compute = _typed(base.ggml_backend_graph_compute, c_int, c_void_p, c_void_p)
        self.backend_free = _typed(base.ggml_backend_free, None, c_void_p)
        self.default_type = _typed(base.ggml_backend_get_default_buffer_type, c_void_p, c_void_p)
        self.cpu_init = _typed(cpu.ggml_backend_cpu_init, c_void_p)
        self.set_n_threads = _typed(cpu.ggml_backend_cpu_set_n_threads, None, c_void_p, c_int)
        self.version = _typed(base.ggml_version, c_char_p)


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments
    return function


def tiny_nodes(nodes: int, rounds: int) -> dict[str, float]:
    """Seconds per node of a chain of scales of 4 elements, one thread.

    Returns:
        "build" (tensors and graph), "allocate" (plan and place), "run" (the median round).

    Raises:
        MissingPeerError: there is no libggml.
    """
    g = GGML()
    backend = g.cpu_init()
    g.set_n_threads(backend, 1)
    context = g.init(_InitParams(nodes * 1024 + (1 << 20), None, True))
    x = g.tensor_1d(context, F32, 4)
    g.set_input(x)
    start = time.perf_counter()
    y = x
    for _ in range(nodes):
        y = g.scale(context, y, 1.0)
    graph = g.new_graph(context, nodes + 8, False)
    g.expand(graph, y)
    built = time.perf_counter() - start
    allocator = g.gallocr_new(g.default_type(backend))
    start = time.perf_counter()
    placed = g.alloc_graph(allocator, graph)
    allocated = time.perf_counter() - start
    if not placed:
        raise MissingPeerError("ggml could not allocate")
    spans = []
    for _ in range(rounds):
        start = time.perf_counter()
        g.backend_compute(backend, graph)
        spans.append(time.perf_counter() - start)
    g.gallocr_free(allocator)
    g.free(context)
    g.backend_free(backend)
    return {
        "build": built / nodes,
        "allocate": allocated / nodes,
        "run": sorted(spans)[len(spans) // 2] / nodes,
    }
