"""Weights of layers are uploaded ahead while the device computes the layer before.

The device has room for two layers, the network has twelve. First each layer is uploaded and then
computed; then `Backend.prefetch` uploads the next layer beside the computation of this one. The
device is simulated, and takes real time for both.
"""

import time

import anyio
import numpy as np
import numpy.typing as npt

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice

F32 = npt.NDArray[np.float32]
WIDTH, LAYERS, COLUMNS = 256, 12, 8
PRODUCTS = WIDTH * WIDTH * COLUMNS  # of a layer


class Place:
    """Memory for the weights of a layer, and the layer's graph on them."""

    def __init__(self, compute: aggml.Backend, x: aggml.Tensor) -> None:
        self.w = aggml.new_tensor("f32", ne=(WIDTH, WIDTH), name="w")
        compute.alloc([self.w])
        # the result lies where the input lay, for the next layer
        self.graph = Graph(ops.cpy(ops.tanh(ops.mul_mat(self.w, x)), x))
        compute.alloc_graph(self.graph)


async def one_after_the_other(
    compute: aggml.Backend, places: list[Place], layers: list[F32]
) -> None:
    for i, weights in enumerate(layers):
        place = places[i % 2]
        compute.set(place.w, weights)
        compute.graph_compute(place.graph)
    await compute.synchronize()


async def ahead(
    compute: aggml.Backend, uploads: aggml.Backend, places: list[Place], layers: list[F32]
) -> None:
    compute.set(places[0].w, layers[0])
    for i in range(len(layers)):
        place, other = places[i % 2], places[(i + 1) % 2]
        coming = {other.w: layers[i + 1]} if i + 1 < len(layers) else {}
        with compute.prefetch(coming, on=uploads):
            compute.graph_compute(place.graph)
    await compute.synchronize()


async def main() -> None:
    rng = np.random.default_rng(0)
    layers = [
        rng.standard_normal((WIDTH, WIDTH), np.float32) * np.float32(1 / 16) for _ in range(LAYERS)
    ]
    start = rng.standard_normal((COLUMNS, WIDTH), np.float32)
    wanted = start
    for weights in layers:
        wanted = np.tanh(wanted @ weights.T)
    # an upload takes 8 ms; computing a layer about as long
    device = SimDevice("SIM", bandwidth=4 * WIDTH * WIDTH / 0.008, speed=2 * PRODUCTS / 0.010)
    async with device.backend() as compute, device.backend() as uploads:
        x = aggml.new_tensor("f32", ne=(WIDTH, COLUMNS), name="x")
        compute.alloc([x])
        places = [Place(compute, x), Place(compute, x)]
        for place in places:
            await compute.prepare(place.graph)

        seconds = []
        for way in ("serial", "ahead"):
            await compute.set(x, start)
            begin = time.perf_counter()
            if way == "serial":
                await one_after_the_other(compute, places, layers)
            else:
                await ahead(compute, uploads, places, layers)
            seconds.append(time.perf_counter() - begin)
            right = np.allclose(await compute.get(x), wanted, atol=1e-5)
            print(f"{way}: {seconds[-1] * 1e3:.0f} ms, right: {right}")
        begin = time.perf_counter()
        for weights in layers:
            uploads.set(places[0].w, weights)
        await uploads.synchronize()
        transfers = time.perf_counter() - begin
    hidden = (seconds[0] - seconds[1]) / transfers
    print(f"{transfers * 1e3:.0f} ms of uploads, of which {100 * hidden:.0f}% are hidden")


if __name__ == "__main__":
    anyio.run(main)
