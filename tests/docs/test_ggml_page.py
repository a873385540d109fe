"""The code of docs/ggml-devices.md runs as it is printed, on the libraries of ggml under test.

What the page leaves to the reader is given: the folder, a model, weights. Skipped without those
libraries: make ggml-libraries, or AGGML_GGML_LIBRARIES names a folder. Not here: the blocks on
servers and on divided rows (devices/ggml/test_asynchronous.py, test_split.py).
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.ggml import builds
from docs.pages import ROOT, blocks

import aggml
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

builds.need()

PAGE = "docs/ggml-devices.md"
LOAD, PROGRAM, _, PACKED, _ = (x.code for x in blocks(PAGE) if x.language == "py")


def edited(code: str, *changes: tuple[str, str]) -> str:
    """The code with what the page leaves to the reader; each part is there once."""
    for old, new in changes:
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


async def run(code: str, names: dict[str, Any]) -> None:
    compiled = compile(
        code, str(ROOT / PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        await result


async def test_devices_are_loaded_and_compute_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds.device("CPU")
    file = write_small(tmp_path / "small.gguf")
    code = edited(
        LOAD,
        ('"build/ggml-0.3.36/bin"', repr(str(builds.folder()))),
        ('"model.gguf"', repr(str(file))),
        ("        ...\n", "        made = [x async for x in model.generate('a', max_tokens=3)]\n"),
    )
    names: dict[str, Any] = {}
    await run(code, names)
    assert "<Device ggml:CPU: " in capsys.readouterr().out
    assert names["made"]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_program_multiplies(
    loop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds.device("CPU")
    monkeypatch.setenv("GGML_BACKEND_PATH", str(builds.folder()))
    exec(edited(PROGRAM, ("anyio.run(main)", f"anyio.run(main, backend={loop!r})")), {})
    printed = capsys.readouterr().out
    assert "<Device ggml:" in printed
    assert printed.count("64.") == 6


async def test_weights_are_packed() -> None:
    device = builds.device("CPU")
    if not device.packed_buffer_types:
        pytest.skip("this build of ggml-cpu packs no weights on this processor")
    values = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    tensor, raw = aggml.new_tensor("q4_0", ne=(256, 64)), aggml.quantize(values, "q4_0")
    async with device.backend() as be:
        names: dict[str, Any] = {"device": device, "be": be, "weights": tensor, "blocks": raw}
        await run(PACKED, names)
        assert names["memory"].size >= tensor.nbytes
