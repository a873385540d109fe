"""Small graphs, tensors with known contents, a way to tell the event loops apart. No tests here."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio.testing

import aggml
from aggml.testing.fixtures import Array as Array
from aggml.testing.fixtures import N as N
from aggml.testing.fixtures import Sum as Sum
from aggml.testing.fixtures import ramp as ramp
from aggml.testing.fixtures import sum_graph as sum_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def vector(n: int = N, name: str = "", dtype: str = "f32") -> aggml.Tensor:
    return aggml.new_tensor(dtype, ne=(n,), name=name)


def placed(be: aggml.Backend, n: int = N, name: str = "t", dtype: str = "f32") -> aggml.Tensor:
    """A vector in memory of ``be``."""
    tensor = vector(n, name, dtype)
    be.alloc([tensor])
    return tensor


def holding(be: aggml.Backend, value: Array, name: str = "t") -> aggml.Tensor:
    """A vector of f32 in memory of ``be`` with these contents."""
    tensor = placed(be, value.size, name)
    assert be.set(tensor, value, copy=True).wait(60)
    return tensor


def sum_on(be: aggml.Backend, n: int = N) -> Sum:
    """A `sum_graph` placed in memory of ``be``."""
    s = sum_graph(n)
    be.alloc_graph(s.graph)
    return s


def end(backend: aggml.Backend) -> None:
    """Release the held stream, abort what the test left in it, close the backend, await its end."""
    while backend.stream.native.release():
        pass
    backend.stream.abort()
    backend.close()
    assert backend.synchronize().wait(60), f"{backend!r} has not finished its work within 60 s"


def opened(backend: aggml.Backend) -> Iterator[Any]:
    """The backend, for a fixture; it is ended afterwards."""
    try:
        yield backend
    finally:
        end(backend)


def on_trio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


@contextmanager
def assert_checkpoint() -> Iterator[None]:
    """Assert that the block lets other tasks run; on trio, also that it is a cancellation point."""
    if on_trio():
        with trio.testing.assert_checkpoints():
            yield
        return
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    yield
    assert ran, "nothing else could run meanwhile"


@contextmanager
def without_collector() -> Iterator[None]:
    """What ends in the block ends without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_a_thread(run: Callable[..., object]) -> None:
    """Run in a thread, so that a hang fails this test, not the whole suite; raise its error."""
    in_threads([run])


def in_threads(runs: Sequence[Callable[..., object]]) -> None:
    """Run each in a thread of its own, at the same time, as `in_a_thread` does."""
    failures: list[BaseException] = []

    def end(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=end, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0 if failures else 120)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "the run does not end"


def child(code: str) -> list[str]:
    """Arguments for another interpreter that sees this package; warnings are errors.

    After 90 s it prints its stacks and exits. On a busy machine the imports alone take 15 s.
    """
    # Not if the code forks: the child would wait for faulthandler's thread, which it lacks.
    if "os.fork" not in code:
        code = "import faulthandler; faulthandler.dump_traceback_later(90, exit=True)\n" + code
    return [sys.executable, "-P", "-X", "faulthandler", "-W", "error", "-c", code]
