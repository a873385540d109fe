"""Fuzzer: a process forks while its threads do anything; both child and parent must work on.

Program k runs in an interpreter of its own. Drawn are the work of its threads and the moments at
which it forks. A child computes with the parent's weights, which the parent may be packing at that
moment, on a loop and a backend of its own. Backends of the parent refuse to work in the child. Then
the parent goes on.
"""

from __future__ import annotations

from collections import Counter

from fuzz.processes import ends
from fuzz.rounds import Failure, Report, draw

__all__ = ["SHORT", "run"]

SHORT = 1

SETUP = """
random.seed({seed})
cpu = aggml.get_device("CPU")
# A module that a thread imports just then stays locked in the child: that is Python's affair.
anyio.run(anyio.sleep, 0, backend={loop!r}); cpu.backend().stream.delay(0).wait()
K, M = 1024, 512
rows = np.random.default_rng(1).standard_normal((M, K), np.float32)
weights = []
keeper = cpu.backend(n_threads=2)
for kind in ("q8_0", "q4_0", "q4_K", "f32"):
    w = aggml.new_tensor(kind, ne=(K, M))
    buffer = keeper.alloc([w]); buffer.usage = aggml.BufferUsage.WEIGHTS
    blocks = rows if kind == "f32" else aggml.quantize(rows, kind)
    keeper.set(w, blocks, copy=True).wait()
    weights.append((w, blocks))
x = np.random.default_rng(2).standard_normal((2, K), np.float32)
def product(be, w):
    b = aggml.new_tensor("f32", ne=(K, 2)); y = ops.mul_mat(w, b); g = Graph(y)
    be.alloc_graph(g)
    return be.run(g, {{b: x}}, y)
def result(f):
    assert f.wait(60)
    return f.result()
expected = [result(product(keeper, w)) for w, _ in weights]
stop, broken = threading.Event(), []
def again(act):
    def work():
        try:
            be = cpu.backend(n_threads=2)
            while not stop.is_set(): act(be)
        except BaseException as error:
            broken.append(error); raise
    thread = threading.Thread(target=work); thread.start()
    return thread
"""

ACTIONS = {
    "packs": """
def packs(be):
    for w, blocks in weights:
        keeper.set(w, blocks).wait()  # the same bytes: what was packed is stale all the same
        result(product(be, w))
""",
    "delays": "def delays(be): be.stream.delay(0.0001).wait()",
    "calls": "def calls(be): be.stream.call(int, '3').wait()",
    "fails": """
def fails(be):
    be.stream.fail(ValueError("on purpose"), writes=()).wait(); be.stream.failures()
""",
    "loops": """
def loops(be):
    async def main(): await be.stream.delay(0.0001)
    anyio.run(main, backend={loop!r})
""",
    "pools": """
def pools(be):
    with aggml.ThreadPool(2) as pool: aggml.Stream("s", pool=pool).delay(0).wait()
""",
    "quantizes": 'def quantizes(be): aggml.quantize(rows[:64], random.choice(["iq2_s", "iq3_s"]))',
}

FORKS = """
def child():
    signal.alarm(200)
    async def main():
        async with cpu.backend(n_threads=2) as be:
            for (w, _), wanted in zip(weights, expected):
                assert np.array_equal(await product(be, w), wanted)
            await be.stream.delay(0.001)
            await be.stream.call(int, "3")
            await aggml.quantize_async(rows[:32], "iq3_s")
    anyio.run(main, backend={loop!r})
    try:
        keeper.stream.delay(0)
    except aggml.InvalidState:
        return 0
    return 3
for pause in {pauses}:
    time.sleep(pause)  # drawn at random: the fork comes while work is under way, wherever that is
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = child()
        except BaseException:
            import traceback; traceback.print_exc()
        finally:
            {leave}
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, code
stop.set()
for thread in threads: thread.join()
assert not broken
for (w, _), wanted in zip(weights, expected):
    assert np.array_equal(result(product(keeper, w)), wanted)
print("end", flush=True)
"""


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`."""
    counts: Counter[str] = Counter()
    for k in range(first, first + programs):
        random = draw(seed, k)
        names = ["packs", *random.sample(sorted(set(ACTIONS) - {"packs"}), k=random.randint(0, 3))]
        pauses = [round(random.random() * 0.05, 4) for _ in range(random.randint(2, 5))]
        parts = [SETUP.format(seed=random.random(), loop=loop)]
        parts += [ACTIONS[name].replace("{loop!r}", repr(loop)) for name in names]
        parts.append(f"threads = [again(act) for act in ({', '.join(names)},)]")
        parts.append(FORKS.format(loop=loop, pauses=pauses, leave="os._exit(code)"))
        problem = ends("\n".join(parts))
        if problem is not None:
            raise Failure(seed, k, loop, problem)
        counts.update(names)
        counts["forks"] += len(pauses)
    return Report(programs, dict(counts))
