"""Fuzzer: a call of an op with random operands, on each instruction set, compared with plain C.

Not here: which calls are drawn (kernel_cases.py), values recorded from ggml (tests/ops).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from fuzz.kernel_cases import FAMILIES, Call, Operand
from fuzz.rounds import Report, one_by_one

import aggml
from aggml import Graph, new_tensor
from aggml.devices.cpu import isas

if TYPE_CHECKING:
    import random

Array = np.ndarray[Any, Any]


def data(operand: Operand, seed: int) -> Array:
    """The elements of an operand in numpy order; rows of quantized types as bytes."""
    shape, rng = tuple(reversed(operand.ne)), np.random.default_rng(seed)
    kind, _, most = operand.fill.partition(":")
    if kind == "below":
        return rng.integers(0, int(most), shape).astype(np.int32)
    if kind == "distinct":
        rows = [rng.permutation(int(most))[: shape[-1]] for _ in range(shape[0])]
        return np.array(rows, np.int32)
    if kind == "mask":
        mask = np.where(rng.random(shape) < 0.3, -np.inf, 0.0)
        mask[..., 0] = 0.0  # every row sees something
        return mask.astype(np.float16)
    x = rng.standard_normal(shape, np.float32)
    if kind == "scaled":
        x *= np.float32(10.0) ** rng.uniform(-12, 12, (*shape[:-1], 1)).astype(np.float32)
    if operand.dtype in ("f32", "f16"):
        return x.astype(operand.dtype.replace("f", "float"))
    if operand.dtype == "bf16":
        return x.astype(ml_dtypes.bfloat16)
    return aggml.quantize(x, operand.dtype, imatrix=np.ones(shape[-1], np.float32))


async def result(backend: aggml.Backend, call: Call, given: list[Array]) -> Array:
    """What the backend computes, as floats of 64 bits."""
    tensors = [new_tensor(x.dtype, ne=x.ne).set_input() for x in call.operands]
    weights = [t for t, x in zip(tensors, call.operands, strict=True) if x.weights]
    y = call.build(*tensors).set_output()
    graph = Graph(y)
    inputs = dict(zip(tensors, given, strict=True))
    if weights:
        backend.alloc(weights, usage="weights")
        for tensor in weights:
            await backend.set(tensor, inputs.pop(tensor))
    backend.alloc_graph(graph)
    return np.asarray(await backend.run(graph, inputs, y)).astype(np.float64)


def assert_near(found: Array, wanted: Array, lost: float, what: str) -> None:
    """Each row of the result has lost at most this share of its power."""
    assert np.array_equal(np.isfinite(found), np.isfinite(wanted)), f"{what}: not finite"
    power = np.sum(wanted**2, axis=-1, where=np.isfinite(wanted))
    difference = np.where(np.isfinite(wanted), found - wanted, 0.0)
    share = np.sum(difference**2, axis=-1) / np.where(power > 0, power, 1.0)
    assert share.max(initial=0.0) <= lost, (
        f"{what}: lost {share.max():.2g} of a row, {lost} allowed"
    )


async def _program(choose: random.Random) -> Counter[str]:
    call = choose.choice(FAMILIES)(choose)
    given = [data(x, choose.randrange(1 << 30)) for x in call.operands]
    cpu: Any = aggml.get_device("CPU")  # only its own backend() accepts an instruction set
    async with cpu.backend(n_threads=1, use_ref=True) as backend:
        wanted = await result(backend, call, given)
    for isa in isas():
        async with cpu.backend(n_threads=2, isa=isa) as backend:
            found = await result(backend, call, given)
        assert_near(found, wanted, call.lost, f"{call.name} on {isa}")
    return Counter({call.name.split(maxsplit=1)[0]: 1})


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    return one_by_one(_program, seed, programs, loop, first)
