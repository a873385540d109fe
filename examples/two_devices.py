"""One transformer over two simulated accelerators and the CPU, pipelined by the scheduler.

Here: a small decoder whose first layers are on one device and the rest on the other, embedding and
head on the CPU. Many batches are in flight; the rate is compared with one device's. Not here: real
weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from aggml import Graph, Scheduler, Tensor, new_tensor, ops
from aggml.devices.sim import SimDevice, operations

if TYPE_CHECKING:
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["Report", "compare"]

WIDTH: Final = 64
HEADS: Final = 4
HEAD: Final = WIDTH // HEADS
INNER: Final = 128
VOCABULARY: Final = 100
LAYERS: Final = 4
TOKENS: Final = 16
IN_FLIGHT: Final = 6


@dataclass
class Report:
    """Batches per second in steady state, and the trace of the two devices."""

    one: float
    two: float
    trace: aggml.Trace
    plan: str
    right: bool

    def __str__(self) -> str:
        return (
            f"one device {self.one:.1f} batches/s, two devices {self.two:.1f}: "
            f"{self.two / self.one:.2f} times as many"
        )


class Decoder:
    """The weights by layer, as tensors without memory, and the graph that uses them."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.values: dict[Tensor, F32] = {}
        self.layers: list[list[Tensor]] = []
        self.tokens = new_tensor("i32", ne=TOKENS, name="tokens").set_input()
        self.positions = new_tensor("i32", ne=TOKENS, name="positions").set_input()
        self.mask = new_tensor("f32", ne=(TOKENS, TOKENS), name="mask").set_input()
        self.embedding = self.weight("embedding", WIDTH, VOCABULARY)
        x = ops.get_rows(self.embedding, self.tokens)
        for i in range(LAYERS):
            before = set(self.values)
            x = self.layer(i, x)
            self.layers.append([w for w in self.values if w not in before])
        self.head = self.weight("head", WIDTH, VOCABULARY)
        self.logits = ops.mul_mat(self.head, ops.rms_norm(x, 1e-5)).set_name("logits")
        self.graph = Graph(self.logits)

    def weight(self, name: str, *ne: int) -> Tensor:
        tensor = new_tensor("f32", ne=ne, name=name)
        scale = np.float32(ne[0] ** -0.5)
        self.values[tensor] = self.rng.standard_normal(ne[::-1], np.float32) * scale
        return tensor

    def layer(self, i: int, x: Tensor) -> Tensor:
        h = ops.rms_norm(x, 1e-5)
        q, k, v = (ops.mul_mat(self.weight(f"{n}{i}", WIDTH, WIDTH), h) for n in "qkv")
        q, k = (self.rotated(t) for t in (q, k))
        v = ops.cont(ops.permute(ops.reshape_3d(v, HEAD, HEADS, TOKENS), 1, 2, 0, 3))
        scores = ops.soft_max_ext(ops.mul_mat(k, q), self.mask, HEAD**-0.5, 0.0)
        mixed = ops.cont_2d(ops.permute(ops.mul_mat(v, scores), 0, 2, 1, 3), WIDTH, TOKENS)
        x = ops.add(x, ops.mul_mat(self.weight(f"o{i}", WIDTH, WIDTH), mixed))
        h = ops.rms_norm(x, 1e-5)
        gate = ops.mul_mat(self.weight(f"gate{i}", WIDTH, INNER), h)
        up = ops.mul_mat(self.weight(f"up{i}", WIDTH, INNER), h)
        down = self.weight(f"down{i}", INNER, WIDTH)
        return ops.add(x, ops.mul_mat(down, ops.swiglu_split(gate, up)))

    def rotated(self, t: Tensor) -> Tensor:
        """[HEAD, TOKENS, HEADS], rotated by position."""
        heads = ops.reshape_3d(t, HEAD, HEADS, TOKENS)
        turned = ops.rope_ext(heads, self.positions, None, n_dims=HEAD, mode="neox")
        return ops.permute(turned, 0, 2, 1, 3)

    def inputs(self, seed: int) -> dict[Tensor, Any]:
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, TOKENS).astype(np.int32)
        mask = np.triu(np.full((TOKENS, TOKENS), -np.inf, np.float32), 1)
        return {
            self.tokens: tokens,
            self.positions: np.arange(TOKENS, dtype=np.int32),
            self.mask: mask,
        }

    async def place(self, backends: list[aggml.Backend], cpu: aggml.Backend) -> None:
        """Place the layers on ``backends`` in equal parts, the other weights on the CPU."""
        homes = dict.fromkeys((self.embedding, self.head), cpu)
        for i, weights in enumerate(self.layers):
            homes.update(dict.fromkeys(weights, backends[i * len(backends) // LAYERS]))
        for tensor, home in homes.items():
            home.alloc([tensor], usage="weights")
            await home.set(tensor, self.values[tensor])


async def rate(
    n_devices: int, batches: int, stage_ms: float
) -> tuple[float, list[F32], aggml.Trace, str]:
    """Measure batches per second on ``n_devices``; half the model takes ``stage_ms`` on each."""
    decoder = Decoder()
    work = sum(operations(node) for node in decoder.graph.nodes)
    speed = work / 2 / (stage_ms / 1e3)
    devices = [SimDevice(f"SIM{i}", speed=speed, bandwidth=4e9) for i in range(n_devices)]
    backends: list[aggml.Backend] = [device.backend() for device in devices]
    cpu = aggml.get_device("CPU").backend()
    await decoder.place(backends, cpu)
    async with Scheduler([*backends, cpu], parallel=IN_FLIGHT, max_in_flight=IN_FLIGHT) as sched:
        await sched.prepare(decoder.graph)
        results: dict[int, F32] = {}
        done: list[float] = []

        async def receive(k: int, future: aggml.Future[F32]) -> None:
            results[k] = await future
            done.append(time.perf_counter())

        with aggml.trace() as trace:
            async with anyio.create_task_group() as tasks:
                for k in range(batches):
                    future = await sched.submit(decoder.graph, decoder.inputs(k), decoder.logits)
                    tasks.start_soon(receive, k, future)
        plan = str(sched.plan(decoder.graph))
    for backend in (*backends, cpu):
        await backend.aclose()
    warm = min(2 * IN_FLIGHT, batches // 2)  # the pipeline is full from here on
    return (
        (len(done) - 1 - warm) / (done[-1] - done[warm]),
        [results[k] for k in range(batches)],
        trace,
        plan,
    )


async def compare(batches: int, stage_ms: float) -> Report:
    """The same batches on one device and on two."""
    one, expected, _, _ = await rate(1, batches, stage_ms)
    two, results, trace, plan = await rate(2, batches, stage_ms)
    right = all(np.allclose(a, b, atol=1e-4) for a, b in zip(expected, results, strict=True))
    return Report(one, two, trace, plan, right)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument(
        "--stage-ms", type=float, default=10.0, help="milliseconds that half of the model takes"
    )
    parser.add_argument(
        "--picture", default="timeline.svg", help="an .svg file to draw; '' for none"
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the plan: the device of each node, and the reason",
    )
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    args = parser.parse_args()
    seconds = 3 * args.batches * args.stage_ms / 1e3
    print(f"{args.batches} batches, one and two devices: about {seconds:.1f} s", file=sys.stderr)
    report = anyio.run(compare, args.batches, args.stage_ms, backend=args.loop)
    if args.plan:
        print(report.plan)
    print(report)
    if args.picture:
        report.trace.plot(args.picture, title="a transformer over two devices")
        print(f"timeline: {args.picture}")
    if not report.right:
        sys.exit("wrong results")


if __name__ == "__main__":
    main()
