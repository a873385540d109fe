"""Several submissions in flight: order, back-pressure, memory apart, failures, cancellation, soak.

Two simulated accelerators and the CPU. Not here: what is computed where (test_run.py).
"""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskStatus

Array = np.ndarray[Any, Any]
#: Submissions of the soak; the full one has 10,000.
SOAK = int(os.environ.get("AGGML_SOAK", "400"))


class Chain:
    """y = w1 relu(w0 x): the first half on A, the second on B, the sign turned on the CPU."""

    def __init__(self, n: int = 8, rows: int = 2, *, custom: bool = False, **settings: Any) -> None:
        self.a_dev, self.b_dev = SimDevice("A"), SimDevice("B", alignment=64)
        self.a, self.b = self.a_dev.backend(), self.b_dev.backend()
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.w0 = new_tensor("f32", ne=(n, n), name="w0")
        self.w1 = new_tensor("f32", ne=(n, n), name="w1")
        self.x = new_tensor("f32", ne=(n, rows), name="x").set_input()
        h = ops.relu(ops.mul_mat(self.w0, self.x))
        self.y = ops.mul_mat(self.w1, h).set_name("y").set_output()
        self.cpu_fails = 0  # how many of the next runs are to fail
        self.z = (
            ops.map_custom1(self.y, self.negate, 1, None) if custom else ops.neg(self.y)
        ).set_name("z")
        self.graph = Graph(self.z)
        rng = np.random.default_rng(3)
        self.v0, self.v1 = (rng.standard_normal((n, n), np.float32) for _ in range(2))
        self.shape = (rows, n)
        for i, w, v in ((0, self.w0, self.v0), (1, self.w1, self.v1)):
            be = (self.a, self.b)[i]
            be.alloc([w], usage="weights")
            assert be.set(w, v).wait(60)
        self.sched = Scheduler([self.a, self.b, self.cpu], **{"parallel": True, **settings})
        self.sched.set_tensor_backend(self.z, self.cpu)

    def negate(self, dst: Array, y: Array, *_: object) -> None:
        if self.cpu_fails:
            self.cpu_fails -= 1
            raise OSError("injected")
        dst[...] = -y

    def input(self, seed: int) -> Array:
        return np.random.default_rng(seed).standard_normal(self.shape, np.float32)

    def expected(self, x: Array) -> Array:
        x, v0, v1 = (part.astype(np.float64) for part in (x, self.v0, self.v1))
        result: Array = -(np.maximum(x @ v0.T, 0) @ v1.T)
        return result

    def right(self, seed: int, z: Array) -> bool:
        return np.allclose(z, self.expected(self.input(seed)), atol=1e-4)

    async def submit(self, seed: int) -> aggml.Future[Array]:
        return await self.sched.submit(self.graph, {self.x: self.input(seed)}, self.z)

    async def fill(self) -> None:
        """Have four submissions in flight, twice: from then on each has memory of its own."""
        for _ in range(2):
            await self.sched.synchronize()
            self.b.hold()
            for seed in range(4):
                await self.submit(seed)
            self.b.release()
        await self.sched.synchronize()

    def end(self) -> None:
        for dev in (self.a_dev, self.b_dev):
            for be in list(dev._backends):
                while be.stream.native.release():
                    pass
        self.sched.close()
        for be in (self.a, self.b):
            be.close()
        self.cpu.close()


@pytest.fixture
def chain() -> Iterator[Chain]:
    found = Chain()
    yield found
    found.end()


async def test_many_in_flight_give_their_own_results(chain: Chain) -> None:
    futures = [await chain.submit(seed) for seed in range(20)]
    for seed, future in enumerate(futures):
        assert chain.right(seed, await future)


async def test_results_come_in_the_order_of_submission(chain: Chain) -> None:
    await (await chain.submit(0))
    with chain.b_dev.hold():
        futures = [await chain.submit(seed) for seed in range(3)]
        small = Graph(ops.sqr(chain.x))  # it needs nothing from the held device
        last = await chain.sched.submit(small, {chain.x: chain.input(9)}, small.ends[0])
        assert not last.done()
    order: list[aggml.Future[Array]] = []
    async for future in aggml.as_completed([last, *reversed(futures)]):
        assert all(f.done() for f in futures[: len(order)])
        order.append(future)
    assert len(order) == 4


async def test_the_first_device_goes_on_while_the_second_stands_still(chain: Chain) -> None:
    await chain.fill()
    before = chain.a.stream.native.submitted
    chain.b.hold()
    futures = [await chain.submit(seed) for seed in range(4)]
    while chain.a.stream.native.completed < chain.a.stream.native.submitted:
        await anyio.lowlevel.checkpoint()
    assert chain.a.stream.native.completed > before
    assert not any(f.done() for f in futures)
    chain.b.release()
    for seed, future in enumerate(futures):
        assert chain.right(seed, await future)


async def test_no_more_than_max_in_flight_and_first_come_first_served() -> None:
    chain = Chain(max_in_flight=2)
    order: list[int] = []
    futures: dict[int, aggml.Future[Array]] = {}

    async def client(k: int, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        futures[k] = await chain.submit(k)
        order.append(k)

    await (await chain.submit(0))
    with chain.b_dev.hold():
        async with anyio.create_task_group() as tasks:
            for k in range(6):
                await tasks.start(client, k)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert len(futures) <= 2
            assert sum(not f.done() for f in futures.values()) <= 2
            chain.b_dev.release()
    assert order == list(range(6))
    for k, future in futures.items():
        assert chain.right(k, await future)
    chain.end()


async def test_giving_up_a_place_in_the_queue_lets_the_next_one_in() -> None:
    chain = Chain(max_in_flight=1)
    await (await chain.submit(0))
    chain.b.hold()
    first = await chain.submit(1)
    with anyio.move_on_after(0):
        await chain.submit(2)
    with pytest.raises(aggml.LayoutMismatch):
        await chain.sched.submit(chain.graph, {chain.x: chain.input(0)[:1]}, chain.z)
    chain.b.release()
    assert chain.right(1, await first)
    # it got a slot and was then refused: its slot must be free again
    with pytest.raises(aggml.NotAllocated):
        await chain.sched.submit(chain.graph, {chain.x: chain.input(0)}, chain.graph.nodes[0])
    assert chain.right(3, await (await chain.submit(3)))
    chain.end()


async def test_memory_stops_growing(chain: Chain) -> None:
    await chain.fill()
    sizes = [chain.sched.buffer_size(b) for b in chain.sched.backends]
    held = [chain.a_dev.memory()[0], chain.b_dev.memory()[0]]
    for seed in range(40):
        await chain.submit(seed)
    await chain.sched.synchronize()
    assert [chain.sched.buffer_size(b) for b in chain.sched.backends] == sizes
    assert [chain.a_dev.memory()[0], chain.b_dev.memory()[0]] == held


async def test_without_room_for_memory_apart_submissions_follow_one_another() -> None:
    chain = Chain()
    size = chain.sched.reserve_size(chain.graph)[0]
    used = chain.a_dev.memory_size - chain.a_dev.memory()[0]
    chain.a_dev.memory_size = used + size + 64
    futures = [await chain.submit(seed) for seed in range(6)]
    for seed, future in enumerate(futures):
        assert chain.right(seed, await future)
    chain.end()


@pytest.mark.parametrize("kind", ["transfer", "compute"])
@pytest.mark.parametrize("k", range(6))
async def test_a_failure_is_that_of_one_submission(chain: Chain, kind: Any, k: int) -> None:
    await chain.fill()
    chain.a_dev.fail_at(k, kind, OSError("unplugged"))
    futures = [await chain.submit(seed) for seed in range(8)]
    failed = []
    for seed, future in enumerate(futures):
        try:
            assert chain.right(seed, await future)
        except aggml.DeviceError as error:
            failed.append(error.__cause__)
    assert [type(cause) for cause in failed] == [OSError]
    assert chain.right(0, await (await chain.submit(0)))


async def test_a_cancelled_submission_leaves_the_others(chain: Chain) -> None:
    await chain.fill()
    with chain.a_dev.hold():
        futures = [await chain.submit(seed) for seed in range(4)]
        with anyio.move_on_after(0):
            await futures[1]
    with pytest.raises(aggml.Aborted):
        await futures[1]
    for seed in (0, 2, 3):
        assert chain.right(seed, await futures[seed])


async def test_run_cancelled_aborts_its_work(chain: Chain) -> None:
    await (await chain.submit(0))
    await chain.sched.synchronize()
    with chain.b_dev.hold(), anyio.move_on_after(0.01) as scope:
        await chain.sched.run(chain.graph, {chain.x: chain.input(0)}, chain.z)
    assert scope.cancelled_caught
    assert chain.right(1, await (await chain.submit(1)))


async def test_reset_leaves_memory_to_what_is_in_flight(chain: Chain) -> None:
    a, b = (new_tensor("f32", ne=(8,)) for _ in range(2))
    chain.a.alloc([a, b])
    await chain.a.set(a, np.ones(8, np.float32))
    copied = ops.cpy(ops.sum_rows(ops.sum(ops.add(a, a))), ops.view_1d(b, 1, 0))
    with chain.a_dev.hold():
        future = await chain.sched.submit(Graph(copied), {}, b)
        held = chain.sched._planner.memory.buffers
        memory = [weakref.ref(block) for blocks in held.values() for block in blocks]
        del held
        assert memory
        chain.sched.reset()
        gc.collect()
        assert all(block() is not None for block in memory)
    assert (await future)[0] == 16
    del future
    await chain.sched.synchronize()
    for stream in chain.sched._runner.streams():
        stream.native.release_finished()
    gc.collect()
    assert all(block() is None for block in memory)


@pytest.mark.long(cases=1)
async def test_large_values_cross_in_pieces() -> None:
    chain = Chain(n=128, rows=4096)  # 2 MiB cross from A to B
    for seed in (0, 1, 2):
        assert chain.right(seed, await (await chain.submit(seed)))
    futures = [await chain.submit(seed) for seed in range(3)]
    for seed, future in enumerate(futures):
        assert chain.right(seed, await future)
    chain.b_dev.fail_at(9, "transfer", OSError("unplugged"))
    futures = [await chain.submit(seed) for seed in range(3)]
    failed = 0
    for seed, future in enumerate(futures):
        try:
            assert chain.right(seed, await future)
        except aggml.DeviceError:
            failed += 1
    assert failed == 1
    assert chain.right(5, await (await chain.submit(5)))
    chain.end()


async def test_two_schedulers_and_their_users_share_backends(chain: Chain) -> None:
    other = Scheduler([chain.a, chain.b, chain.cpu], parallel=True)
    async with other:
        pairs = []
        for seed in range(6):
            mine = await chain.submit(seed)
            theirs = await other.submit(chain.graph, {chain.x: chain.input(seed + 100)}, chain.z)
            pairs.append((mine, theirs))
        for seed, (mine, theirs) in enumerate(pairs):
            assert chain.right(seed, await mine)
            assert chain.right(seed + 100, await theirs)


async def test_graphs_of_several_shapes_take_turns(chain: Chain) -> None:
    graphs = []
    for rows in (1, 5, 3):
        x = new_tensor("f32", ne=(8, rows), name="x").set_input()
        z = ops.neg(ops.mul_mat(chain.w1, ops.relu(ops.mul_mat(chain.w0, x))))
        graphs.append((Graph(z), x, z))
    rng = np.random.default_rng(0)
    futures = []
    for k in range(30):
        graph, x, z = graphs[k * 7 % 3]
        value = rng.standard_normal((x.ne[1], 8), np.float32)
        futures.append((value, await chain.sched.submit(graph, {x: value}, z)))
    for value, future in futures:
        got = await future
        assert np.allclose(got.reshape(value.shape), chain.expected(value), atol=1e-4)


# -- soak


class Faults:
    """Makes all three devices fail at random."""

    def __init__(self, chain: Chain, rng: np.random.Generator) -> None:
        self.chain = chain
        self.rng = rng

    def maybe(self) -> None:
        if self.rng.random() < 0.1:
            which = int(self.rng.integers(3))
            if which == 2:
                self.chain.cpu_fails += 1
                return
            kind: Any = ("transfer", "compute", "any")[int(self.rng.integers(3))]
            dev = (self.chain.a_dev, self.chain.b_dev)[which]
            dev.fail_at(int(self.rng.integers(6)), kind, OSError("injected"))

    def end(self) -> None:
        self.chain.cpu_fails = 0
        for dev in (self.chain.a_dev, self.chain.b_dev):
            dev._faults.clear()


@pytest.mark.long(cases=1)
@pytest.mark.timeout(600)
async def test_soak_of_faults_and_cancelled_waiters(rng: np.random.Generator) -> None:
    """Random failures of all devices; 30 % of the waiters give up. All: ``make soak-scheduler``."""
    chain = Chain(max_in_flight=6, custom=True)
    await chain.fill()
    memory = [dev.memory() for dev in (chain.a_dev, chain.b_dev)]
    faults = Faults(chain, rng)
    ended = {"right": 0, "failed": 0, "aborted": 0, "cancelled": 0}
    last: list[aggml.Future[Array]] = []
    causes: set[type[BaseException | None]] = set()

    async def client(seed: int, future: aggml.Future[Array], patience: float | None) -> None:
        with anyio.move_on_after(patience):
            try:
                z = await future
            except aggml.Aborted:
                ended["aborted"] += 1
            except aggml.DeviceError as error:
                causes.add(type(error.__cause__))
                ended["failed"] += 1
            else:
                assert chain.right(seed, z)
                ended["right"] += 1
            return
        ended["cancelled"] += 1

    async with anyio.create_task_group() as tasks:
        for seed in range(SOAK):
            faults.maybe()
            future = await chain.submit(seed)
            last = [*last[-9:], future]
            patience = float(rng.random()) * 0.002 if rng.random() < 0.3 else None
            tasks.start_soon(client, seed, future, patience)
            newest_first = [f.done() for f in reversed(last)]
            assert newest_first == sorted(newest_first)  # submissions are done in their order
            chain.sched._runner.busy()
            assert len(chain.sched._admission.unfinished_futures()) <= 6
    assert sum(ended.values()) == SOAK
    assert causes <= {OSError}
    assert ended["right"] > SOAK // 3
    assert ended["failed"]
    for future in last:  # each ends with its result, its own error or Aborted
        # if its last waiter was cancelled just now, the abort is only requested
        await future.wait_until_done()
        assert isinstance(future.exception(), aggml.AggmlError | None)
    faults.end()
    for seed in range(3):
        assert chain.right(seed, await (await chain.submit(seed)))
    assert [dev.memory() for dev in (chain.a_dev, chain.b_dev)] == memory
    for stream in chain.sched._runner.streams():
        stream.native.release_finished()
        assert stream.native.kept == 0
    chain.end()
