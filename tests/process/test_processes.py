"""A process ends with work in flight, forks, or gets Ctrl-C. Each test starts one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import child
from waiting import wait_until

SETUP = """
import gc, os, sys, threading, time
import numpy as np, anyio, aggml
from aggml import ops, Graph
from aggml.devices.sim import SimDevice
device = aggml.get_device("CPU") if {device!r} == "cpu" else SimDevice("SIM")
a, b = aggml.new_tensor("f32", ne=(16,), name="a"), aggml.new_tensor("f32", ne=(16,), name="b")
y = ops.add(a, b)
graph = Graph(y)
x = np.arange(16, dtype=np.float32)
be = device.backend()
be.alloc_graph(graph)
def minutes():  # 5,000 products of 17 GFLOP
    z = w = aggml.new_tensor("f32", ne=(2048, 2048))
    for _ in range(5000): z = ops.mul_mat(z, w)
    return Graph(z)
"""


# Starting an interpreter for each test takes 0.6 s of a core, and devices differ little at the end,
# so the second one is slow.
@pytest.fixture(params=["cpu", pytest.param("sim", marks=pytest.mark.slow)])
def setup(request: pytest.FixtureRequest) -> str:
    return SETUP.format(device=request.param)


def ends_well(code: str) -> str:
    """Run the code; assert exit code 0 and an empty stderr. Returns stdout."""
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


EXITS = {
    "nothing left": "be.run(graph, {a: x, b: x}, y).wait()",
    "work in flight": "fs = [be.run(graph, {a: x, b: x}, y) for _ in range(5000)]",
    "work in flight, futures dropped": "for _ in range(5000): be.run(graph, {a: x, b: x}, y)",
    "a held stream": "be.stream.native.hold(); f = be.run(graph, {a: x, b: x}, y)",
    "a long delay": "be.stream.delay(1000); f = be.get(a)",
    "a wait that nobody ends": """
other = device.backend(); other.stream.native.hold(); ev = device.event()
other.set(a, x); other.record(ev); be.wait(ev); f = be.get(a)""",
    "a large plan": """
big = aggml.new_tensor("f32", ne=(1 << 20,)); z = big
for _ in range(2000): z = ops.add(z, big)
g = Graph(z); be.alloc_graph(g); f = be.graph_compute(g)
while f.times.started is None: pass""",
    "a batch left open": "batch = be.batch(); batch.__enter__(); f = be.get(a)",
    "a closed backend": "f = be.get(a); be.close()",
    "a failure": "f = be.stream.fail(ValueError('x')); f.wait(); f.exception()",
    "a call thread": "f = be.stream.call(int, '3'); f.wait(); assert f.result() == 3",
    "a call in flight": "f = be.stream.call(time.sleep, 0.2)",
    "a call that is stuck": """
f = be.stream.call(threading.Event().wait)
while f.times.started is None: pass""",
    "a call thread whose stream was dropped": """
s = aggml.Stream("s"); f = s.call(int, '3'); f.wait(); del s, f""",
    "calls queued": "fs = [be.stream.call(time.sleep, 0.001) for _ in range(100)]",
    "a thread in wait": """
be.stream.native.hold(); f = be.get(a)
begun = threading.Event()
def work(): begun.set(); f.wait()
threading.Thread(target=work, daemon=True).start(); begun.wait()""",
    "threads that submit until the end": """
submitted = threading.Barrier(4)
def work():
    be.run(graph, {a: x, b: x}, y).wait()
    submitted.wait()
    try:
        while True:
            be.run(graph, {a: x, b: x}, y).wait()
    except aggml.InvalidState:  # closed by the exit
        pass
for _ in range(3): threading.Thread(target=work, daemon=True).start()
submitted.wait()""",
    "cyclic garbage": "class N: pass\nn = N(); n.n = n; n.be = be; n.f = be.get(a)",
    "a pool of its own": """
pool = aggml.ThreadPool(3); s = aggml.Stream("s", pool=pool)
for _ in range(100): s.delay(0.001)""",
    # No Python object refers to the backend any more, and its graph would take minutes.
    "a graph whose backend was dropped": """
other = device.backend(); g = minutes(); other.alloc_graph(g); f = other.graph_compute(g)
while f.times.started is None: pass
del other; gc.collect()""",
    "a graph of which nothing is left": """
other = device.backend(); g = minutes(); other.alloc_graph(g); f = other.graph_compute(g)
while f.times.started is None: pass
del other, g, f; gc.collect()""",
    "a pool that was dropped": """
pool = aggml.ThreadPool(3); other = device.backend(pool=pool); g = minutes()
other.alloc_graph(g); f = other.graph_compute(g)
while f.times.started is None: pass
del other, pool, g, f; gc.collect()""",
    "a quantization": """
f = aggml.quantize_async(np.ones((16384, 4096), np.float32), "iq3_s")
while f.times.started is None: pass""",
    "a quantization behind a graph": """
other = device.backend(n_threads=1); g = minutes(); other.alloc_graph(g); f = other.graph_compute(g)
aggml.quantize_async(np.ones((16384, 4096), np.float32), "iq3_s")
while f.times.started is None: pass
del other; gc.collect()""",
    "a call of a stream that was dropped": """
s = aggml.Stream("s"); f = s.call(threading.Event().wait); g = s.call(int, "3")
while f.times.started is None: pass
del s; gc.collect()""",
}


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("what", EXITS)
def test_exit(setup: str, what: str) -> None:
    assert ends_well(f"{setup}\n{EXITS[what]}\nprint('end')") == "end\n"


LOOPS = {
    "awaiting": "await be.run(graph, {a: x, b: x}, y)",
    "work in flight": "fs.extend(be.run(graph, {a: x, b: x}, y) for _ in range(2000))",
    "callbacks armed": "f = be.stream.delay(1000); f.add_done_callback(print); fs.append(f)",
    "a cancelled wait": """
    f = be.stream.delay(1000); fs.append(f)
    with anyio.move_on_after(0.01): await f""",
    "a held stream and a timeout": """
    be.stream.native.hold(); f = be.get(a); fs.append(f)
    with anyio.move_on_after(0.01): await f""",
}


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("what", LOOPS)
def test_exit_after_a_loop(setup: str, loop: str, what: str) -> None:
    main = f"fs = []\nasync def main():\n    {LOOPS[what]}\nanyio.run(main, backend={loop!r})"
    code = f"{setup}\n{main}\nprint('end')"
    assert ends_well(code) == "end\n"


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_sys_exit_inside_a_loop(setup: str, loop: str) -> None:
    code = f"""{setup}
async def main():
    f = be.stream.delay(1000)
    async with anyio.create_task_group() as tasks:
        async def wait(): await f
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        be.run(graph, {{a: x, b: x}}, y)
        print("end")
        sys.stdout.flush()
        sys.exit(0)
try:
    anyio.run(main, backend={loop!r})
except BaseExceptionGroup as group:
    assert group.subgroup(SystemExit)
    sys.exit(0)
"""
    assert ends_well(code) == "end\n"


def test_os_exit_with_work_in_flight(setup: str) -> None:
    ends_well(f"{setup}\nbe.stream.delay(1000)\nbe.get(a)\nos._exit(0)")


# -- Ctrl-C


def _sleeps(pid: int) -> bool:
    """Whether the main thread of a process sleeps; true where the system does not tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "SZ"


def interrupted(code: str) -> str:
    """Run the code, send SIGINT after it printed "ready", and assert that it ends by itself."""
    process = subprocess.Popen(
        child(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()
        wait_until(lambda: _sleeps(process.pid))  # it has entered the call that waits
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert err == ""
    assert process.returncode == 0
    return out


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("timeout", ["", "100"])
def test_ctrl_c_ends_a_wait(setup: str, timeout: str) -> None:
    code = f"""{setup}
be.stream.native.hold()
f = be.run(graph, {{a: x, b: x}}, y)
print("ready", flush=True)
try:
    f.wait({timeout})
except KeyboardInterrupt:
    print("interrupted")
be.stream.native.release()
assert f.wait(60) and (f.result() == 2 * x).all()  # the work went on
"""
    assert interrupted(code) == "interrupted\n"


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_ctrl_c_in_a_loop(setup: str, loop: str) -> None:
    code = f"""{setup}
async def main():
    f = be.stream.delay(1000)
    print("ready", flush=True)
    await f
try:
    anyio.run(main, backend={loop!r})
except (KeyboardInterrupt, BaseExceptionGroup):
    print("interrupted")
"""
    assert interrupted(code) == "interrupted\n"


# -- fork

# Python 3.12 warns of a fork in a process with threads, which is right in general.
MAY_FORK = """import warnings
warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
"""
FORK = """
be.set(a, x).wait(); be.set(b, x).wait(); be.graph_compute(graph).wait()
be.stream.native.hold()
pending = be.get(y)
def refused(call):
    try:
        call()
    except aggml.InvalidState:
        return
    os._exit(21)
{before}
event = device.event(); be.record(event)
pid = os.fork()
if pid == 0:
    try:
        refused(lambda: be.get(a))
        refused(lambda: be.run(graph, {{a: x, b: x}}, y))
        refused(lambda: be.wait(event))
        refused(pending.result)
        refused(pending.wait)
        refused(event.wait)
        assert not pending.done()
        async def await_it():
            try:
                await pending
            except aggml.InvalidState:
                return
            os._exit(22)
        anyio.run(await_it, backend="asyncio")
        anyio.run(await_it, backend="trio")
        cpu = aggml.get_device("CPU")
        if device is cpu:
            host = np.frombuffer(a.buffer.memory, np.float32)
            at = a.placement.offset // 4
            assert (host[at:at + 16] == x).all()
        new = cpu.backend(n_threads=2)
        p, q = aggml.new_tensor("f32", ne=(16,)), aggml.new_tensor("f32", ne=(16,))
        r = ops.add(p, q); g = Graph(r); new.alloc_graph(g)
        f = new.run(g, {{p: x, q: x}}, r)
        assert f.wait(60) and (f.result() == 2 * x).all()
        async def main():
            async with cpu.backend() as again:
                p = aggml.new_tensor("f32", ne=(1 << 18,))
                r = ops.add(p, p); g = Graph(r); again.alloc_graph(g)
                big = np.ones(1 << 18, np.float32)
                assert (await again.run(g, {{p: big}}, r) == 2).all()
                await again.stream.delay(0.001)
        for loop in ("asyncio", "trio"):
            anyio.run(main, backend=loop)
        be.close()
        del be, pending
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 23
    {leave}
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
be.stream.native.release()
assert pending.wait(60) and (pending.result() == 2 * x).all()
assert be.run(graph, {{a: x, b: x}}, y).wait(60)
print("end")
"""


@pytest.mark.long(cases=1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("leave", ["os._exit(code)", "sys.exit(code)"])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "anyio.run(anyio.sleep, 0)",
        (
            "be.stream.native.release()\n"
            "fs = [be.run(graph, {a: x, b: x}, y) for _ in range(2000)]\n"
            "be.stream.native.hold(); pending = be.get(y)"
        ),
    ],
    ids=["idle", "after a loop", "with work running"],
)
def test_fork(setup: str, before: str, leave: str) -> None:
    assert ends_well(MAY_FORK + setup + FORK.format(before=before, leave=leave)) == "end\n"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_inside_a_loop_leaves_the_parents_loop_alone(setup: str) -> None:
    code = f"""{MAY_FORK}{setup}
async def main():
    await be.run(graph, {{a: x, b: x}}, y)
    other = aggml.Stream("other")
    delay, longer = be.stream.delay(0.2), other.delay(1000)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not longer.done() else 1)
    await delay
    other.abort()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (await be.run(graph, {{a: x, b: x}}, y) == 2 * x).all()
for loop in ("asyncio", "trio"):
    anyio.run(main, backend=loop)
print("end")
"""
    assert ends_well(code) == "end\n"


def test_multiprocessing_spawn_is_no_matter() -> None:
    assert sys.executable
    assert (
        ends_well("import multiprocessing as m, aggml\nprint(len(aggml.list_devices()) > 0)")
        == "True\n"
    )
