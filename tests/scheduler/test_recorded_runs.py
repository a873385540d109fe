"""Recorded schedules of ggml: the same results, sizes and copies, one submission and several.

Not here: what else a scheduler does (test_run.py), how cases are read (recorded_schedules.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from corpus_loader import nmse
from scheduler.recorded_schedules import Recorded, arrays, cases, rebuild

import aggml
from aggml import Scheduler

CASES = [pytest.param(raw, id=raw["id"]) for raw in cases()]


Array = np.ndarray[Any, Any]


def scheduler_of(case: Recorded, **settings: Any) -> Scheduler:
    raw = case.raw
    settings = {"parallel": raw["parallel"], "op_offload": raw["op_offload"]} | settings
    sched = Scheduler(case.backends, **settings)
    for tensor, b in case.pins.items():
        sched.set_tensor_backend(tensor, case.backends[b])
    return sched


def values(case: Recorded, tensor: aggml.Tensor) -> Array:
    array: Array = arrays()[f"{case.raw['id']}/{tensor.name}"]
    return array.reshape(tensor.shape)


async def fill(case: Recorded) -> None:
    for w in case.weights:
        assert w.buffer is not None
        kind = w.buffer.type
        home = next(b for b in case.backends if b.device.supports_buffer_type(kind))
        await home.set(w, values(case, w))


def check(case: Recorded, outs: list[aggml.Tensor], results: list[Array]) -> None:
    for tensor, result in zip(outs, results, strict=True):
        expected = arrays()[f"{case.raw['id']}/out.{tensor.name}"]
        error = nmse(expected.astype(np.float64), result.astype(np.float64))
        assert error <= case.raw["nmse_max"], tensor


@pytest.mark.feature("SC-10")
@pytest.mark.feature("SC-15")
@pytest.mark.parametrize("raw", CASES)
async def test_recorded_results_and_sizes(raw: dict[str, Any]) -> None:
    case = rebuild(raw)
    await fill(case)
    async with scheduler_of(case) as sched:
        assert sched.n_copies == raw["n_copies"]
        reserved = sched.reserve_size(case.graph)
        assert [sched.buffer_size(b) for b in case.backends] == [0] * len(case.backends)
        inputs = {t: values(case, t) for t in case.inputs if t in case.graph.leafs}
        outs = [case.tensors[name] for name in raw["graph"]["ends"]]
        check(case, outs, await sched.run(case.graph, inputs, outs))
        sizes = [sched.buffer_size(b) for b in case.backends]
        assert all(mine <= theirs for mine, theirs in zip(sizes, raw["buffer_sizes"], strict=True))
        assert all(mine <= most for mine, most in zip(sizes, reserved, strict=True))


@pytest.mark.long(cases=14)
@pytest.mark.parametrize("parallel", [1, pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("raw", CASES)
async def test_recorded_results_with_several_in_flight(raw: dict[str, Any], parallel: int) -> None:
    case = rebuild(raw)
    await fill(case)
    async with scheduler_of(case, parallel=parallel) as sched:
        inputs = {t: values(case, t) for t in case.inputs if t in case.graph.leafs}
        outs = [case.tensors[name] for name in raw["graph"]["ends"]]
        futures = [await sched.submit(case.graph, inputs, outs) for _ in range(6)]
        for future in futures:
            check(case, outs, await future)
