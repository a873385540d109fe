"""A server that goes away: typed errors at once, the rest of the process goes on.

Not here: what cannot be loaded (test_libraries.py).
"""

from __future__ import annotations

import anyio
import numpy as np
import pytest
from devices.ggml import builds

import aggml
import aggml.devices.ggml as ggml
from aggml import Graph, ops

N = 1024


async def test_a_server_that_is_killed_while_it_computes() -> None:
    with builds.server() as (process, devices), builds.server() as (_, others):
        be, other = devices[0].backend(), others[0].backend()
        w, x = aggml.new_tensor("f32", ne=(N, N)), aggml.new_tensor("f32", ne=(N, N))
        y = x
        for _ in range(100):
            y = ops.mul_mat(w, y)
        graph = Graph(y)
        be.alloc([w, x])
        be.alloc_graph(graph)
        await be.set(w, np.zeros((N, N), np.float32))
        await be.set(x, np.zeros((N, N), np.float32))
        tensor = aggml.new_tensor("f32", ne=(4,))
        other.alloc([tensor])
        await other.set(tensor, np.arange(4, dtype=np.float32))
        computed, got = be.graph_compute(graph), be.get(y)
        assert not computed.done()
        process.kill()
        with anyio.fail_after(60):
            for future in (computed, got):
                with pytest.raises(aggml.DeviceError, match="the server has gone"):
                    await future
        with pytest.raises(aggml.InvalidState, match="lost"):
            be.set(x, np.zeros((N, N), np.float32))
        with pytest.raises(aggml.DeviceError):
            devices[0].backend()
        with pytest.raises(aggml.DeviceError):
            devices[0].buffer_type.alloc_buffer(64)
        assert devices[0].memory() == (0, 0)
        with pytest.raises(aggml.BackendLoadError, match="another form"):
            ggml.connect(devices[0].description)
        assert np.array_equal(await other.get(tensor), np.arange(4, dtype=np.float32))
        await be.aclose()
        await other.aclose()


@pytest.mark.parametrize("what", ["set", "get"])
async def test_a_server_that_is_killed_while_bytes_cross(what: str) -> None:
    """Tens of megabytes are being sent; operations queued after them fail, too."""
    data = np.ones((4 * N, 4 * N), np.float32)
    with builds.server() as (process, devices):
        be = devices[0].backend()
        tensor = aggml.new_tensor("f32", ne=(4 * N, 4 * N))
        be.alloc([tensor])
        await be.set(tensor, data)
        futures = [be.set(tensor, data) if what == "set" else be.get(tensor) for _ in range(20)]
        process.kill()
        failed = 0
        with anyio.fail_after(60):
            for future in futures:
                try:
                    await future
                except aggml.DeviceError:
                    failed += 1
        assert failed > 0
        with pytest.raises(aggml.InvalidState, match="lost"):
            be.get(tensor)
        await be.aclose()
    assert np.array_equal(data, np.ones_like(data))


async def test_a_server_that_is_killed_while_nothing_runs() -> None:
    with builds.server() as (process, devices):
        be = devices[0].backend()
        tensor = aggml.new_tensor("f32", ne=(4,))
        be.alloc([tensor])
        await be.set(tensor, np.zeros(4, np.float32))
        process.kill()
        process.wait()
        with anyio.fail_after(60), pytest.raises(aggml.DeviceError, match="the server has gone"):
            await be.get(tensor)
        await be.aclose()
