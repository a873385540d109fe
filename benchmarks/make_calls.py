"""Makes tests/corpus/ggml_0_25.*: calls of the functions that ggml 0.25 added or changed.

Run by hand (``python -m benchmarks.make_calls``) where llama-cpp-python is installed; its libraries
compute each call with reference kernels, on one thread. Not here: what reads the cases
(tests/corpus_loader.py), the calls of older functions, which were recorded once.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import DType, ops, quantize

if TYPE_CHECKING:
    from collections.abc import Mapping

CORPUS: Final = Path(__file__).resolve().parent.parent / "tests" / "corpus"
NAME: Final = "ggml_0_25"
CLOSE, PRODUCT = 1e-7, 5e-4  # the bounds of the other files, for functions and for products
MEMORY: Final = 64 << 20

T, F, I = ctypes.c_void_p, ctypes.c_float, ctypes.c_int32  # noqa: E741 - a tensor, floats, integers
#: Operands and arguments of each function, by their names in C.
FUNCTIONS: Final[dict[str, dict[str, Any]]] = {
    "clamp": {"a": T, "min": F, "max": F},
    "clamp_inplace": {"a": T, "min": F, "max": F},
    "swiglu_oai": {"a": T, "b": T, "alpha": F, "limit": F},
    "swiglu_clamp": {"a": T, "b": T, "limit": F},
    "dsv4_hc_pre": {"x": T, "weights": T},
    "dsv4_hc_pre_gated": {"x": T, "gate": T, "scale": F},
    "dsv4_hc_post": {"x": T, "residual": T, "post": T, "comb": T},
    "mul_mat": {"a": T, "b": T},
    "mul_mat_id": {"as": T, "b": T, "ids": T},
    "flash_attn_ext": {
        "q": T,
        "k": T,
        "v": T,
        "mask": T,
        "scale": F,
        "max_bias": F,
        "logit_softcap": F,
    },
}
#: Functions that change a node: what they take after it.
CHANGES: Final[dict[str, tuple[Any, ...]]] = {
    "prec_set_acc": (I,),
    "prec_set_src": (I, I),
    "flash_attn_ext_set_n_kv_max": (I,),
    "flash_attn_ext_set_prec": (I,),
    "flash_attn_ext_add_sinks": (T,),
}


class _Params(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", T), ("no_alloc", ctypes.c_bool))


class Library:
    """The functions of the libraries of ggml that llama-cpp-python has."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("llama_cpp")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent / "lib"
        flags = ctypes.RTLD_GLOBAL
        self._files = [
            ctypes.CDLL(str(folder / f"lib{name}.so"), flags) for name in ("ggml-base", "ggml-cpu")
        ]

    def __call__(self, name: str, returns: Any, *given: tuple[Any, Any]) -> Any:
        """Call ``name`` with pairs of types and values."""
        function = next(f for f in self._files if hasattr(f, name))[name]
        function.restype, function.argtypes = returns, [kind for kind, _ in given]
        return function(*[value for _, value in given])


class Recorder:
    """Collects cases and their arrays."""

    def __init__(self, library: Library) -> None:
        self.c = library
        self.backend = library("ggml_backend_cpu_init", T)
        library("ggml_backend_cpu_set_use_ref", None, (T, self.backend), (ctypes.c_bool, True))
        library("ggml_backend_cpu_set_n_threads", None, (T, self.backend), (ctypes.c_int, 1))
        self.rng = np.random.default_rng(41)
        self.cases: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def normal(self, kind: str, *ne: int, scale: float = 1.0) -> tuple[str, np.ndarray[Any, Any]]:
        """An operand of random numbers."""
        x = (scale * self.rng.normal(size=ne[::-1])).astype(np.float32)
        return kind, quantize(x, kind) if DType.parse(kind).is_quantized else x.astype(
            kind_of(kind)
        )

    def call(
        self,
        op: str,
        operands: dict[str, tuple[str, np.ndarray[Any, Any]]],
        /,
        *,
        part: Mapping[str, tuple[tuple[int, ...], int]] | None = None,
        modify: dict[str, Any] | None = None,
        bound: float = CLOSE,
        **args: Any,
    ) -> None:
        """Run one call. ``part``: operands that are views, their extents and offsets in bytes."""
        c, names = self.c, [case["op"] for case in self.cases]
        case_id = f"{op}.{names.count(op) + 1:03}"
        context = c("ggml_init", T, (_Params, _Params(MEMORY, None, False)))
        inputs, tensors = [], {}
        for name, (kind, x) in operands.items():
            dtype = DType.parse(kind)
            rows = x.shape[-1] // dtype.type_size * dtype.blck_size
            ne = [*((rows if dtype.is_quantized else x.shape[-1]), *x.shape[-2::-1]), 1, 1, 1][:4]
            extents = [(ctypes.c_int64, n) for n in ne]
            leaf = c("ggml_new_tensor_4d", T, (T, context), (ctypes.c_int, dtype.value), *extents)
            ctypes.memmove(c("ggml_get_data", T, (T, leaf)), x.tobytes(), x.nbytes)
            bits = x.view(np.uint16) if kind == "bf16" else x
            self.arrays[f"{case_id}/{name}"] = bits.reshape((*[1] * (4 - x.ndim), *x.shape))
            raw: dict[str, Any] = {"name": name, "type": kind, "ne": ne}
            tensors[name] = leaf
            if part is not None and name in part:
                (seen, offset), step = part[name], dtype.type_size
                nb = [step, step * ne[0], step * ne[0] * ne[1], step * ne[0] * ne[1] * ne[2]]
                sizes = [(ctypes.c_int64, n) for n in seen] + [(ctypes.c_size_t, n) for n in nb[1:]]
                at = (ctypes.c_size_t, offset)
                tensors[name] = c("ggml_view_4d", T, (T, context), (T, leaf), *sizes, at)
                via = {"op": "view", "ne": list(seen), "nb": nb, "offset": offset}
                raw |= {"ne": list(seen), "nb": nb, "storage": name, "storage_ne": ne, "via": [via]}
            inputs.append(raw)
        given = [
            (kind, tensors.get(name) if kind is T else args[name])
            for name, kind in FUNCTIONS[op].items()
        ]
        out = c(f"ggml_{op}", T, (T, context), *given)
        for name, value in (modify or {}).items():
            values = [number(v, tensors) for v in (value if isinstance(value, list) else [value])]
            c(f"ggml_{name}", None, (T, out), *zip(CHANGES[name], values, strict=True))
        graph = c("ggml_new_graph", T, (T, context))
        c("ggml_build_forward_expand", None, (T, graph), (T, out))
        status = c("ggml_backend_graph_compute", ctypes.c_int, (T, self.backend), (T, graph))
        assert status == 0, case_id
        self._finish(case_id, op, inputs, tensors, out, args, modify or {}, bound)
        c("ggml_free", None, (T, context))

    def _finish(
        self,
        case_id: str,
        op: str,
        inputs: list[dict[str, Any]],
        tensors: dict[str, Any],
        out: Any,
        args: dict[str, Any],
        modify: dict[str, Any],
        bound: float,
    ) -> None:
        """Read the result, through a builder of this package for its type and extents."""
        first = next(iter(inputs))
        in_place = op.endswith("_inplace")
        node = op.removesuffix("_inplace").removesuffix("_gated")
        kind = first["type"] if node in {"clamp", "swiglu_clamp"} else "f32"
        ne = extents_of(op, inputs)
        size = self.c("ggml_nbytes", ctypes.c_size_t, (T, out))
        data = ctypes.string_at(self.c("ggml_get_data", T, (T, out)), size)
        self.arrays[f"{case_id}/out"] = np.frombuffer(data, kind_of(kind)).reshape(ne[::-1])
        output: dict[str, Any] = {"type": kind, "ne": ne}
        if in_place:
            output["view_of"] = first["name"]
        case: dict[str, Any] = {
            "id": case_id,
            "op": op,
            "node": node,
            "inputs": inputs,
            "args": args,
        }
        if modify:
            case["modify"] = modify
        case |= {"output": output, "nmse_max": bound, "inplace": in_place}
        self.cases.append(case)

    def write(self) -> None:
        """Write both files."""
        lines = ",\n".join(json.dumps(case) for case in self.cases)
        (CORPUS / f"{NAME}.json").write_text(f"[\n{lines}\n]\n")
        arrays: dict[str, Any] = dict(self.arrays)
        np.savez_compressed(CORPUS / f"{NAME}.npz", **arrays)


def kind_of(kind: str) -> Any:
    """The numpy type of a plain type."""
    return DType.parse(kind).numpy


def number(value: Any, tensors: dict[str, Any]) -> Any:
    """An argument of a change: a tensor's name, a precision's name or a number."""
    if not isinstance(value, str):
        return value
    return tensors[value] if value in tensors else int(ops.Prec[value.upper()])


def extents_of(op: str, inputs: list[dict[str, Any]]) -> list[int]:
    """The extents of a result, by the comments of ggml.h."""
    ne: list[list[int]] = [given["ne"] for given in inputs]
    if op == "flash_attn_ext":
        return [ne[2][0], ne[0][2], ne[0][1], ne[0][3]]
    if op == "mul_mat":
        return [ne[0][1], *ne[1][1:]]
    if op == "mul_mat_id":
        return [ne[0][1], *ne[2][:2], 1]
    if op.startswith("swiglu") and len(ne) == 1:
        return [ne[0][0] // 2, *ne[0][1:]]
    if op.startswith("dsv4_hc_pre"):
        return [ne[0][0], ne[0][2], 1, 1]
    return ne[1] if op == "dsv4_hc_post" else ne[0]


def _functions(r: Recorder) -> None:
    special = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 90.0, -90.0, 2.0, -2.0, 1e-3], np.float32
    )
    for kind in ("f32", "f16"):
        for low, high in ((-0.5, 0.5), (0.25, -0.25)):
            r.call("clamp", {"a": r.normal(kind, 37, 5, 2)}, min=low, max=high)
            r.call("clamp_inplace", {"a": r.normal(kind, 37, 5, 2)}, min=low, max=high)
        size = DType.parse(kind).type_size
        rows = {"a": ((30, 4, 3, 1), 3 * size)}
        r.call("clamp", {"a": r.normal(kind, 37, 4, 3)}, part=rows, min=-1.0, max=1.0)
        r.call("clamp", {"a": (kind, special.astype(kind_of(kind)))}, min=-1.0, max=1.5)
        for limit in (7.0, 1.5, 0.0):
            two = {name: r.normal(kind, 67, 5, 2, 2, scale=4.0) for name in "ab"}
            r.call("swiglu_clamp", two, limit=limit)
            r.call("swiglu_clamp", {"a": r.normal(kind, 66, 5, 2, scale=4.0)}, limit=limit)
        two = {name: r.normal(kind, 80, 9, scale=4.0) for name in "ab"}
        parts = {"a": ((64, 9, 1, 1), 5 * size), "b": ((64, 9, 1, 1), 0)}
        r.call("swiglu_clamp", two, part=parts, limit=3.0)
        x = np.repeat(special, special.size).astype(kind_of(kind))
        y = np.tile(special, special.size).astype(kind_of(kind))
        r.call("swiglu_clamp", {"a": (kind, x), "b": (kind, y)}, limit=3.0)
        if kind == "f32":
            r.call("swiglu_oai", {"a": (kind, x), "b": (kind, y)}, alpha=1.702, limit=3.0)
    r.call("swiglu_oai", {"a": r.normal("f32", 66, 5, 2, scale=4.0)}, alpha=1.702, limit=3.0)


def _streams(r: Recorder) -> None:
    for d, n, tokens in ((31, 4, 7), (1, 1, 1), (600, 2, 3), (1030, 5, 2)):
        streams = r.normal("f32", d, n, tokens)
        r.call("dsv4_hc_pre", {"x": streams, "weights": r.normal("f32", n, tokens)})
        for scale in (1.0, -0.5):
            gate = r.normal("f32", d, n, tokens, scale=3.0)
            r.call("dsv4_hc_pre_gated", {"x": streams, "gate": gate}, scale=scale)
        operands = {"x": r.normal("f32", d, tokens), "residual": streams}
        operands["post"] = r.normal("f32", n, tokens)
        r.call("dsv4_hc_post", operands)
        r.call("dsv4_hc_post", operands | {"comb": r.normal("f32", n, n, tokens)})
    part = {"x": ((31, 3, 4, 1), 36), "gate": ((31, 3, 4, 1), 4)}
    wide = {name: r.normal("f32", 40, 3, 4) for name in ("x", "gate")}
    r.call("dsv4_hc_pre_gated", wide, part=part, scale=2.0)


def _products(r: Recorder) -> None:
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K"):
        two = {"a": r.normal(kind, 256, 9), "b": r.normal("f32", 256, 3)}
        for prec in ("undefined", "f32", "bf16", "f16"):
            r.call("mul_mat", two, modify={"prec_set_acc": prec}, bound=PRODUCT)
        for prec in ("undefined", "f32", "bf16", "f16", "q8", "q4"):
            r.call("mul_mat", two, modify={"prec_set_src": [prec, 1]}, bound=PRODUCT)
        three = {"as": r.normal(kind, 256, 5, 3), "b": r.normal("f32", 256, 2, 4)}
        three["ids"] = ("i32", r.rng.integers(0, 3, (4, 2)).astype(np.int32))
        for prec in ("f32", "q8"):
            modify = {"prec_set_acc": "f32", "prec_set_src": [prec, 1]}
            r.call("mul_mat_id", three, modify=modify, bound=PRODUCT)


def _attention(r: Recorder) -> None:
    for kind in ("f16", "f32", "q8_0"):
        for n, kv, keep in ((1, 96, 7), (5, 160, 32), (40, 130, 64)):
            operands = {"q": r.normal("f32", 32, n, 4)}
            operands |= {name: r.normal(kind, 32, kv, 2) for name in "kv"}
            mask = np.full((n, kv), -np.inf, np.float16)
            for row in mask:
                row[r.rng.permutation(kv)[:keep]] = r.rng.normal(size=keep)
            operands["mask"] = ("f16", mask)
            args: dict[str, Any] = {"scale": 0.125, "max_bias": 0.0, "logit_softcap": 0.0}
            modify: dict[str, Any] = {"flash_attn_ext_set_n_kv_max": keep}
            r.call("flash_attn_ext", operands, modify=modify, bound=PRODUCT, **args)
            modify = modify | {
                "flash_attn_ext_set_prec": "f32",
                "flash_attn_ext_add_sinks": "sinks",
            }
            operands["sinks"] = r.normal("f32", 4)
            args = {"scale": 0.125, "max_bias": 8.0, "logit_softcap": 10.0}
            r.call("flash_attn_ext", operands, modify=modify, bound=PRODUCT, **args)


def main() -> None:
    recorder = Recorder(Library())
    _functions(recorder)
    _streams(recorder)
    _products(recorder)
    _attention(recorder)
    recorder.write()
    print(f"{len(recorder.cases)} calls in {CORPUS / NAME}.json")


if __name__ == "__main__":
    main()
