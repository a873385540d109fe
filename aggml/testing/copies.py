"""CopyTests: copies inside a device, between its streams, to the CPU and back.

Not here: set and get (data.py).
"""

from __future__ import annotations

import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import ops
from aggml.testing.fixtures import DeviceFixtures, place, place_array, ramp, sum_on

__all__ = ["CopyTests"]


class CopyTests(DeviceFixtures):
    """A copy comes after all earlier work of both streams, and before all later work of both."""

    async def test_inside_a_stream(self, be: aggml.Backend) -> None:
        a, b = place_array(be, ramp(24).reshape(4, 6), "a"), place(be, (6, 4), name="b")
        await be.copy(a, b)
        assert np.array_equal(await be.get(b), ramp(24).reshape(4, 6))
        await be.copy(ops.view_1d(a, 6, 0), ops.view_1d(b, 6, b.nb[1]))
        assert np.array_equal((await be.get(b))[1], ramp(6))
        await be.copy(a, a)

    async def test_quantized_blocks_keep_their_bytes(self, be: aggml.Backend) -> None:
        a, b = place(be, (64,), "q8_0", "a"), place(be, (64,), "q8_0", "b")
        blocks = aggml.quantize(ramp(64), "q8_0").reshape(-1)
        be.set(a, blocks)
        await be.copy(a, b)
        assert np.array_equal(await be.get(b), blocks)

    async def test_between_streams(self, be: aggml.Backend, other: aggml.Backend) -> None:
        a, b = place_array(be, ramp(), "a"), place(other, name="b")
        with be.stream.hold():
            be.set(a, ramp(start=7))
            copied = be.copy(a, b, to=other)
            be.memset(a, 0)  # runs after the copy
            got = other.get(b)  # so does this
            await anyio.lowlevel.checkpoint()
            assert not copied.done()
            assert not got.done()
        assert np.array_equal(await got, ramp(start=7))
        assert not (await be.get(a)).any()

    async def test_the_target_is_waited_for(self, be: aggml.Backend, other: aggml.Backend) -> None:
        a, b = place_array(be, ramp(), "a"), place(other, name="b")
        with other.stream.hold():
            other.set(b, ramp(start=3))
            before = other.get(b)
            copied = be.copy(a, b, to=other)
            overwritten = be.set(a, 0 * ramp())
            await anyio.lowlevel.checkpoint()
            assert not copied.done()
            assert not overwritten.done()
        assert np.array_equal(await before, ramp(start=3))
        assert np.array_equal(await other.get(b), ramp())

    async def test_to_the_cpu_and_back(self, be: aggml.Backend, cpu: aggml.Backend) -> None:
        a, host, b = place_array(be, ramp(), "a"), place(cpu, name="host"), place(be, name="b")
        be.copy(a, host, to=cpu)
        cpu.copy(host, b, to=be)
        assert np.array_equal(await be.get(b), ramp())
        assert np.array_equal(await cpu.get(host), ramp())

    async def test_a_large_copy_to_the_cpu_and_back(
        self, be: aggml.Backend, cpu: aggml.Backend, rng: np.random.Generator
    ) -> None:
        n = 1 << 20
        x = rng.random(n, np.float32)
        a, host, b = place_array(be, x, "a"), place(cpu, (n,)), place(be, (n,), name="b")
        await be.copy(a, host, to=cpu)
        await cpu.copy(host, b, to=be)
        assert np.array_equal(await be.get(b), x)

    async def test_what_is_computed_behind_a_copy_sees_it(
        self, be: aggml.Backend, cpu: aggml.Backend
    ) -> None:
        s = sum_on(be)
        x, y = place_array(cpu, ramp(), "x"), place(cpu, name="y")
        cpu.copy(x, s.a, to=be)
        cpu.copy(x, s.b, to=be)
        be.graph_compute(s.graph)
        be.copy(s.y, y, to=cpu)
        assert np.array_equal(await cpu.get(y), 2 * ramp())

    async def test_ping_pong(self, be: aggml.Backend, cpu: aggml.Backend) -> None:
        """Fifty values pass through one tensor on each side; none is awaited before the end."""
        there, here, got = place(be), place(cpu), []
        for k in range(50):
            cpu.set(here, ramp(start=k), copy=True)
            cpu.copy(here, there, to=be)
            be.copy(there, here, to=cpu)
            got.append(cpu.get(here))
        for k, future in enumerate(got):
            assert np.array_equal(await future, ramp(start=k))

    async def test_a_failed_source_fails_the_copy(
        self, be: aggml.Backend, cpu: aggml.Backend
    ) -> None:
        a, host = place_array(be, ramp(), "a"), place_array(cpu, ramp(), "host")
        lost = LookupError("lost")
        failed = be.stream.fail(lost, writes=[a])
        copied = be.copy(a, host, to=cpu)
        got = cpu.get(host)
        for future in (failed, copied, got):
            with pytest.raises(aggml.AggmlError) as caught:
                await future
            assert caught.value.__cause__ is lost
        await cpu.set(host, ramp())
        assert np.array_equal(await cpu.get(host), ramp())

    def test_misuse(self, be: aggml.Backend, cpu: aggml.Backend) -> None:
        a, b = place(be, (6, 4)), place(be, (4, 6))
        half, host = place(be, (6, 4), "f16"), place(cpu, (6, 4))
        for src, dst in ((a, b), (a, half), (a, ops.transpose(b))):
            with pytest.raises(aggml.LayoutMismatch):
                be.copy(src, dst)
        with pytest.raises(aggml.NotAllocated):
            be.copy(a, aggml.new_tensor("f32", ne=(6, 4)))
        if not be.device.supports_buffer_type(cpu.buffer_type):
            with pytest.raises(aggml.InvalidArgument):
                be.copy(a, host)
        with pytest.raises(aggml.InvalidHandle):
            be.copy(a, b, to="CPU")  # type: ignore[arg-type]
        assert be.pending == 0
