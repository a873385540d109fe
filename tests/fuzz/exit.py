"""Fuzzer: programs that exit while work of any kind is under way.

Program k runs in an interpreter of its own. Drawn are the operations under way, which references to
them are dropped, and how the interpreter ends. It must end by itself, print nothing but its last
line, and must not wait for graphs that would take minutes.
"""

from __future__ import annotations

import textwrap
from collections import Counter

from fuzz.processes import ends
from fuzz.rounds import Failure, Report, draw

__all__ = ["SHORT", "run"]

SHORT = 2

SETUP = """
devices = {devices}
backends = [d.backend(**({{"n_threads": n}} if n else {{}})) for d, n in devices]
one = backends[0]
def minutes():
    z = w = aggml.new_tensor("f32", ne=(1024, 1024))
    for _ in range(2000): z = ops.mul_mat(z, w)
    return Graph(z)
def started(f):
    while f.times.started is None: pass
    return f
def stream(): return aggml.Stream("s", pool=random.choice([None, aggml.ThreadPool(2)]))
kept = []
"""

ACTIONS = {
    "graph": "g = minutes(); one.alloc_graph(g); kept.append(started(one.graph_compute(g))); del g",
    "queued graphs": "g = minutes(); one.alloc_graph(g)\n"
    "for _ in range(5): kept.append(one.graph_compute(g))\ndel g",
    "quantization": 'kept.append(aggml.quantize_async(np.ones((8192, 4096), np.float32), "iq3_s"))',
    "delays": "s = stream()\nfor _ in range(100): kept.append(s.delay(1000))\ndel s",
    "waits": "s, t = stream(), stream(); t.native.hold()\n"
    "kept.append(s.wait(t.delay(1))); del s, t",
    "call": 's = stream(); kept.append(s.call(int, "3")); del s',
    "stuck call": "s = stream(); kept.append(started(s.call(threading.Event().wait))); del s",
    # On a stream of its own: behind queued graphs it would wait for them, for minutes.
    "failure": "kept.append(stream().delay(0)); kept[-1].wait()",
    "waiting thread": "f = stream().delay(1000)\n"
    "threading.Thread(target=f.wait, daemon=True).start(); del f",
    "submitting thread": "def submit(s):\n"
    "    try:\n        while True: s.delay(0).wait()\n"
    "    except aggml.InvalidState: pass\n"
    "threading.Thread(target=submit, args=(stream(),), daemon=True).start()",
    "loop": "async def main():\n"
    "    with anyio.move_on_after(0.01): await one.stream.delay(1000)\n"
    "anyio.run(main, backend={loop!r})",
    "cycle": "class N: pass\nn = N(); n.n = n; n.f = list(kept); del n",
}
DROPS = ["", "kept.clear()", "del backends, one", "kept.clear(); del backends, one; gc.collect()"]
LEAVES = ["", "sys.exit(0)", "gc.collect()"]


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    counts: Counter[str] = Counter()
    for k in range(first, first + programs):
        random = draw(seed, k)
        cpu, sim = 'aggml.get_device("CPU")', 'SimDevice("SIM")'
        devices = [(random.choice([cpu, sim]), random.choice([0, 1, 2])) for _ in range(2)]
        listed = "[" + ", ".join(f"({device}, {n})" for device, n in devices) + "]"
        names = random.choices(list(ACTIONS), k=random.randint(1, 5))
        parts = [f"random.seed({random.random()})", SETUP.format(devices=listed)]
        parts += [ACTIONS[name].replace("{loop!r}", repr(loop)) for name in names]
        parts += [random.choice(DROPS), 'print("end", flush=True)', random.choice(LEAVES)]
        problem = ends(textwrap.dedent("\n".join(parts)))
        if problem is not None:
            raise Failure(seed, k, loop, problem)
        counts.update(names)
    return Report(programs, dict(counts))
