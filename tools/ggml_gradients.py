"""Runs the programs of tests/gradients/ggml_programs.py with ggml and records its gradients.

    python tools/ggml_gradients.py FOLDER    # of libggml-base.so and libggml-cpu.so

Writes tests/gradients/ggml_gradients.json: for each program the loss, the gradients, and the ops of
the nodes that ggml adds to the graph. Not here: aggml, which the tests compare with that file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "gradients" / "ggml_gradients.json"
sys.path.insert(0, str(ROOT / "tests"))
from gradients.ggml_programs import PROGRAMS, Program, values  # noqa: E402 - after the path

_F32, _I32 = 0, 26  # of enum ggml_type


class _Params(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """ggml's functions, with pointers as results where they have them."""

    def __init__(self, folder: Path) -> None:
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)

    def call(self, name: str, *args: Any, result: Any = ctypes.c_void_p) -> Any:  # noqa: ANN401 - C
        """Call a function; integers are passed as 64 bits, floats as f32."""
        library = self.cpu if "compute" in name or "backend_cpu" in name else self.base
        function = getattr(library, "ggml_" + name)
        function.restype = result
        function.argtypes = [
            ctypes.c_float
            if isinstance(a, float)
            else (ctypes.c_void_p if a is None else ctypes.c_int64)
            if not isinstance(a, ctypes._Pointer | ctypes.Structure | ctypes.Array | bytes)
            else type(a)
            if not isinstance(a, bytes)
            else ctypes.c_char_p
            for a in args
        ]
        return function(*args)


def record(ggml: Ggml, program: Program) -> dict[str, Any]:
    """The loss and the gradients of one program."""
    context = ggml.call("init", _Params(64 << 20, None, False))
    tensors: dict[str, int] = {}
    given = values(program)
    for name, ne in program.leafs.items():
        extents = (ctypes.c_int64 * 4)(*ne, *[1] * (4 - len(ne)))
        dtype = _I32 if name.startswith("i_") else _F32
        tensor = tensors[name] = ggml.call("new_tensor", context, dtype, len(ne), extents)
        data = ggml.call("get_data", tensor)
        ctypes.memmove(data, given[name].ctypes.data, given[name].nbytes)
        if name.isupper() or name[0].isupper():
            ggml.call("set_param", tensor, result=None)
    for name, op, operands, args in program.calls:
        tensors[name] = ggml.call(op, context, *[tensors[o] for o in operands], *args)
    loss = tensors[program.calls[-1][0]]
    ggml.call("set_loss", loss, result=None)
    graph = ggml.call("new_graph_custom", context, 512, 1)
    ggml.call("build_forward_expand", graph, loss, result=None)
    n = ggml.call("graph_n_nodes", graph, result=ctypes.c_int)
    ggml.call("build_backward_expand", context, graph, None, result=None)
    ggml.call("graph_reset", graph, result=None)
    ggml.call("graph_compute_with_ctx", context, graph, 1, result=ctypes.c_int)
    count = ggml.call("graph_n_nodes", graph, result=ctypes.c_int)
    nodes = [ggml.call("graph_node", graph, i) for i in range(n, count)]
    added = [ggml.call("op_desc", node, result=ctypes.c_char_p).decode().lower() for node in nodes]
    params = [name for name in program.leafs if name[0].isupper()]
    gradients = {}
    for name in params:
        gradient = ggml.call("graph_get_grad", graph, tensors[name])
        assert ggml.call("is_contiguous", gradient, result=ctypes.c_bool), name
        array = _floats(ggml, gradient)
        assert array.size == given[name].size
        gradients[name] = [float(f"{x:.7g}") for x in array]
    result = {"loss": float(_floats(ggml, loss)[0]), "added": added, "gradients": gradients}
    ggml.call("free", context, result=None)
    return result


def _floats(ggml: Ggml, tensor: int) -> np.ndarray[Any, Any]:
    n = ggml.call("nelements", tensor, result=ctypes.c_int64)
    data = ggml.call("get_data", tensor)
    return np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), (n,)).copy()


def main() -> None:
    """Record all programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    ggml = Ggml(parser.parse_args().folder)
    found = {name: record(ggml, program) for name, program in PROGRAMS.items()}
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} programs in {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
