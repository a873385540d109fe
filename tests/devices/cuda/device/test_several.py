"""Several GPUs as one device, on the fake driver: 2 and 8, each number in a process of its own.

Here: a small llama's logits and tokens against those of one GPU, memory, a kernel that fails.
Not here: how graphs are divided (tests/devices/meta).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices.cuda.fake_driver import ON_FAKE

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import anyio, numpy as np
import aggml
from devices.cuda.fake_driver import Fake, HostKernels
fake = Fake()
from aggml.devices.cuda import CUDADevice, driver
from aggml.devices.meta import MetaDevice
from aggml.models import small

small.LAYERS, small.WIDTH, small.INNER, small.KV_HEADS = 2, 128, 256, 8
IDS = [1, 40, 50, 60, 70]

async def told(device, path, held=lambda: None):
    async with (
        device.backend() as backend,
        await aggml.models.load(path, backend, ctx=256, cache="f32") as model,
    ):
        bytes_held = held()
        logits = await model.logits(IDS)
        return logits, [t.id async for t in model.generate(IDS, max_tokens=4)], bytes_held

async def main():
    n = driver.probe()
    path = small.write_small({tmp!r})
    gpus = [CUDADevice(driver.facts(i), HostKernels()) for i in range(n)]
    expected, tokens, (alone,) = await told(gpus[0], path, lambda: [gpus[0].memory()[0]])
    together = MetaDevice(gpus)
    found, same, held = await told(together, path, lambda: [g.memory()[0] for g in gpus])
    assert np.abs(found - expected).max() <= 2e-3, np.abs(found - expected).max()
    assert same == tokens, (same, tokens)
    assert fake.counter("wild") == 0
    print("difference", np.abs(found - expected).max(), "free", held)
    if n == 2:
        async with (
            together.backend() as backend,
            await aggml.models.load(path, backend, ctx=256, cache="f32") as model,
        ):
            await model.logits(IDS)
            fake.fail("cuLaunchKernel", 719)
            with anyio.fail_after(60):
                try:
                    await model.logits(IDS)
                except aggml.models.EngineError as failure:
                    error = failure.__cause__
                    print("told", type(error).__name__, error)
                else:
                    raise SystemExit("nothing failed")

for loop in ("asyncio", "trio"):
    anyio.run(main, backend=loop)
"""


@pytest.mark.skipif(not ON_FAKE, reason="a machine with two GPUs: see docs/cuda.md")
@pytest.mark.parametrize("n", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_llama_on_several(n: int, tmp_path: Path) -> None:
    program = PROGRAM.format(
        tests=str(Path(__file__).resolve().parents[3]), tmp=str(tmp_path / "small.gguf")
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"FAKE_CUDA_DEVICES": str(n)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout, done.stderr[-3000:])  # noqa: T201 pytest shows it with a failure
    assert done.returncode == 0
