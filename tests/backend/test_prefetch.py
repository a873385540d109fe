"""Backend.prefetch: uploads beside a computation, after what was queued before, before what comes.

Not here: the program that measures what it hides (examples/prefetch_weights.py).
"""

from __future__ import annotations

import numpy as np
import pytest

import aggml
from aggml import DeviceError, Graph, InvalidArgument, InvalidState, ops
from aggml.devices.sim import SimDevice


class Place:
    """A layer that multiplies x, where it lies, by its weights."""

    def __init__(self, be: aggml.Backend, x: aggml.Tensor) -> None:
        self.w = aggml.new_tensor("f32", ne=(64,), name="w")
        be.alloc([self.w])
        self.graph = Graph(ops.cpy(ops.mul(x, self.w), x))
        be.alloc_graph(self.graph)


@pytest.mark.parametrize(("bandwidth", "speed"), [(4 * 64 / 0.004, 1e9), (1e9, 64 / 0.002)])
async def test_layers_are_computed_with_their_own_weights(bandwidth: float, speed: float) -> None:
    rng = np.random.default_rng(3)
    layers = [rng.uniform(0.5, 2, 64).astype(np.float32) for _ in range(9)]
    device = SimDevice("SIM", bandwidth=bandwidth, speed=speed)
    async with device.backend() as compute, device.backend() as uploads:
        x = aggml.new_tensor("f32", ne=(64,), name="x")
        compute.alloc([x])
        places = [Place(compute, x), Place(compute, x)]
        compute.set(x, np.ones(64, np.float32))
        compute.set(places[0].w, layers[0])
        for i, _ in enumerate(layers):
            other = places[(i + 1) % 2]
            coming = {other.w: layers[i + 1]} if i + 1 < len(layers) else {}
            with compute.prefetch(coming, on=uploads) as futures:
                compute.graph_compute(places[i % 2].graph)
            assert len(futures) == len(coming)
        found = await compute.get(x)
    assert np.allclose(found, np.prod(layers, axis=0))


async def test_the_upload_runs_beside_the_block_and_what_comes_after_waits() -> None:
    device = SimDevice("SIM")
    async with device.backend() as compute, device.backend() as uploads:
        x = aggml.new_tensor("f32", ne=(64,), name="x")
        compute.alloc([x])
        place, other = Place(compute, x), Place(compute, x)
        await compute.set(x, np.ones(64, np.float32))
        await compute.set(place.w, np.full(64, 3, np.float32))
        before = compute.graph_compute(place.graph)
        with compute.prefetch({other.w: np.full(64, 2, np.float32)}, on=uploads) as (upload,):
            beside = compute.graph_compute(place.graph)
        after = compute.graph_compute(other.graph)
        await after
        assert before.done()
        assert beside.done()
        assert upload.done()
        assert (await compute.get(x) == 18).all()


async def test_a_failed_upload_fails_what_reads_it_and_nothing_else() -> None:
    device = SimDevice("SIM")
    async with device.backend() as compute, device.backend() as uploads:
        x = aggml.new_tensor("f32", ne=(64,), name="x")
        compute.alloc([x])
        place, other = Place(compute, x), Place(compute, x)
        await compute.set(x, np.ones(64, np.float32))
        await compute.set(place.w, np.ones(64, np.float32))
        device.fail_at(0, "transfer")
        with compute.prefetch({other.w: np.ones(64, np.float32)}, on=uploads) as (upload,):
            beside = compute.graph_compute(place.graph)
        after = compute.graph_compute(other.graph)
        await beside
        for future in (upload, after):
            with pytest.raises(DeviceError):
                await future


async def test_what_cannot_be_is_refused(cpu: aggml.Backend) -> None:
    device, elsewhere = SimDevice("SIM"), SimDevice("OTHER")
    async with device.backend() as compute, elsewhere.backend() as far:
        x = aggml.new_tensor("f32", ne=(64,), name="x")
        compute.alloc([x])
        for on in (compute, far, cpu, None, "x"):
            with (
                pytest.raises(InvalidArgument, match=r"\[Backend.prefetch\] on is"),
                compute.prefetch({x: np.ones(64, np.float32)}, on=on),  # type: ignore[arg-type]
            ):
                raise AssertionError
        uploads = device.backend()
        with (
            pytest.raises(aggml.LayoutMismatch),
            compute.prefetch({x: np.ones(63, np.float32)}, on=uploads),
        ):
            raise AssertionError
        await uploads.aclose()
        with pytest.raises(InvalidState), compute.prefetch({}, on=uploads):
            raise AssertionError
        await compute.set(x, np.ones(64, np.float32))  # it still works
