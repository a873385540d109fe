"""Experts that are copied before their router names them: those of the last run, and corrections.

The router's scores are inputs, its order of experts is computed on a simulated device, so nobody
knows the ids before. Traces show what was copied. Not here: which experts cross without a guess
(test_experts.py), how much time is hidden (docs/overlap.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice
from aggml.native import _native
from aggml.scheduler.layout.memory import EXPERT_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Array = np.ndarray[Any, Any]
K, EXPERTS, USED = 16, 8, 2
ONE = 4 * K * K  # bytes of one expert's weights


class Layers:
    """Layers of stacks of experts; all stacks of a layer have the ids of its router.

    Args:
        layers: how many.
        stacks: of each layer, one behind the other.
        memory: of the device.
        alike: whether all layers have the weights of the first one.
        product: seconds that a product with a stack takes.
    """

    def __init__(
        self,
        layers: int = 3,
        stacks: int = 3,
        *,
        memory: int | None = None,
        alike: bool = False,
        product: float = 0.0,
    ) -> None:
        more: dict[str, Any] = {} if memory is None else {"memory": memory}
        if product:
            more["speed"] = 2 * K * K * USED / product
        self.device = SimDevice("A", offload=["mul_mat_id"], **more)
        self.sim = self.device.backend()
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.sched = Scheduler([self.sim, self.cpu], parallel=True, op_offload=True)
        rng = np.random.default_rng(0)
        self.x = new_tensor("f32", ne=(K, 1), name="x").set_input()
        self.scores = [
            new_tensor("f32", ne=(EXPERTS, 1), name=f"scores {i}").set_input()
            for i in range(layers)
        ]
        self.weights: list[list[Array]] = []
        stack: list[aggml.Tensor] = []
        values: list[Array] = []
        y = self.x
        for i, scores in enumerate(self.scores):
            again = ops.add(scores, ops.scale(ops.sum_rows(y), 0.0))  # after the layer before
            order = ops.argsort(again, "desc")
            for node in (again, order):
                self.sched.set_tensor_backend(node, self.sim)
            ids = ops.view_2d(order, USED, 1, order.nb[1], 0)
            if not (alike and i):
                values = [*(rng.standard_normal((stacks, EXPERTS, K, K), np.float32) / 4)]
                stack = [
                    new_tensor("f32", ne=(K, K, EXPERTS), name=f"w{i}.{k}") for k in range(stacks)
                ]
                self.cpu.alloc(stack, usage="weights")
                for w, value in zip(stack, values, strict=True):
                    assert self.cpu.set(w, value).wait(60)
            self.weights.append([*values])
            z = ops.reshape_3d(y, K, 1, 1)
            for w in stack:
                z = ops.mul_mat_id(w, z, ids)
            parts = [ops.view_2d(z, K, 1, z.nb[2], u * z.nb[1]) for u in range(USED)]
            y = ops.add(y, ops.add(*parts))
        self.y = y
        self.graph = Graph(y)
        self.seed = 0

    def inputs(self, ids: Sequence[Sequence[int]]) -> dict[aggml.Tensor, Array]:
        self.seed += 1
        x = np.random.default_rng(self.seed).standard_normal((1, K), np.float32)
        found: dict[aggml.Tensor, Array] = {self.x: x}
        for scores, own in zip(self.scores, ids, strict=True):
            value = np.zeros((1, EXPERTS), np.float32)
            value[0, list(own)] = 10 - np.arange(USED)
            found[scores] = value
        return found

    def expected(self, x: Array, ids: Sequence[Sequence[int]]) -> Array:
        y = x.astype(np.float64)
        for stacks, own in zip(self.weights, ids, strict=True):
            more = np.zeros_like(y)
            for e in own:
                z = y[0]
                for w in stacks:
                    z = w[e] @ z
                more += z
            y = y + more
        return y

    async def run(self, ids: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Run and check. Returns how many experts were guessed, and copied because of the ids."""
        inputs = self.inputs(ids)
        with aggml.trace() as trace:
            found = await self.sched.run(self.graph, inputs, self.y)
        assert np.allclose(found, self.expected(inputs[self.x], ids), rtol=1e-4, atol=1e-4)
        guessed = sum(e.nbytes for e in trace.events if e.operation == "guess")
        named = sum(e.nbytes for e in trace.events if e.operation == "copy" and e.nbytes >= ONE)
        return guessed // ONE, named // ONE

    async def untraced(self, ids: Sequence[Sequence[int]]) -> None:
        """Run and check without a trace: the second time, what was recorded is repeated."""
        inputs = self.inputs(ids)
        found = await self.sched.run(self.graph, inputs, self.y)
        assert np.allclose(found, self.expected(inputs[self.x], ids), rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[1, 3])
def layers(request: pytest.FixtureRequest) -> Iterator[Layers]:
    found = Layers(stacks=request.param)
    yield found
    found.sched.close()


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("stacks", [1, 3])
async def test_what_the_last_run_named_is_there_before_the_ids_and_the_rest_is_copied(
    stacks: int,
) -> None:
    # a product takes longer than a thread of a busy machine waits for a core
    layers = Layers(stacks=stacks, product=0.03)
    first = [(0, 1), (2, 3), (4, 5)]
    assert await layers.run(first) == (0, 6 * stacks)
    most = 0
    for _ in range(5):
        guessed, named = await layers.run(first)
        assert guessed + named == 6 * stacks
        most = max(most, guessed)
    # The first layer has no product before it: its guesses and its ids come at the same time.
    assert most >= 4 * stacks
    guessed, named = await layers.run([(1, 7), (3, 2), (6, 7)])
    assert named >= 3 * stacks  # of the first layer one, of the second none, of the third both
    assert guessed <= 6 * stacks
    assert guessed + named >= 6 * stacks
    layers.sched.close()


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("checked", [True, False])
async def test_results_do_not_depend_on_guesses(
    layers: Layers, rng: np.random.Generator, *, checked: bool
) -> None:
    ids = [list(rng.permutation(EXPERTS)[:USED]) for _ in range(3)]
    for _ in range(30):
        if checked:
            with aggml.check_races():
                await layers.run(ids)
        else:
            await layers.untraced(ids)
        at, place = rng.integers(3), rng.integers(USED)
        others = [e for e in range(EXPERTS) if e not in ids[at]]
        ids[at][place] = int(rng.choice(others))


async def test_many_in_flight_have_their_own_experts(
    layers: Layers, rng: np.random.Generator
) -> None:
    picks = [[list(rng.permutation(EXPERTS)[:USED]) for _ in range(3)] for _ in range(12)]
    for ids in picks[:2]:
        await layers.run(ids)
    inputs = [layers.inputs(ids) for ids in picks]
    futures = [await layers.sched.submit(layers.graph, x, layers.y) for x in inputs]
    for x, ids, future in zip(inputs, picks, futures, strict=True):
        expected = layers.expected(x[layers.x], ids)
        assert np.allclose(await future, expected, rtol=1e-4, atol=1e-4)


async def test_a_fault_of_a_guess_or_a_correction_is_that_of_its_run(layers: Layers) -> None:
    ids = [(0, 1), (2, 3), (4, 5)]
    await layers.untraced(ids)
    stacks, struck = len(layers.weights[0]), 0
    for k in range(8 * stacks + 4):
        layers.device.fail_at(k, "transfer", OSError("unplugged"))
        failed = 0
        for _ in range(3):
            inputs = layers.inputs(ids)
            future = await layers.sched.submit(layers.graph, inputs, layers.y)
            await future.wait_until_done()
            error = future.exception()
            if error is None:
                expected = layers.expected(inputs[layers.x], ids)
                assert np.allclose(future.result(), expected, rtol=1e-4, atol=1e-4)
            else:
                assert isinstance(error.__cause__, OSError)
                failed += 1
            ids = [ids[-1], *ids[:-1]]
        assert failed == 1
        struck += 1
    assert struck > 6 * stacks  # so many transfers a run has at least: a guess or a copy of each


async def test_an_aborted_run_leaves_nothing_wrong(
    layers: Layers, rng: np.random.Generator
) -> None:
    for _ in range(20):
        ids = [list(rng.permutation(EXPERTS)[:USED]) for _ in range(3)]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cancel(turns: int, scope: anyio.CancelScope) -> None:
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                tasks.start_soon(cancel, int(rng.integers(6)), scope)
                await layers.sched.run(layers.graph, layers.inputs(ids), layers.y)
        await layers.untraced(ids)


async def test_a_device_without_room_for_blocks_shares_memory_as_before() -> None:
    ids = [(0, 1), (2, 3), (4, 5)]
    stack = EXPERTS * ONE
    roomy = Layers(stacks=3)
    await roomy.run(ids)
    await roomy.run(ids)
    used = roomy.sched.buffer_size(roomy.sim)
    assert EXPERT_BLOCKS * stack <= used <= (EXPERT_BLOCKS + 1) * stack
    small = Layers(stacks=3, memory=3 * stack)
    for _ in range(3):
        guessed, named = await small.run(ids)
        assert (guessed, named) == (0, 18)
    assert small.sched.buffer_size(small.sim) < 3 * stack
    roomy.sched.close()
    small.sched.close()


async def test_stacks_that_several_layers_read_are_copied_for_each() -> None:
    """A block is not given to another stack before the last layer has read it."""
    layers = Layers(layers=3, stacks=2, alike=True)
    for ids in ([(0, 1), (2, 3), (4, 5)], [(0, 1), (2, 3), (4, 5)], [(5, 1), (0, 3), (4, 2)]):
        await layers.run(ids)
    layers.sched.close()


async def test_the_stream_guesses_until_the_ids_are_noted(be: aggml.Backend) -> None:
    stream = be.stream
    source, target = (new_tensor("f32", ne=(2, 1, 4), name=x) for x in ("source", "target"))
    ids = new_tensor("i32", ne=(3,), name="ids")
    be.alloc([source, target, ids])
    values = np.arange(1, 9, dtype=np.float32).reshape(4, 1, 2)
    await be.set(source, values)
    history = _native.ExpertHistory(3)

    async def there() -> list[int]:
        found = await be.get(target)
        await be.set(target, np.zeros_like(values))
        both = zip(found, values, strict=True)
        assert all((row == 0).all() or (row == own).all() for row, own in both)
        return [i for i, row in enumerate(found) if row.any()]

    async def name(*those: int) -> list[int]:
        await be.set(ids, np.array(those, np.int32))
        await stream.copy_experts(target, source, ids, history=history)
        return await there()

    await there()
    await stream.guess_experts(target, source, history)
    assert await there() == []  # there was no run before
    assert await name(2, 0, 2) == [0, 2]
    await stream.guess_experts(target, source, history)
    assert await there() == [0, 2]
    assert await name(2, 3, 3) == [3]
    await stream.note_experts([history])
    await stream.guess_experts(target, source, history)
    assert await there() == []
    assert await name(2, 3, 1) == [1, 2, 3]
    await stream.guess_experts(target, source, history)  # the note was of the run before
    assert await there() == [1, 2, 3]
    await be.set(ids, np.array([0, 4, 1], np.int32))
    with pytest.raises(aggml.OutOfBounds):
        await stream.copy_experts(target, source, ids, history=history)
    await stream.guess_experts(target, source, history)
    assert await there() == [1, 2, 3]
    other = new_tensor("i32", ne=(2,))
    be.alloc([other])
    with pytest.raises(ValueError, match="another number"):
        stream.copy_experts(target, source, other, history=history)
