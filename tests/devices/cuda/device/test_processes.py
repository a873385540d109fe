"""CUDA devices in processes of their own: two devices, an exit while one is busy, forks.

Not here: processes that use other devices (tests/process).
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.small_graphs import chain, vector
from support import ramp

import aggml
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from devices.cuda.fake_driver import Fake

    from aggml.devices.cuda import CUDADevice


TWO_DEVICES = """
import sys; sys.path.insert(0, {tests!r})
import anyio, numpy as np
from devices.cuda.fake_driver import Fake, SimpleKernels
fake = Fake()
import aggml
from aggml.devices.cuda import CUDAFamily

async def main():
    family = CUDAFamily(SimpleKernels())
    aggml.register_family(family)
    assert [d.name for d in family.devices] == ["CUDA0", "CUDA1"]
    assert aggml.best_device() is family.devices[0]
    one, two = (d.backend() for d in family.devices)
    x = np.arange(4096, dtype=np.float32).reshape(64, 64)
    a, b = (aggml.new_tensor("f32", ne=(64, 64)) for _ in "ab")
    one.alloc([a]); two.alloc([b])
    with fake.held():
        one.set(a, x)
        copied = one.copy(a, b, to=two)
        got = two.get(b)
    assert (await got == x).all()
    assert fake.counter("peer copies") == 1
    assert fake.counter("direct peer copies") == 1  # both pools are open
    assert fake.counter("peer access") == 2
    c, d = (aggml.ops.view_2d(t, 8, 64, 256, 32) for t in (a, b))
    await two.memset(b, 0)
    await one.copy(c, d, to=two)  # rows that lie apart
    assert ((await two.get(b))[:, 8:16] == x[:, 8:16]).all()
    fake.break_device(700, device=0)
    for future in (one.get(a),):
        try:
            await future
        except aggml.errors.DeviceError as error:
            assert "ILLEGAL" in str(error)
        else:
            raise AssertionError
    await two.set(b, x)
    assert (await two.get(b) == x).all()  # the other device is well
    await one.aclose(); await two.aclose()
anyio.run(main)
"""


def test_two_devices_copy_directly_and_fail_apart(fake: Fake) -> None:
    tests = str(Path(__file__).resolve().parents[3])
    _child(TWO_DEVICES.format(tests=tests), FAKE_CUDA_DEVICES="2")


EXIT_WHILE_BUSY = """
import sys; sys.path.insert(0, {tests!r})
import numpy as np
from devices.cuda.fake_driver import Fake, SimpleKernels
fake = Fake()
import aggml
from aggml.devices.cuda import CUDADevice, driver
be = CUDADevice(driver.facts(0), SimpleKernels()).backend()
t = aggml.new_tensor("f32", ne=(1000, 1000))
be.alloc([t])
for _ in range(20):
    be.set(t, np.ones((1000, 1000), np.float32), copy=True)
    f = be.get(t)
"""


def test_the_process_ends_while_a_device_is_busy(fake: Fake) -> None:
    tests = str(Path(__file__).resolve().parents[3])
    _child(EXIT_WHILE_BUSY.format(tests=tests))


def _child(script: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def in_child(check: Callable[[], None]) -> None:
    """Run ``check`` in a forked child. If it raises or hangs, the test fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"


def test_after_fork_the_device_is_refused(device: CUDADevice, fake: Fake) -> None:
    be = device.backend()
    be.synchronize().wait(60)  # so that there is a context

    def check() -> None:
        with pytest.raises(aggml.InvalidState):
            device.backend()

    in_child(check)
    be.close()


@pytest.mark.parametrize("state", ["idle", "the device is busy", "the stream is held"])
def test_each_guard_holds_in_the_child_of_a_fork(
    device: CUDADevice, fake: Fake, state: str
) -> None:
    """In the child no method of the parent's device calls the driver, takes a lock or waits.

    At the fork a thread of the parent may hold any of these locks. Objects that the child drops are
    left to the parent, which goes on.
    """
    be = device.backend()
    x, b, graph = chain(3)
    y = graph.nodes[-1]
    placed = be.alloc_graph(graph)
    be.set(b, ramp()).wait(60)
    be.run(graph, {x: ramp()}, y).wait(60)
    spare = be.alloc([vector("spare")])
    kept: list[Any] = [spare]
    native = device.native

    def check() -> None:
        # Threads of the parent may have held locks of the fake driver at the fork. So no entry may
        # be called: each one aborts.
        abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
        assert abort is not None
        _native.cuda_set_entries(dict.fromkeys(_native.cuda_entries(), abort))
        calls: list[Callable[[], object]] = [
            lambda: be.run(graph, {x: ramp()}, y),
            lambda: be.set(x, ramp()),
        ]
        if state != "idle":  # if it is idle the Future is done, and returns its result
            calls += [pending.wait, pending.result]
        for call in calls:
            with pytest.raises(aggml.InvalidState):
                call()
        for refused in (
            native.alloc(4096)[1],
            native.alloc_host(4096)[1],
            native.memory()[2],
            native.trim(),
            native.register_host(0, 4096, False),
        ):
            assert refused is not None
            assert "after fork" in refused.text
        native.free(1 << 20)  # must not use the parent's lists of memory
        native.free_host(1 << 20)
        native.unregister_host(1 << 20)
        assert native.blas_problem is None
        be.stream.abort()
        be.stream.native.release()
        kept.clear()
        be.close()
        gc.collect()
        _native.cuda_stop(0.1)  # as is done at exit

    with ExitStack() as held:
        if state == "the device is busy":
            held.enter_context(fake.held())
        elif state == "the stream is held":
            held.enter_context(be.stream.hold())
        pending = be.run(graph, {x: ramp(start=1)}, y)
        if state == "idle":
            assert pending.wait(60)
        in_child(check)
    assert pending.wait(60)
    assert np.array_equal(be.run(graph, {x: ramp(start=2)}, y).get(60), ramp(start=2) + 3 * ramp())
    placed.close()
    be.close()
