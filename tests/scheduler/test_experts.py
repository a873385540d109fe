"""Experts' weights that are copied for a run: only those that its ids name, however ids are made.

The weights lie in host memory; `mul_mat_id` is offloaded to a simulated accelerator. Traces show
how many bytes were transferred. Where the ids are made on the device, the experts of the last run
are copied before they are known (test_guesses.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]
K, M, EXPERTS, USED, TOKENS = 32, 8, 16, 2, 3
ONE = 4 * K * M  # bytes of one expert's weights


class Mixture:
    """y[t, u] = w[ids[t, u]] x[t]; the ids are an input, or the indices of the largest scores."""

    def __init__(self, *, scores_on: str = "", dtype: str = "f32") -> None:
        self.device = SimDevice("A", offload=["mul_mat_id"], bandwidth=1e9)
        self.sim = self.device.backend()
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.sched = Scheduler([self.sim, self.cpu], parallel=True, op_offload=True)
        self.w = new_tensor(dtype, ne=(K, M, EXPERTS), name="w")
        self.cpu.alloc([self.w], usage="weights")
        self.wv = np.random.default_rng(0).standard_normal((EXPERTS, M, K), np.float32)
        data: Array = self.wv
        if dtype != "f32":
            data = aggml.quantize(self.wv.reshape(-1, K), aggml.DType.parse(dtype))
            self.wv = aggml.dequantize(data, aggml.DType.parse(dtype), ne=(K, M, EXPERTS)).reshape(
                EXPERTS, M, K
            )
        assert self.cpu.set(self.w, data.reshape(self.w_shape(data))).wait(60)
        self.x = new_tensor("f32", ne=(K, 1, TOKENS), name="x").set_input()
        if scores_on:
            self.given = new_tensor("f32", ne=(EXPERTS, TOKENS), name="scores").set_input()
            scores = ops.scale(self.given, -1.0)
            order = ops.argsort(scores, "asc")
            self.ids = ops.view_2d(order, USED, TOKENS, order.nb[1], 0)
            home = self.sim if scores_on == "sim" else self.cpu
            for node in (scores, order):
                self.sched.set_tensor_backend(node, home)
        else:
            self.given = self.ids = new_tensor("i32", ne=(USED, TOKENS), name="ids").set_input()
        self.y = ops.mul_mat_id(self.w, self.x, self.ids).set_name("y")
        self.graph = Graph(self.y)

    def w_shape(self, data: Array) -> tuple[int, ...]:
        return (EXPERTS, M, data.size // (EXPERTS * M))

    def inputs(self, ids: Array, seed: int = 1) -> dict[aggml.Tensor, Array]:
        x = np.random.default_rng(seed).standard_normal((TOKENS, 1, K), np.float32)
        if self.given is self.ids:
            return {self.x: x, self.given: ids.astype(np.int32)}
        scores = np.zeros((TOKENS, EXPERTS), np.float32)
        for t, row in enumerate(ids):
            for k, e in enumerate(row):
                scores[t, e] = 10 - k
        return {self.x: x, self.given: scores}

    def expected(self, ids: Array, seed: int = 1) -> Array:
        x = self.inputs(ids, seed)[self.x].astype(np.float64)
        return np.stack([[self.wv[e] @ x[t, 0] for e in row] for t, row in enumerate(ids)])

    async def run(self, ids: Array, seed: int = 1) -> int:
        """Run once and check the result. Returns the bytes of weights that were copied."""
        with aggml.trace() as trace:
            y = await self.sched.run(self.graph, self.inputs(ids, seed), self.y)
        assert np.allclose(y, self.expected(ids, seed), atol=1e-4)
        return max(e.nbytes for e in trace.events if e.operation == "copy")


@pytest.fixture(params=["", "sim", "cpu"])
def mixture(request: pytest.FixtureRequest) -> Iterator[Mixture]:
    found = Mixture(scores_on=request.param)
    yield found
    found.sched.close()


def pick(*experts: int) -> Array:
    return np.array(experts).reshape(TOKENS, USED)


async def test_only_what_is_named_crosses(mixture: Mixture) -> None:
    assert await mixture.run(pick(0, 1, 0, 1, 0, 1)) == 2 * ONE
    assert mixture.sched.get_tensor_backend(mixture.y) is mixture.sim
    # no run names an expert that the run before has named: such a one may be there already
    assert await mixture.run(pick(15, 3, 4, 15, 3, 4), 2) == 3 * ONE
    assert await mixture.run(pick(0, 1, 2, 5, 14, 13), 3) == 6 * ONE
    assert await mixture.run(pick(7, 8, 8, 7, 9, 10), 4) == 4 * ONE


async def test_many_in_flight_each_with_its_own_experts(mixture: Mixture) -> None:
    rng = np.random.default_rng(5)
    picks = [np.stack([rng.permutation(EXPERTS)[:USED] for _ in range(TOKENS)]) for _ in range(12)]
    with aggml.check_races():
        for _ in range(2):
            futures = [
                await mixture.sched.submit(mixture.graph, mixture.inputs(p, k), mixture.y)
                for k, p in enumerate(picks)
            ]
            for k, future in enumerate(futures):
                assert np.allclose(await future, mixture.expected(picks[k], k), atol=1e-4)
    for k, p in enumerate(picks):  # now replayed from the recording, without a trace
        y = await mixture.sched.run(mixture.graph, mixture.inputs(p, k), mixture.y)
        assert np.allclose(y, mixture.expected(p, k), atol=1e-4)


async def test_submitting_does_not_wait_for_the_ids() -> None:
    mixture = Mixture(scores_on="sim")
    ids = pick(1, 2, 3, 4, 5, 6)
    await mixture.run(ids)
    with mixture.device.hold():
        future = await mixture.sched.submit(mixture.graph, mixture.inputs(ids, 3), mixture.y)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert not future.done()
    assert np.allclose(await future, mixture.expected(ids, 3), atol=1e-4)
    mixture.sched.close()


async def test_experts_that_do_not_exist_fail_the_run_and_no_other() -> None:
    mixture = Mixture()
    for bad in (-1, EXPERTS, 1 << 30):
        ids = pick(1, 2, 3, 4, 5, bad)
        with pytest.raises(aggml.OutOfBounds, match="expert"):
            await mixture.sched.run(mixture.graph, mixture.inputs(ids), mixture.y)
        assert await mixture.run(pick(1, 2, 3, 4, 5, 0)) == 6 * ONE
    mixture.sched.close()


async def test_a_fault_of_the_copy_is_that_of_the_run(mixture: Mixture) -> None:
    ids = pick(1, 2, 3, 4, 5, 6)
    for k in range(5):
        mixture.device.fail_at(k, "transfer", OSError("unplugged"))
        failed = 0
        for seed in range(3):
            future = await mixture.sched.submit(mixture.graph, mixture.inputs(ids, seed), mixture.y)
            await future.wait_until_done()
            error = future.exception()
            if error is None:
                assert np.allclose(future.result(), mixture.expected(ids, seed), atol=1e-4)
            else:
                assert isinstance(error.__cause__, OSError)
                failed += 1
        assert failed == 1


async def test_quantized_experts() -> None:
    mixture = Mixture(dtype="q8_0")
    ids = pick(1, 2, 3, 1, 2, 3)
    with aggml.trace() as trace:
        y = await mixture.sched.run(mixture.graph, mixture.inputs(ids), mixture.y)
    assert np.allclose(y, mixture.expected(ids), atol=0.2)
    crossed = max(e.nbytes for e in trace.events if e.operation == "copy")
    assert crossed == 3 * mixture.w.nbytes // EXPERTS
    mixture.sched.close()


async def test_all_cross_where_others_read_them_or_ids_come_too_late() -> None:
    mixture = Mixture()
    sched = mixture.sched
    # Another node reads the weights whole.
    total = ops.sum_rows(mixture.w)
    graph = Graph(mixture.y, total)
    sched.set_tensor_backend(total, mixture.sim)
    ids = pick(1, 2, 3, 1, 2, 3)
    with aggml.trace() as trace:
        y, sums = await sched.run(graph, mixture.inputs(ids), [mixture.y, total])
    assert np.allclose(y, mixture.expected(ids), atol=1e-4)
    assert np.allclose(sums.reshape(EXPERTS, M), mixture.wv.sum(axis=2), atol=1e-4)
    assert max(e.nbytes for e in trace.events if e.operation == "copy") == EXPERTS * ONE
    # Two nodes read them, for different tokens.
    other = new_tensor("i32", ne=(USED, TOKENS), name="other").set_input()
    z = ops.mul_mat_id(mixture.w, mixture.x, other)
    graph = Graph(mixture.y, z)
    inputs = {**mixture.inputs(ids), other: pick(9, 10, 11, 12, 13, 14).astype(np.int32)}
    y, found = await sched.run(graph, inputs, [mixture.y, z])
    assert np.allclose(y, mixture.expected(ids), atol=1e-4)
    assert np.allclose(found, mixture.expected(pick(9, 10, 11, 12, 13, 14)), atol=1e-4)
    sched.close()


async def test_two_stacks_with_the_same_ids_cross_in_part_both() -> None:
    mixture = Mixture(scores_on="sim")
    v = new_tensor("f32", ne=(K, M, EXPERTS), name="v")
    mixture.cpu.alloc([v], usage="weights")
    vv = np.random.default_rng(9).standard_normal((EXPERTS, M, K), np.float32)
    await mixture.cpu.set(v, vv)
    z = ops.mul_mat_id(v, mixture.x, mixture.ids)
    both = ops.add(mixture.y, z)
    graph = Graph(both)
    ids = pick(2, 3, 3, 2, 2, 3)
    with aggml.trace() as trace:
        got = await mixture.sched.run(graph, mixture.inputs(ids), both)
    first = mixture.expected(ids)
    mixture.wv = vv
    assert np.allclose(got, first + mixture.expected(ids), atol=1e-4)
    crossed = sorted(e.nbytes for e in trace.events if e.operation == "copy")
    assert crossed[-2:] == [2 * ONE, 2 * ONE]
    mixture.sched.close()


async def test_a_stream_refuses_what_is_no_stack_of_experts(be: aggml.Backend) -> None:
    a, b = (new_tensor("f32", ne=(4, 2, 3)) for _ in range(2))
    ids = new_tensor("i32", ne=2)
    odd = new_tensor("f32", ne=2)
    cube = new_tensor("i32", ne=(2, 1, 2))
    shape = new_tensor("f32", ne=(4, 3, 2))
    be.alloc([a, b, ids, odd, cube, shape])
    for bad in ((a, b, odd), (a, b, cube), (a, shape, ids), (a, ops.permute(b, 1, 0, 2, 3), ids)):
        with pytest.raises(aggml.InvalidArgument):
            be.stream.copy_experts(*bad)
    await be.set(a, np.zeros((3, 2, 4), np.float32))
    await be.set(b, np.ones((3, 2, 4), np.float32))
    await be.set(ids, np.array([2, 0], np.int32))
    await be.stream.copy_experts(a, b, ids)
    assert (await be.get(a)).sum(axis=(1, 2)).tolist() == [8, 0, 8]
