"""ggml itself, called directly: libggml of llama-cpp-python, or of the folder GGML_LIB_FOLDER.

Here: its functions with their types; the cost of tiny nodes in ggml; the kernels of cases.py,
served to another process. Not here: the comparison (executor.py, kernels.py).
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import cases
from benchmarks.peers import MissingPeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F32: Final = 0
F16: Final = 1
I32: Final = 26
NEOX: Final = 2
WEIGHTS: Final = 1  # ggml_backend_buffer_usage


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def _folder() -> Path:
    """Where libggml is: what GGML_LIB_FOLDER names, else that of llama-cpp-python."""
    if named := os.environ.get("GGML_LIB_FOLDER"):
        return Path(named)
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise MissingPeerError("llama-cpp-python is not installed (pip install '.[bench]')")
    return Path(spec.origin).parent / "lib"


def _libraries() -> list[Any]:
    folder, found = _folder(), []
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        stem = f"libggml{name.removeprefix('ggml')}"
        # A wheel has copies in place of links; other libraries link to the numbered one.
        paths = sorted(folder.glob(f"{stem}.so.[0-9]")) or sorted(folder.glob(f"{stem}.*"))
        if not paths:
            raise MissingPeerError(f"{folder} has no lib{name}")
        found.append(ctypes.CDLL(str(paths[0]), mode=ctypes.RTLD_GLOBAL))
    return found


class GGML:
    """The functions of libggml that the benchmarks call, with their C types."""

    def __init__(self) -> None:
        base, cpu, _ = _libraries()
        self.base = base
        p, n, f = c_void_p, c_int64, c_float
        self.init = _typed(base.ggml_init, p, _InitParams)
        self.free = _typed(base.ggml_free, None, p)
        self.tensor_1d = _typed(base.ggml_new_tensor_1d, p, p, c_int, n)
        self.tensor_4d = _typed(base.ggml_new_tensor_4d, p, p, c_int, n, n, n, n)
        self.nbytes = _typed(base.ggml_nbytes, c_size_t, p)
        self.set_input = _typed(base.ggml_set_input, None, p)
        self.scale = _typed(base.ggml_scale, p, p, p, f)
        self.mul_mat = _typed(base.ggml_mul_mat, p, p, p, p)
        self.flash_attn = _typed(base.ggml_flash_attn_ext, p, p, p, p, p, p, f, f, f)
        self.permute = _typed(base.ggml_permute, p, p, p, c_int, c_int, c_int, c_int)
        self.soft_max = _typed(base.ggml_soft_max_ext, p, p, p, p, f, f)
        self.rms_norm = _typed(base.ggml_rms_norm, p, p, p, f)
        self.rope = _typed(base.ggml_rope_ext, p, p, p, p, p, c_int, c_int, c_int, f, f, f, f, f, f)
        self.new_graph = _typed(base.ggml_new_graph_custom, p, p, c_size_t, c_bool)
        self.expand = _typed(base.ggml_build_forward_expand, None, p, p)
        self.gallocr_new = _typed(base.ggml_gallocr_new, p, p)
        self.gallocr_free = _typed(base.ggml_gallocr_free, None, p)
        self.alloc_graph = _typed(base.ggml_gallocr_alloc_graph, c_bool, p, p)
        self.alloc_in = _typed(base.ggml_backend_alloc_ctx_tensors_from_buft, p, p, p)
        self.alloc = _typed(base.ggml_backend_alloc_ctx_tensors, p, p, p)
        self.buffer_free = _typed(base.ggml_backend_buffer_free, None, p)
        self.set_usage = _typed(base.ggml_backend_buffer_set_usage, None, p, c_int)
        self.buft_name = _typed(base.ggml_backend_buft_name, c_char_p, p)
        self.set = _typed(base.ggml_backend_tensor_set, None, p, p, c_size_t, c_size_t)
        self.get = _typed(base.ggml_backend_tensor_get, None, p, p, c_size_t, c_size_t)
        self.supports = _typed(base.ggml_backend_supports_op, c_bool, p, p)
        self.backend_compute = _typed(base.ggml_backend_graph_compute, c_int, p, p)
        self.backend_free = _typed(base.ggml_backend_free, None, p)
        self.default_type = _typed(base.ggml_backend_get_default_buffer_type, p, p)
        self.device = _typed(base.ggml_backend_get_device, p, p)
        self.registry_of = _typed(base.ggml_backend_dev_backend_reg, p, p)
        self.address = _typed(base.ggml_backend_reg_get_proc_address, p, p, c_char_p)
        self.cpu_init = _typed(cpu.ggml_backend_cpu_init, p)
        self.set_n_threads = _typed(cpu.ggml_backend_cpu_set_n_threads, None, p, c_int)
        self.version = _typed(base.ggml_version, c_char_p)

    def extra_buffer_types(self, backend: int) -> list[int]:
        """Buffer types that pack weights (repack, AMX), in the order of llama.cpp, best first."""
        device = self.device(backend)
        found = self.address(self.registry_of(device), b"ggml_backend_dev_get_extra_bufts")
        if not found:
            return []
        listed = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(found)(device)
        types: list[int] = []
        while (one := listed[len(types)]) is not None:
            types.append(one)
        return types


def context_of(g: GGML, size: int) -> int:
    """A context of so many bytes for tensors and graphs, without their data."""
    context: int = g.init(_InitParams(size, None, True))
    return context


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments
    return function


def tiny_nodes(nodes: int, rounds: int) -> dict[str, float]:
    """Seconds per node of a chain of scale nodes of 4 elements, on one thread.

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


# -- kernels


class Kernel:
    """One case, ready to run.

    Args:
        case: the case.
        type_id: ggml's number of the case's dtype.
        rows: a .npy file with the weights' base rows as uint8, or "".
        threads: how many.
        without: names of buffer types that weights may not use.
    """

    def __init__(
        self,
        g: GGML,
        case: cases.Case,
        type_id: int,
        rows: str,
        threads: int,
        without: Sequence[str] = (),
    ) -> None:
        self.g = g
        self.backend = g.cpu_init()
        g.set_n_threads(self.backend, threads)
        self._weights = g.init(_InitParams(1 << 20, None, True))
        self._rest = g.init(_InitParams(1 << 20, None, True))
        self._buffers: list[int] = []
        self._later: list[tuple[int, np.ndarray[Any, Any]]] = []
        self.packed = ""
        self._without = without
        ends = getattr(self, "_" + case["op"])(case, type_id, rows)
        self.result = ends[0]
        self._buffers.append(g.alloc(self._rest, self.backend))
        for tensor, data in self._later:
            self._set(tensor, data)
        self.graph = g.new_graph(self._rest, 64, False)
        for end in ends:
            g.expand(self.graph, end)

    def run(self) -> float:
        """Seconds."""
        start = time.perf_counter()
        self.g.backend_compute(self.backend, self.graph)
        return time.perf_counter() - start

    def values(self) -> list[float]:
        """The first results."""
        out = np.empty(cases.SAMPLE, np.float32)
        self.g.get(self.result, out.ctypes.data, 0, out.nbytes)
        return out.tolist()

    def close(self) -> None:
        for buffer in self._buffers:
            self.g.buffer_free(buffer)
        self.g.free(self._rest)
        self.g.free(self._weights)
        self.g.backend_free(self.backend)

    def _set(self, tensor: int, data: np.ndarray[Any, Any]) -> None:
        data = np.ascontiguousarray(data)
        assert data.nbytes == self.g.nbytes(tensor)
        self.g.set(tensor, data.ctypes.data, 0, data.nbytes)

    def _input(self, type_id: int, data: np.ndarray[Any, Any], *ne: int) -> int:
        ne = (*ne, 1, 1, 1)[:4] if ne else (*reversed(data.shape), 1, 1, 1)[:4]
        tensor: int = self.g.tensor_4d(self._rest, type_id, *ne)
        self._later.append((tensor, data))
        return tensor

    def _mul_mat(self, case: cases.Case, type_id: int, rows: str) -> list[int]:
        g, m, k = self.g, case["m"], case["k"]
        x = self._input(F32, cases.activations(case))
        weights = [g.tensor_4d(self._weights, type_id, k, m, 1, 1) for _ in range(case["copies"])]
        ends = [g.mul_mat(self._rest, w, x) for w in weights]
        for buffer_type in g.extra_buffer_types(self.backend):
            name = g.buft_name(buffer_type).decode()
            if name in self._without:
                continue
            buffer = g.alloc_in(self._weights, buffer_type)
            if buffer and g.supports(self.backend, ends[0]):
                self.packed = name
                break
            # A tensor cannot leave its buffer, so start again with the next buffer type.
            if buffer:
                g.buffer_free(buffer)
            g.free(self._weights)
            self._weights = g.init(_InitParams(1 << 20, None, True))
            weights = [g.tensor_4d(self._weights, type_id, k, m, 1, 1) for _ in weights]
            ends = [g.mul_mat(self._rest, w, x) for w in weights]
        else:
            buffer = g.alloc(self._weights, self.backend)
        self._buffers.append(buffer)
        g.set_usage(buffer, WEIGHTS)
        data = cases.repeated(np.load(rows), m)
        for w in weights:
            self._set(w, data)
        return ends

    def _attention(self, case: cases.Case, type_id: int, rows: str) -> list[int]:
        q, _, _ = cases.heads(case)
        stored = np.load(rows)  # keys, then values
        ne = (case["head"], case["tokens"], case["heads"])
        k, v = (self._input(type_id, half, *ne) for half in np.split(stored, 2))
        mask = self._input(F16, cases.mask(case)) if case["causal"] else None
        q_ = self._input(F32, q)
        return [self.g.flash_attn(self._rest, q_, k, v, mask, cases.scale(case), 0.0, 0.0)]

    def _context(self, case: cases.Case, type_id: int, rows: str) -> list[int]:
        g = self.g
        q = self._input(F32, cases.queries(case))
        ne = (case["head"], case["kv_heads"], case["keys"], case["sequences"])
        k, v = (
            g.permute(self._rest, self._input(type_id, cases.filled(half, case), *ne), 0, 2, 1, 3)
            for half in np.split(np.load(rows), 2)
        )
        return [g.flash_attn(self._rest, q, k, v, None, cases.scale(case), 0.0, 0.0)]

    def _soft_max(self, case: cases.Case, *_: object) -> list[int]:
        x = self._input(F32, cases.values(case))
        return [self.g.soft_max(self._rest, x, None, 0.125, 0.0)]

    def _rms_norm(self, case: cases.Case, *_: object) -> list[int]:
        x = self._input(F32, cases.values(case))
        return [self.g.rms_norm(self._rest, x, cases.EPS)]

    def _rope(self, case: cases.Case, *_: object) -> list[int]:
        x = self._input(F32, cases.values(case))
        at = self._input(I32, np.arange(case["ne"][2], dtype=np.int32))
        dims = case["ne"][0]
        rest = (0, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
        return [self.g.rope(self._rest, x, at, None, dims, NEOX, *rest)]


def _serve() -> None:
    from benchmarks.child import serve

    g = GGML()
    kernels: list[Kernel] = []

    def prepare(
        case: cases.Case, type_id: int, rows: str, threads: int, without: Sequence[str]
    ) -> str:
        close()
        kernels.append(Kernel(g, case, type_id, rows, threads, without))
        return kernels[0].packed

    def close() -> None:
        while kernels:
            kernels.pop().close()

    functions: dict[str, Callable[..., Any]] = {
        "prepare": prepare,
        "run": lambda: kernels[0].run(),
        "values": lambda: kernels[0].values(),
        "close": close,
    }
    serve(functions)


if __name__ == "__main__":
    _serve()
