"""Our threads take no signals; they change the scheduling of no thread but the event loop's.

Not here: the same of the native threads alone (tests/native/runtime_signals.c, runtime_sched.c).
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from support import child

import aggml
from aggml.process.signals import signals_blocked

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="threads have no signal masks here"
)

# Blocks the signals only after the threads have started, as a program does that reads its options
# first; then waits for them.
WAITS = """
import os, signal, aggml, anyio
from aggml import Graph, ops
be = aggml.get_device("CPU").backend(n_threads=2)
x = aggml.new_tensor("f32", ne=(1 << 16,))
graph = Graph(ops.gelu(x))
be.alloc_graph(graph)
{before}
be.memset(x, 0)
be.graph_compute(graph).wait()
be.stream.delay(0.001).wait()
assert be.stream.call(int, "3").wait()
wanted = {{signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
for _ in range(20):
    for sent in wanted:
        os.kill(os.getpid(), sent)
        assert signal.sigwait(wanted) == sent
print("end")
"""


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    "before",
    [
        "",
        'anyio.run(anyio.sleep, 0, backend="asyncio")',
        'anyio.run(anyio.sleep, 0, backend="trio")',
    ],
    ids=["no loop", "asyncio", "trio"],
)
def test_a_process_that_waits_for_signals_lives(before: str) -> None:
    code = WAITS.format(before=before)
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_function_runs_with_signals_blocked_but_for_those_of_its_own_faults() -> None:
    stream = aggml.Stream("s")
    blocked = stream.call(signal.pthread_sigmask, signal.SIG_BLOCK, ())
    assert blocked.wait(60)
    found = blocked.result()
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1} <= found
    assert not {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL} & found


def test_the_mask_of_who_starts_a_thread_is_as_it_was() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with signals_blocked():
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert aggml.Stream("s").call(int, "3").wait(60)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


SLICE = """
import ctypes, struct
def attributes(thread=0):
    raw = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[__import__("platform").machine()]
    assert ctypes.CDLL(None).syscall(number, thread, raw, 48, 0) == 0
    return struct.unpack("IIQiIQQQ", raw.raw)
def slice_of(thread=0): return attributes(thread)[5]
"""
INHERITS = f"""{SLICE}
import os, subprocess, sys, threading, anyio, aggml
if attributes()[1] != os.SCHED_OTHER:  # musl has no sched_getscheduler
    print("another scheduler"); sys.exit()
before = slice_of()
stream = aggml.Stream("s")
async def main():
    with stream.hold():  # not done at once: the loop has to wait for it
        future = stream.delay(0)
        async with anyio.create_task_group() as tasks:
            async def wait(): await future
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint(); await anyio.wait_all_tasks_blocked()
            stream.native.release()
        stream.native.hold()
    if before: assert slice_of() == 100000
    others = []
    thread = threading.Thread(target=lambda: others.append(slice_of()))
    thread.start(); thread.join()
    code = {SLICE!r} + "print(slice_of())"
    others.append(int(subprocess.run([sys.executable, "-c", code], stdout=-1, check=True).stdout))
    for mine in os.listdir("/proc/self/task"):
        if int(mine) != threading.get_native_id(): others.append(slice_of(int(mine)))
    assert 100000 not in others, others
for loop in "asyncio", "trio": anyio.run(main, backend=loop)
print("end")
"""


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="Linux alone has slices")
def test_the_slice_of_a_loop_is_its_own() -> None:
    """Threads and programs that the loop starts do not inherit its slice."""
    done = subprocess.run(child(INHERITS), capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr == ""
    if done.stdout == "another scheduler\n":
        pytest.skip("the tests do not run as SCHED_OTHER, for which slices are")
    assert (done.returncode, done.stdout) == (0, "end\n")
