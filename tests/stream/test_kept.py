"""Futures, errors and functions keep nothing alive: no cycles, graphs, or blocks of the ring.

Not here: objects that are dropped while work is in flight (test_lifetime.py), loops that end
(test_endings.py).
"""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from support import Array, holding, placed, ramp, sum_on, without_collector

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend, CPUDevice


class Thing:
    """An object whose end can be watched by a weak reference."""


def test_a_call_and_its_future_are_no_cycle(cpu: CPUBackend) -> None:
    thing = Thing()
    alive = weakref.ref(thing)
    with without_collector():
        future = cpu.stream.call(lambda thing=thing: thing)
        del thing
        assert future.get(60) is alive()
        gone = weakref.ref(future)
        del future
        cpu.stream.mark().get(60)
        assert gone() is None
        assert alive() is None


def test_a_call_gives_its_own_value_unless_the_device_gives_another(cpu: CPUBackend) -> None:
    """`Backend.get` whose `_get` is a Python call gives the array, not the call's return value."""

    class Calls(type(cpu)):  # type: ignore[misc]
        def _get(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[Any]:
            def read() -> None:
                array[...] = ramp().reshape(array.shape)

            done: aggml.Future[Any] = self.stream.call(read, reads=[tensor])
            return done

    be = Calls(cast("Any", cpu.device))
    a = placed(be)
    be.set(a, 0 * ramp())
    for _ in range(50):
        future = be.get(a)
        assert np.array_equal(future.get(60), ramp())
        assert np.array_equal(future.result(), ramp())
    out = np.empty_like(ramp())
    assert be.get(a, out=out).get(60) is out
    be.close()


# -- failing functions


def broken_graph(n: int, be: aggml.Backend) -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
    x = aggml.new_tensor("f32", ne=(n,), name="x")

    def fail(dst: Array, a: Array, ith: int, nth: int, userdata: object) -> None:
        assert be is not None
        raise ValueError("broken function")

    y = ops.map_custom1(x, fail, 1, None).set_output()
    graph = Graph(y)
    be.alloc_graph(graph)
    return graph, x, y


def test_a_failing_function_keeps_neither_graph_nor_backend(cpu_device: CPUDevice) -> None:
    """Native code holds the exception, unseen by the collector; its frames would hold all these."""
    pool = aggml.ThreadPool(1)
    gone: list[weakref.ref[Any]] = []

    def fail_once() -> None:
        be = cpu_device.backend(pool=pool)
        graph, x, y = broken_graph(1 << 10, be)
        run = be.run(graph, {x: np.zeros(1 << 10, np.float32)}, y)
        gone.extend([weakref.ref(be), weakref.ref(graph), weakref.ref(x.buffer), weakref.ref(x)])
        error = error_of(run)
        assert "broken function" in str(error)
        trace = error.__cause__.__traceback__  # type: ignore[union-attr]
        names = []
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert names[-1] == "fail"  # the place where it was raised is still in the traceback
        be.stream.native.release_finished()  # a worker that runs out of work has this done, too

    before = set(threading.enumerate())
    for _ in range(3):
        fail_once()
        gc.collect()
    # these threads end, since their streams are gone
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    aggml.Stream("another", pool=pool)
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


def error_of(future: aggml.Future[Any]) -> BaseException:
    assert future.wait(60)
    error = future.exception()
    assert error is not None
    return error


def test_a_failing_call_keeps_no_argument_though_its_error_is_kept(cpu: CPUBackend) -> None:
    class Argument(Thing):
        pass

    def made(closed_over: Argument) -> Callable[[Argument], None]:
        def inner(argument: Argument) -> None:
            local = [argument, closed_over]
            try:
                raise KeyError(len(local))
            except KeyError as error:
                raise ValueError("broken") from error

        def outer(argument: Argument) -> None:
            inner(argument)

        return outer

    arguments = [Argument(), Argument()]
    gone = [weakref.ref(argument) for argument in arguments]
    future = cpu.stream.call(made(arguments[0]), arguments[1])
    del arguments
    root = error_of(future).__cause__
    cpu.stream.mark().get(60)
    cpu.stream.native.release_finished()
    gc.collect()
    assert isinstance(root, ValueError)
    assert isinstance(root.__cause__, KeyError)
    assert [ref() for ref in gone] == [None, None]
    text = "".join(traceback.format_exception(root))
    assert ", in outer\n    inner(argument)\n" in text
    assert "raise KeyError(len(local))\n" in text


def test_failed_requests_do_not_pile_up_while_the_main_thread_is_blocked(cpu: CPUBackend) -> None:
    """Only the main thread runs pending calls of CPython, and it may block in join() for ever."""

    class Mine(ValueError):
        pass

    refs: list[weakref.ref[Mine]] = []
    left: list[int] = []

    def fail() -> None:
        error = Mine("broken")
        refs.append(weakref.ref(error))
        raise error

    def requests() -> None:
        for _ in range(200):
            future = cpu.stream.call(fail)
            error_of(future)
            del future
        for _ in range(40):  # fill the block of the ring that holds the last failures
            cpu.stream.mark().get(60)
        left.append(sum(ref() is not None for ref in refs))

    thread = threading.Thread(target=requests)
    thread.start()
    thread.join(60)
    assert len(refs) == 200
    assert left[0] <= 40  # errors of slots in use, or in the stream's list of unseen failures


def test_arrays_of_dropped_backends_go_while_the_main_thread_is_blocked(
    cpu_device: CPUDevice,
) -> None:
    left: list[int] = []

    class Watched(np.ndarray[Any, Any]):
        pass

    def work() -> None:
        refs = []
        pool = aggml.ThreadPool(1)
        for _ in range(30):
            be = cpu_device.backend(pool=pool)
            array = np.zeros(16, np.float32).view(Watched)
            refs.append(weakref.ref(array))
            be.stream.call(lambda: None)
            be.set(placed(be), array)
            last = be.stream.mark()
            del be, array
            last.get(60)
            del last
            gc.collect()
        left.append(sum(ref() is not None for ref in refs))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert left[0] <= 2


# -- blocks of the ring


def test_a_kept_future_that_was_asked_pins_no_block(be: aggml.Backend) -> None:
    """64 operations are queued between two kept runs. Pinned blocks of 32 would add 3 MB."""
    s = sum_on(be)
    kept = []
    before = rss()
    for i in range(300):
        run = s.run(be, ramp(start=i), ramp())
        run.get(60)
        kept.append(run)
        for _ in range(64):
            be.stream.mark()
    be.stream.mark().get(60)
    grown = rss() - before
    assert np.array_equal(kept[7].result(), 2 * ramp() + 7)
    submitted, started, done = kept[7].times
    assert started is not None
    assert done is not None
    assert submitted <= started <= done
    assert grown < 2 << 20


def rss() -> int:
    """Bytes that the C allocator has handed out."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("the C library does not tell what it gave out")
    libc.mallinfo2.restype = Info
    info = libc.mallinfo2()
    return int(info.h) + int(info.e)  # from the heap, and mapped separately


def test_times_and_errors_of_settled_futures_stay(be: aggml.Backend) -> None:
    failed, good = be.stream.fail(KeyError("early")), be.stream.mark()
    assert good.wait(60)
    times = good.times
    good.abort()  # no effect: it is done
    for _ in range(100):
        be.stream.mark().get(60)
    assert good.times == times
    assert isinstance(error_of(failed).__cause__, KeyError)
    assert "failed" in repr(failed)
    holding(be, ramp())
