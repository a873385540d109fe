"""Experts are uploaded ahead: those that the next layer's router will probably name.

The weights of all experts lie in host memory; the device has room for some of each layer. A layer's
router names its experts only when its input is known. But the input changes little from layer to
layer, so the next router, asked one layer early, names most of them: they are uploaded while this
layer is computed, and stay until others need their place. The device is simulated, and takes real
time for both.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator

import anyio
import numpy as np
import numpy.typing as npt

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
WIDTH, LAYERS, TOKENS = 64, 6, 4
EXPERTS, USED, ROOM = 16, 2, 6  # of a layer: all, for a token, on the device
UPLOAD, COMPUTE = 0.020, 0.050  # seconds of an expert's weights, and of a layer's experts
RNG = np.random.default_rng(0)


def weights(*shape: int) -> F32:
    return RNG.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))


class Layer:
    """The router and the experts of a layer in host memory, and its room on the device."""

    def __init__(self, compute: aggml.Backend, x: aggml.Tensor) -> None:
        self.router, self.experts = weights(EXPERTS, WIDTH), weights(EXPERTS, WIDTH, WIDTH)
        self.kept: OrderedDict[int, int] = OrderedDict()  # the place of each expert, oldest first
        stack = aggml.new_tensor("f32", ne=(WIDTH, WIDTH, ROOM), name="stack")
        self.ids = aggml.new_tensor("i32", ne=(USED, 1), name="ids").set_input()
        compute.alloc([stack])
        self.places = [
            ops.view_2d(stack, WIDTH, WIDTH, stack.nb[1], i * stack.nb[2]) for i in range(ROOM)
        ]
        y = ops.mul_mat_id(stack, ops.reshape_3d(x, WIDTH, 1, 1), self.ids)
        parts = [ops.view_2d(y, WIDTH, 1, y.nb[2], i * y.nb[1]) for i in range(USED)]
        more = ops.scale(ops.tanh(ops.add(parts[0], parts[1])), 0.2)
        self.graph = Graph(ops.cpy(ops.add(x, more), x))
        compute.alloc_graph(self.graph)

    def named(self, x: F32) -> Ids:
        """The experts that the router names."""
        return np.argsort(-(self.router @ x), kind="stable")[:USED].astype(np.int32)

    def bring(self, wanted: Ids) -> Iterator[tuple[aggml.Tensor, F32]]:
        """What has to be uploaded for these experts; the ones used longest ago make room."""
        for e in map(int, wanted):
            if e in self.kept:
                self.kept.move_to_end(e)
                continue
            place = len(self.kept)
            if place == ROOM:
                _, place = self.kept.popitem(last=False)
            self.kept[e] = place
            yield self.places[place], self.experts[e]


class Run:
    """Tokens through all layers, and how many experts were uploaded late and ahead."""

    def __init__(self, compute: aggml.Backend, uploads: aggml.Backend) -> None:
        self.compute, self.uploads = compute, uploads
        self.x = aggml.new_tensor("f32", ne=(WIDTH, 1), name="x")
        compute.alloc([self.x])
        self.layers = [Layer(compute, self.x) for _ in range(LAYERS)]
        self.late = self.ahead = 0

    async def token(self, start: F32, *, ahead: bool) -> F32:
        """The result of the last layer for one token."""
        compute, x = self.compute, start
        compute.set(self.x, start[None])
        for i, layer in enumerate(self.layers):
            ids = layer.named(x)
            for place, expert in layer.bring(ids):
                self.late += 1
                compute.set(place, expert)
            coming: dict[aggml.Tensor, F32] = {}
            if ahead and i + 1 < LAYERS:
                following = self.layers[i + 1]
                coming = dict(following.bring(following.named(x)))
                self.ahead += len(coming)
            compute.set(layer.ids, np.array([[layer.kept[int(e)] for e in ids]], np.int32))
            with compute.prefetch(coming, on=self.uploads):
                compute.graph_compute(layer.graph)
            x = (await compute.get(self.x))[0]
        return x


def expected(layers: list[Layer], x: F32) -> F32:
    for layer in layers:
        ids = layer.named(x)
        more = np.tanh(sum(layer.experts[int(e)] @ x for e in ids))
        x = (x + np.float32(0.2) * more).astype(np.float32)
    return x


async def main() -> None:
    work = 2 * WIDTH * WIDTH * USED
    device = SimDevice("SIM", bandwidth=4 * WIDTH * WIDTH / UPLOAD, speed=work / COMPUTE)
    tokens = [weights(1, WIDTH)[0] for _ in range(TOKENS)]
    async with device.backend() as compute, device.backend() as uploads:
        run = Run(compute, uploads)
        seconds, late = [], []
        for ahead in (False, True):
            for layer in run.layers:
                layer.kept.clear()
            run.late = run.ahead = 0
            begin = time.perf_counter()
            found = [await run.token(x, ahead=ahead) for x in tokens]
            seconds.append(time.perf_counter() - begin)
            late.append(run.late)
            right = np.allclose(found, [expected(run.layers, x) for x in tokens], atol=1e-3)
            how = "ahead" if ahead else "on demand"
            print(f"{how}: {seconds[-1]:.2f} s, right: {right}, "
                  f"{run.late} experts uploaded late, {run.ahead} ahead")  # fmt: skip
    used = LAYERS * TOKENS * USED
    hidden = (seconds[0] - seconds[1]) / (late[0] * UPLOAD)
    print(f"{used - late[0]} of {used} experts were there already")
    print(f"of the time of the other uploads {100 * hidden:.0f}% are hidden")


if __name__ == "__main__":
    anyio.run(main)
