"""A small llama on several devices at once: the logits and tokens of one, 1/n of the memory.

Here: simulated devices, the CPU twice, names, the command, devices that fail. Not here: the tests
for every device (test_conformance.py), GPUs (tests/devices/cuda/device/test_several.py).
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

import aggml
from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

IDS = [1, 40, 50, 60, 70, 90, 33, 34]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


def sims(n: int) -> list[SimDevice]:
    return [SimDevice(f"S{i}") for i in range(n)]


async def told(
    device: aggml.Device, path: Path, cache: str = "f32", steps: int = 6
) -> tuple[np.ndarray, list[int], list[int]]:
    """The logits of all positions, tokens, and the bytes that each device held before any step."""
    async with (
        device.backend(n_threads=1) as backend,
        await aggml.models.load(path, backend, ctx=256, cache=cache) as model,
    ):
        members = device.members if isinstance(device, MetaDevice) else [device]
        held = [total - free for free, total in (m.memory() for m in members)]
        logits = await model.logits(IDS)
        tokens = [t.id async for t in model.generate(IDS, max_tokens=steps)]
    return np.asarray(logits), tokens, held


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
async def test_logits_are_those_of_one_device(small: Path, n: int) -> None:
    """Each sum is made of n partial sums, which may change the last bits of f32."""
    expected, tokens, (alone,) = await told(SimDevice("ALONE"), small)
    found, same, held = await told(MetaDevice(sims(n)), small)
    assert np.abs(found - expected).max() <= 1e-4  # the logits reach 3.4
    assert same == tokens
    assert len(set(held)) == 1
    if n != 3:  # 3 divides hardly any of this model's extents
        assert max(held) <= alone / n * 1.05  # norms are on every device


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("shares", [[3, 1], [0.3, 0.45, 0.25]])
async def test_unequal_shares_have_the_logits_of_one_device(
    small: Path, shares: list[float]
) -> None:
    expected, tokens, (alone,) = await told(SimDevice("ALONE"), small)
    found, same, held = await told(MetaDevice(sims(len(shares)), shares=shares), small)
    assert np.abs(found - expected).max() <= 1e-4
    assert same == tokens
    for part, share in zip(held, shares, strict=True):
        assert abs(part / alone - share / sum(shares)) < 0.08  # norms are on every device


@pytest.mark.long
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_eight_devices_have_an_eighth_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggml.models.small.KV_HEADS", 8)
    path = write_small(tmp_path / "small.gguf")
    expected, tokens, (alone,) = await told(SimDevice("ALONE"), path)
    found, same, held = await told(MetaDevice(sims(8)), path)
    assert np.abs(found - expected).max() <= 1e-4
    assert same == tokens
    assert max(held) <= alone / 8 * 1.05


async def test_both_loops_and_a_cache_of_f16(small: Path) -> None:
    expected, tokens, _ = await told(SimDevice("ALONE"), small, "f16")
    found, same, _ = await told(MetaDevice(sims(2)), small, "f16")
    # keys that differ in a last bit may be rounded to different f16 numbers
    assert np.abs(found - expected).max() <= 1e-3
    assert same == tokens


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_cpu_twice(small: Path) -> None:
    expected, tokens, _ = await told(aggml.get_device("CPU"), small)
    found, same, _ = await told(MetaDevice([aggml.get_device("CPU")] * 2), small)
    assert np.abs(found - expected).max() <= 1e-4
    assert same == tokens


async def test_a_member_that_fails_fails_the_run_and_the_next_is_well(small: Path) -> None:
    """Whichever operation fails there is a typed error and no hang; the next run is right."""
    devices = sims(2)
    async with (
        MetaDevice(devices).backend(n_threads=1) as backend,
        await aggml.models.load(small, backend, ctx=256, cache="f32") as model,
    ):
        expected = await model.logits(IDS)
        for kind, k in product(("compute", "transfer"), (0, 1, 2, 5, 8)):
            devices[1].fail_at(k, kind)  # type: ignore[arg-type]
            with anyio.fail_after(60), pytest.raises(aggml.AggmlError) as caught:
                await model.logits(IDS)
            assert "injected fault" in str(caught.value.__cause__ or caught.value), (kind, k)
            assert (await model.logits(IDS) == expected).all()


async def test_what_a_failed_member_made_is_not_computed_with() -> None:
    """The other device must not run the nodes that depend on the failed ones."""
    devices = sims(2)
    a = aggml.new_tensor("f32", ne=(64, 32), name="blk.0.ffn_down.weight")
    b = aggml.new_tensor("f32", ne=(32, 16), name="blk.1.ffn_up.weight")
    x = aggml.new_tensor("f32", ne=(64, 3), name="x")
    y = aggml.ops.mul_mat(b, aggml.ops.silu(aggml.ops.mul_mat(a, x)))
    graph = aggml.Graph(y)
    random = np.random.default_rng(0)
    values = {t: random.normal(size=t.shape).astype(np.float32) for t in (a, b, x)}
    async with MetaDevice(devices).backend() as backend:
        backend.alloc_graph(graph)
        expected = await backend.run(graph, values, y)
        devices[0].fail_at(0, "compute")
        failed = backend.run(graph, {x: values[x]}, y)
        with pytest.raises(aggml.DeviceError, match="injected fault") as caught:
            await failed
        first = caught.value
        with pytest.raises(aggml.AggmlError) as later:
            await backend.get(y)
        assert (later.value.__cause__ or later.value) is (first.__cause__ or first) or (
            "injected fault" in str(later.value.__cause__)
        )
        assert (await backend.run(graph, {x: values[x]}, y) == expected).all()


async def test_an_abandoned_run_is_aborted_on_all(small: Path) -> None:
    devices = sims(2)
    async with (
        MetaDevice(devices).backend() as backend,
        await aggml.models.load(small, backend, ctx=256, cache="f32") as model,
    ):
        expected = await model.logits(IDS)
        with devices[1].hold(), anyio.move_on_after(0.05):
            await model.logits(IDS)
        with anyio.fail_after(60):
            assert (await model.logits(IDS) == expected).all()


def test_names() -> None:
    made = [SimDevice("JOIN0"), SimDevice("JOIN1"), SimDevice("JOIN2")]
    for device in made:
        aggml.register_device(device)
    pair = aggml.get_device("join0+JOIN1")
    assert pair.name == "JOIN0+JOIN1"
    assert pair.type is aggml.DeviceType.META
    assert aggml.get_device("JOIN0+JOIN1") is pair
    assert pair in aggml.list_devices()
    every = aggml.get_device("JOIN*")
    assert isinstance(every, MetaDevice)
    assert list(every.members) == made
    assert aggml.best_device().type is not aggml.DeviceType.META
    for name, match in (
        ("JOIN0+NONE", "no device 'NONE'"),
        ("JOIN0*", "name two devices or more"),
        ("CPU+", "no device ''"),
    ):
        with pytest.raises(aggml.InvalidArgument, match=match):
            aggml.get_device(name)
    with pytest.raises(aggml.InvalidArgument):
        MetaDevice([made[0]])
    with pytest.raises(aggml.InvalidHandle):
        MetaDevice([made[0], "JOIN1"])  # type: ignore[list-item]
    for one in (pair, every, *made):
        aggml.unregister_device(one)


@pytest.mark.long
def test_the_program(small: Path) -> None:
    def answer(device: str) -> str:
        words = ["generate", str(small), "-p", "hello", "--ctx", "256", "-n", "8"]
        command = [sys.executable, "-m", "aggml", *words, "--temperature", "0", "--device", device]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert answer("CPU+CPU") == answer("CPU")
