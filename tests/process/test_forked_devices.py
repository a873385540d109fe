"""Every device in the child of a fork, while a thread of the parent holds every lock."""

from __future__ import annotations

import subprocess
from typing import Final

import pytest
from support import child

CODE: Final = """
import os, signal, threading
import anyio, numpy as np
import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice
from aggml.process import locks

cpu, sim = aggml.get_device("CPU"), SimDevice("SIM")
meta = MetaDevice([SimDevice("A"), SimDevice("B")])
devices = {{"cpu": cpu, "sim": sim, "meta": meta}}

async def compute(name):
    x = new_tensor("f32", ne=(6,), name="x").set_input()
    y = ops.neg(x); graph = Graph(y)
    value = np.arange(6, dtype=np.float32)
    if name == "scheduler":
        async with sim.backend() as a, cpu.backend(n_threads=1) as b:
            async with Scheduler([a, b]) as sched:
                sched.set_tensor_backend(y, a)
                assert np.array_equal(await sched.run(graph, {{x: value}}, y), -value)
                async for _ in sched.evaluate(graph, {{x: value}}):
                    break
                assert np.array_equal(await sched.run(graph, {{x: value}}, y), -value)
    else:
        async with devices[name].backend(max_queued=2) as be:
            await be.ready()
            be.alloc_graph(graph)
            assert np.array_equal(await be.run(graph, {{x: value}}, y), -value)
            assert await be.stream.call(lambda: 7) == 7

anyio.run(compute, {name!r}, backend={loop!r})
held, go = threading.Event(), threading.Event()
def hold():  # as a thread does that is just using all of them
    for lock in list(locks._locks):
        lock.acquire()
    held.set(); go.wait()
    for lock in list(locks._locks):
        try: lock.release()
        except RuntimeError: pass
thread = threading.Thread(target=hold, daemon=True); thread.start(); held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    code = 2
    try:
        anyio.run(compute, {name!r}, backend={loop!r}); code = 0
    except BaseException:
        import traceback; traceback.print_exc()
    finally:
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
go.set(); thread.join()
assert code == 0, code
anyio.run(compute, {name!r}, backend={loop!r})
print("end", flush=True)
"""


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", ["cpu", "sim", "meta", "scheduler"])
def test_a_child_computes_although_a_thread_of_the_parent_held_every_lock(
    name: str, loop: str
) -> None:
    code = CODE.format(name=name, loop=loop)
    done = subprocess.run(child(code), capture_output=True, text=True, timeout=110, check=False)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr[-3000:]
