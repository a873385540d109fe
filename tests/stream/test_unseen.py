"""Failures that the program never asked for: `get` raises them; a closing backend logs them.

Not here: which work fails together (test_failure.py).
"""

from __future__ import annotations

import gc
import logging
import subprocess
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import child, holding, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from conftest import AnyDevice


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged to "aggml", without messages that earlier tests caused."""
    gc.collect()
    caplog.clear()
    caplog.set_level(logging.ERROR, "aggml")
    return caplog


# -- get


def test_get_gives_the_value(be: aggml.Backend) -> None:
    s = sum_on(be)
    assert np.array_equal(s.run(be, ramp(), ramp()).get(), 2 * ramp())
    assert np.array_equal(s.run(be, ramp(), ramp()).get(60), 2 * ramp())
    assert be.stream.mark().get(timeout=60) is None


def test_get_raises_what_failed(be: aggml.Backend, told: pytest.LogCaptureFixture) -> None:
    with pytest.raises(aggml.AggmlError, match="broken"):
        be.stream.fail(ValueError("broken")).get()
    be.close()
    assert told.text == ""  # the failure was seen


def test_get_with_a_timeout_leaves_the_work_alone(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        with pytest.raises(TimeoutError, match=r"run.*0\.001"):
            run.get(0.001)
        assert not run.done()
    assert np.array_equal(run.get(), 2 * ramp())


def test_get_lets_other_threads_run(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    be.stream.native.hold()
    releaser = threading.Thread(target=be.stream.native.release)
    future = be.get(tensor)
    releaser.start()  # this thread gets the GIL only if the call below releases it
    assert np.array_equal(future.get(60), ramp())
    releaser.join()


def test_get_of_a_batch_that_was_given_up(be: aggml.Backend) -> None:
    batch = be.batch()
    batch.__enter__()
    mark = be.synchronize()
    batch.__exit__(KeyError, KeyError(), None)
    with pytest.raises(aggml.Aborted):
        mark.get()


# -- closing logs


def failing(device: AnyDevice) -> aggml.Backend:
    """A backend with a failure that nobody asked for: the script only waited."""
    be = device.backend()
    assert be.stream.fail(ValueError("broken"), operation="get").wait(60)
    return be


def test_a_stream_keeps_so_many_failures_and_counts_the_rest(be: aggml.Backend) -> None:
    for i in range(3000):
        be.stream.fail(ValueError(i))
    be.stream.mark().get()
    first = be.stream.failures()
    assert len(first) == 1025
    assert [str(f.__cause__) for f in first[:-1]] == [str(i) for i in range(1024)]
    assert "1976 more operations failed" in str(first[-1])
    assert be.stream.failures() == []
    be.stream.fail(ValueError("once more"))
    be.stream.mark().get()
    assert [str(f.__cause__) for f in be.stream.failures()] == ["once more"]


def test_with_in_a_script_logs(device: AnyDevice, told: pytest.LogCaptureFixture) -> None:
    with device.backend() as be:
        be.stream.native.hold()
        be.stream.fail(ValueError("broken"))
        be.stream.native.release()
    assert told.text.count("broken") == 1
    assert device.name in told.text


def test_close_logs(device: AnyDevice, told: pytest.LogCaptureFixture) -> None:
    be = failing(device)
    assert told.text == ""
    be.close()
    assert told.text.count("broken") == 1
    be.close()
    assert told.text.count("broken") == 1


async def test_aclose_logs(device: AnyDevice, told: pytest.LogCaptureFixture) -> None:
    be = failing(device)
    await be.aclose()
    assert told.text.count("broken") == 1


def test_dropping_logs(device: AnyDevice, told: pytest.LogCaptureFixture) -> None:
    be = failing(device)
    del be
    gc.collect()
    assert told.text.count("broken") == 1


def _join(thread: threading.Thread) -> None:
    thread.join(60)
    assert not thread.is_alive()


async def test_dropping_with_work_in_flight_logs_when_it_is_done(
    device: AnyDevice, told: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    be = device.backend()
    tensor = holding(be, ramp())
    go = threading.Event()
    be.stream.call(lambda: go.wait(60))
    be.stream.fail(ValueError("broken"))
    be.get(tensor)
    be.stream.call(lambda: None)
    callers = set(threading.enumerate()) - before
    del be, tensor
    gc.collect()
    assert told.text == ""
    go.set()
    while callers:
        # the thread ends with its stream, of which it holds the last reference
        _join(callers.pop())
    aggml.Stream("another")  # logs the failures of streams that have gone meanwhile
    assert told.text.count("broken") == 1


async def test_a_failure_that_can_still_be_seen_is_not_logged(
    device: AnyDevice, told: pytest.LogCaptureFixture
) -> None:
    be = device.backend()
    be.stream.native.hold()
    future = be.stream.fail(ValueError("broken"))
    be.close()  # the failure is still queued
    be.stream.native.release()
    del be
    gc.collect()
    await wait_all_tasks_blocked()
    assert told.text == ""
    with pytest.raises(aggml.AggmlError):
        await future
    del future
    gc.collect()
    assert told.text == ""


def test_what_was_seen_or_aborted_is_not_logged(
    device: AnyDevice, told: pytest.LogCaptureFixture
) -> None:
    with device.backend() as be:
        s = sum_on(be)
        assert isinstance(be.stream.fail(ValueError("seen")).exception(), aggml.AggmlError)
        with be.stream.hold():
            s.run(be, ramp(), ramp()).abort()
    assert told.text == ""


def run(code: str) -> str:
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


SCRIPT = """
import aggml
be = aggml.get_device("CPU").backend(n_threads=1)
future = be.stream.fail(ValueError("broken"))
assert future.wait()
"""


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    "end",
    ["", "del be, future", "del be", "be.close()", "import gc; gc.disable(); be.me = be; del be"],
)
def test_exit_logs(end: str) -> None:
    assert run(SCRIPT + end).count("broken") == 1


def test_exit_does_not_log_what_was_seen() -> None:
    assert run(SCRIPT + "future.exception()") == ""
