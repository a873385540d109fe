"""numpy and PyTorch as peers for the cases of cases.py, in a process of their own.

Not here: ggml (ggml.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from benchmarks import cases
from benchmarks.child import serve
from benchmarks.peers import module, need

Work: TypeAlias = Callable[[], Any]
TYPES: Final = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ready: list[Work] = []


def _numpy(case: cases.Case) -> Work:
    w, x = cases.repeated(cases.base_rows(case), case["m"]), cases.activations(case)
    out = np.empty((case["n"], case["m"]), np.float32)
    return lambda: np.matmul(x, w.T, out=out)


def _torch(case: cases.Case, threads: int) -> Work:
    need("torch")
    torch = module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    op = case["op"]
    if op == "mul_mat":
        dtype = getattr(torch, TYPES[case["dtype"]])
        rows = cases.repeated(cases.base_rows(case), case["m"])
        weights = [torch.from_numpy(rows).to(dtype, copy=True) for _ in range(case["copies"])]
        x = torch.from_numpy(cases.activations(case)).to(dtype)
        linear = torch.nn.functional.linear

        def products() -> Any:
            first, *_ = [linear(x, w) for w in weights]
            return first

        return products
    if op == "attention":
        dtype = getattr(torch, TYPES[case["dtype"]])
        q, k, v = (torch.from_numpy(a)[None].to(dtype) for a in cases.heads(case))
        attend = torch.nn.functional.scaled_dot_product_attention
        causal = case["causal"]
        return lambda: attend(q, k, v, is_causal=causal)[0].transpose(0, 1)
    x = torch.from_numpy(cases.values(case))
    if op == "soft_max":
        return lambda: torch.softmax(x * 0.125, -1)
    if op == "rms_norm":
        return lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=cases.EPS)
    raise ValueError(f"no {op} here")


def _prepare(which: str, case: cases.Case, threads: int) -> None:
    _ready[:] = [_numpy(case) if which == "numpy" else _torch(case, threads)]


def _run() -> float:
    start = time.perf_counter()
    _ready[0]()
    return time.perf_counter() - start


def _values() -> list[float]:
    found = _ready[0]()
    flat = found.float().reshape(-1)[: cases.SAMPLE] if hasattr(found, "float") else found.ravel()
    return [float(x) for x in flat[: cases.SAMPLE]]


if __name__ == "__main__":
    serve({"prepare": _prepare, "run": _run, "values": _values, "close": _ready.clear})
