"""What is dropped leaves nothing behind: batches whose body raises, calls that raise half-way.

Here: values of INPUT leafs, events, places for submissions, calls on several streams. Not here: the
Futures of a dropped batch (test_batch.py), random programs (fuzz/dropping.py).
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support import in_a_thread, ramp

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

N = 64


class Drawn(Exception):
    """Raised by the bodies of batches."""


@contextlib.contextmanager
def dropped(be: Any) -> Iterator[None]:
    """A batch whose body raises at its end."""
    with contextlib.suppress(Drawn), be.batch():
        yield
        raise Drawn


@pytest.fixture
def other(be: Any) -> Iterator[Any]:
    """Another backend of the same device."""
    with be.device.backend() as backend:
        yield backend


@pytest.fixture
def cpu() -> Iterator[Any]:
    with aggml.get_device("CPU").backend() as backend:
        yield backend


class Copied:
    """y = x + 1 with x flagged INPUT, and z that a second graph copies into x."""

    def __init__(self, be: Any) -> None:
        self.x = aggml.new_tensor("f32", ne=(N,), name="x").set_input()
        self.z = aggml.new_tensor("f32", ne=(N,), name="z")
        self.y = ops.scale_bias(self.x, 1.0, 1.0).set_name("y")
        self.graph = Graph(self.y)
        self.fills = Graph(ops.cpy(self.z, self.x))
        be.alloc([self.x, self.z])
        be.set(self.z, ramp(N)).wait(60)
        be.alloc_graph(self.graph)
        be.alloc_graph(self.fills)


def by_set(be: Any, c: Copied) -> object:
    return be.set(c.x, ramp(N))


def by_part(be: Any, c: Copied) -> object:
    return be.set(c.x, ramp(1), offset=4)


def by_pieces(be: Any, c: Copied) -> object:
    return be.set_2d(c.x, ramp(N), size=4, n_copies=4, stride_tensor=8, stride_data=4)


def by_memset(be: Any, c: Copied) -> object:
    return be.memset(c.x, 0)


def by_copy(be: Any, c: Copied) -> object:
    return be.copy(c.z, c.x)


def by_clear(be: Any, c: Copied) -> object:
    return be.clear(c.x.buffer, 0)


def by_accept(be: Any, c: Copied) -> object:
    return be.accept(c.x)


def by_run(be: Any, c: Copied) -> object:
    return be.run(c.graph, {c.x: ramp(N)}, c.y)


def by_graph(be: Any, c: Copied) -> object:
    return be.graph_compute(c.fills)


def by_run_of_graph(be: Any, c: Copied) -> object:
    return be.run(c.fills, None, c.z)


WAYS = (
    by_set, by_part, by_pieces, by_memset, by_copy, by_clear, by_accept, by_graph, by_run_of_graph,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_input_that_only_a_dropped_batch_wrote_was_never_written(
    be: Any, way: Callable[[Any, Copied], object]
) -> None:
    c = Copied(be)
    with dropped(be):
        way(be, c)
        be.get(c.x)
        be.graph_compute(c.graph)  # within the batch the leaf has a value
        be.run(c.graph, None, c.y)
    calls: list[Callable[[], object]] = [
        lambda: be.run(c.graph, None, c.y),
        lambda: be.graph_compute(c.graph),
    ]
    for call in calls:
        with pytest.raises(aggml.NotAllocated, match="never written"):
            call()
    way(be, c)
    be.run(c.graph, None, c.y).get(60)


@pytest.mark.parametrize("way", WAYS)
def test_an_input_counts_as_written_for_others_only_when_the_batch_is_enqueued(
    be: Any, other: Any, way: Callable[[Any, Copied], object]
) -> None:
    c = Copied(be)
    with be.batch():
        way(be, c)

        def in_between() -> None:
            with pytest.raises(aggml.NotAllocated, match="never written"):
                be.run(c.graph, None, c.y)

        in_a_thread(in_between)
    be.run(c.graph, None, c.y).get(60)


def test_an_input_of_a_dropped_run_is_not_the_next_runs(be: Any) -> None:
    c = Copied(be)
    with dropped(be):
        by_run(be, c)
    with pytest.raises(aggml.NotAllocated, match="never written"):
        be.run(c.graph, None, c.y, reuse=["x"])
    by_set(be, c)
    with dropped(be):  # what the run would have brought does not replace what was set
        be.run(c.graph, {"x": ramp(N, start=9)}, "y")
    assert (be.run(c.graph, None, "y").get(60) == ramp(N) + 1).all()
    by_run(be, c)
    with dropped(be):
        by_set(be, c)
    with pytest.raises(aggml.NotAllocated, match="earlier run"):
        be.run(c.graph, None, c.y)


def test_a_dropped_copy_across_backends_leaves_its_target_unwritten(be: Any, other: Any) -> None:
    c = Copied(be)
    source = aggml.new_tensor("f32", ne=(N,), name="source")
    other.alloc([source])
    for batch_on in (be, other):
        with dropped(batch_on):
            other.copy(source, c.x, to=be)
        with pytest.raises(aggml.NotAllocated, match="never written"):
            be.run(c.graph, None, c.y)


def test_a_write_by_others_outlives_a_batch_that_is_dropped_later(be: Any, other: Any) -> None:
    c = Copied(be)
    with dropped(be):
        by_set(be, c)
        other.set(c.x, ramp(N, start=5)).wait(60)
    assert (be.run(c.graph, None, c.y).get(60) == ramp(N, start=5) + 1).all()


# -- events


def test_an_event_recorded_twice_in_a_dropped_batch_keeps_its_old_mark(be: Any) -> None:
    event = be.device.event()
    with dropped(be):
        be.record(event)
        be.record(event)
    assert "never recorded" in repr(event)
    assert event.done()
    with be.stream.hold():
        be.record(event)
        with dropped(be):
            be.record(event)
            be.record(event)
        assert not event.done()
    assert event.wait(60)


def test_an_event_is_seen_by_others_when_its_batch_is_enqueued(be: Any, other: Any) -> None:
    event = be.device.event()
    with be.stream.hold(), contextlib.suppress(Drawn):
        with be.batch():
            be.record(event)
            in_a_thread(lambda: other.wait(event).get(60))  # it was not recorded yet
        assert not event.done()
        waited = other.wait(event)
        assert not waited.done()
    assert waited.wait(60)  # pyright: ignore[reportPossiblyUnboundVariable] - the block is entered


@pytest.mark.parametrize("first_is_dropped", [True, False])
@pytest.mark.parametrize("second_is_dropped", [True, False])
def test_batches_of_two_threads_record_one_event(
    be: Any, other: Any, first_is_dropped: bool, second_is_dropped: bool
) -> None:
    event = be.device.event()
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with contextlib.suppress(Drawn), be.batch():
            be.record(event)
            inside.set()
            assert go_on.wait(60)
            if first_is_dropped:
                raise Drawn

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    assert inside.wait(60)
    with contextlib.suppress(Drawn), other.batch():
        other.record(event)
        if second_is_dropped:
            raise Drawn
    go_on.set()
    thread.join(60)
    assert event.wait(60)
    never = first_is_dropped and second_is_dropped
    assert ("never recorded" in repr(event)) is never


# -- places for submissions


async def test_a_batch_counts_as_a_submission_once_it_is_enqueued() -> None:
    async with aggml.get_device("CPU").backend(max_queued=1) as be:
        c = Copied(be)
        await be.synchronize()
        with be.batch():
            by_set(be, c)
            by_graph(be, c)
            assert (
                be._admission.unfinished_futures() == []
                or be._admission.unfinished_futures()[-1].done()
            )
        await be.ready()
        with dropped(be):
            by_set(be, c)
        await be.ready()
        await by_set(be, c)  # type: ignore[misc]


# -- calls that raise half-way


def failing(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, at: int = 1) -> None:
    """Make the ``at``-th call of a hook raise."""
    hook, n = getattr(cls, name), [0]

    def call(self: Any, *args: Any) -> Any:
        n[0] += 1
        if n[0] == at:
            raise Drawn
        return hook(self, *args)

    monkeypatch.setattr(cls, name, call)


@pytest.mark.parametrize("hook", ["_set", "_compute", "_get"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_a_run_that_raises_half_way_enqueues_nothing(
    monkeypatch: pytest.MonkeyPatch, hook: str, in_batch: bool
) -> None:
    with SimDevice("sim-half-way").backend() as be:
        c = Copied(be)
        by_set(be, c)
        with monkeypatch.context() as patch:
            failing(patch, type(be), hook)
            with be.batch() if in_batch else contextlib.nullcontext(), pytest.raises(Drawn):
                be.run(c.graph, {"x": ramp(N, start=9)}, "y")
        assert (be.get(c.x).get(60) == ramp(N)).all()
        assert (be.run(c.graph, None, "y").get(60) == ramp(N) + 1).all()


def test_a_call_that_raises_within_a_batch_leaves_the_others(
    be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Copied(be)
    event = be.device.event()
    with be.batch():
        by_set(be, c)
        be.record(event)
        with monkeypatch.context() as patch:
            failing(patch, type(be), "_compute")
            with pytest.raises(Drawn):
                be.run(c.graph, {"x": ramp(N, start=9)}, "y")
        got = be.run(c.graph, None, "y")
    assert (got.get(60) == ramp(N) + 1).all()
    assert event.done()


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("at", [1, 2])
def test_a_bounced_copy_that_raises_at_its_second_part_enqueues_nothing(
    monkeypatch: pytest.MonkeyPatch, in_batch: bool, at: int
) -> None:
    with SimDevice("sim-a").backend() as a, SimDevice("sim-b").backend() as b:
        source = aggml.new_tensor("f32", ne=(N,), name="source")
        target = aggml.new_tensor("f32", ne=(N,), name="target")
        a.alloc([source])
        b.alloc([target])
        a.set(source, ramp(N)).wait(60)
        b.set(target, ramp(N, start=7)).wait(60)
        before = a.stream.native.submitted, b.stream.native.submitted
        with monkeypatch.context() as patch:
            failing(patch, type(a), "_copy", at)
            with a.batch() if in_batch else contextlib.nullcontext(), pytest.raises(Drawn):
                a.copy(source, target, to=b)
        assert (a.stream.native.submitted, b.stream.native.submitted) == before
        a.copy(source, target, to=b)
        assert (b.get(target).get(60) == ramp(N)).all()


def test_a_batch_may_be_entered_again_after_it_was_dropped(be: Any) -> None:
    c = Copied(be)
    batch = be.batch()
    with contextlib.suppress(Drawn), batch:
        by_set(be, c)
        raise Drawn
    with batch:
        be.set(c.x, ramp(N, start=3))
    with batch:
        got = be.run(c.graph, None, c.y)
    assert (got.get(60) == ramp(N, start=3) + 1).all()


def test_a_batch_that_another_thread_enters_is_that_threads(be: Any) -> None:
    c = Copied(be)
    batch = be.batch()

    def enter() -> None:
        with batch:
            by_set(be, c)

    in_a_thread(enter)
    assert (be.run(c.graph, None, c.y).get(60) == ramp(N) + 1).all()
    assert not be.stream.open_batches


# -- outputs


def test_an_output_of_another_graph_is_refused_by_name(be: Any) -> None:
    a, b = Copied(be), Copied(be)
    by_run(be, b)
    foreign = b.y.set_name("y2") if not b.y.frozen else b.y
    loose = aggml.new_tensor("f32", ne=(N,), name="loose")
    be.alloc([loose])
    inplace = ops.scale_inplace(a.x, 2.0)
    for output in (foreign, loose, ops.view_1d(foreign, 4, 0), inplace, ops.reshape_1d(inplace, N)):
        for outputs in (output, [a.y, output], (output,)):
            with pytest.raises(aggml.AggmlError, match="cannot be an output"):
                be.run(a.graph, {a.x: ramp(N)}, outputs)
            with be.batch(), pytest.raises(aggml.AggmlError, match="cannot be an output"):
                be.run(a.graph, {a.x: ramp(N)}, outputs)
    with pytest.raises(aggml.NotAllocated, match="never written"):
        be.run(a.graph, None, a.y)  # the refused runs brought nothing


def test_views_of_what_a_graph_touches_may_be_outputs(be: Any) -> None:
    c = Copied(be)
    half = ops.view_1d(c.y, N // 2, 0)
    turned = ops.reshape_2d(half, N // 4, 2)
    got = be.run(c.graph, {c.x: ramp(N)}, [half, turned, c.x]).get(60)
    assert (got[0] == ramp(N)[: N // 2] + 1).all()
    assert (got[1].ravel() == got[0]).all()
    assert (got[2] == ramp(N)).all()


async def test_a_scheduler_refuses_outputs_of_another_graph(cpu: Any) -> None:
    def build() -> tuple[Any, Any, Graph]:
        x = aggml.new_tensor("f32", ne=(N,), name="x")
        y = ops.scale_bias(x, 1.0, 1.0)
        return x, y, Graph(y)

    x, y, graph = build()
    x2, y2, graph2 = build()
    placed = Copied(cpu)
    with aggml.Scheduler([cpu]) as scheduler:
        await scheduler.run(graph2, {x2: ramp(N)}, y2)
        for output in (y2, x2, placed.y, placed.x):
            for call in (scheduler.run, scheduler.submit):
                with pytest.raises(aggml.AggmlError, match="cannot be an output"):
                    await call(graph, {x: ramp(N)}, [y, output])
            with pytest.raises(aggml.AggmlError, match="cannot be an output"):
                scheduler.evaluate(graph, {x: ramp(N)}, [output])
        assert (await scheduler.run(graph, {x: ramp(N)}, y) == ramp(N) + 1).all()


# -- schedulers within batches


async def test_a_submission_within_a_batch_is_refused_and_changes_nothing(cpu: Any) -> None:
    c = Copied(cpu)
    by_set(cpu, c)
    with aggml.Scheduler([cpu]) as scheduler:
        await scheduler.run(c.graph, {c.x: ramp(N)}, c.y)
        by_set(cpu, c)
        with cpu.batch():
            with pytest.raises(aggml.InvalidState, match="batch open"):
                scheduler.graph_compute(c.graph)
            with pytest.raises(aggml.InvalidState, match="batch open"):
                scheduler.submit(c.graph, {c.x: ramp(N, start=4)}, c.y).send(None)
        assert (await scheduler.run(c.graph, None, c.y) == ramp(N) + 1).all()
        await scheduler.graph_compute(c.graph)
