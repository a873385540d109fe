"""Every module compiles for every architecture: no warning, no spill. NVRTC needs no driver."""

from __future__ import annotations

import os
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from aggml.devices.cuda.compile import Cubins, compile_module, nvrtc_version, source
from aggml.devices.cuda.lowering import modules
from aggml.errors import DeviceError, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    nvrtc_version() is None, reason="nvidia-cuda-nvrtc is not installed"
)

#: All modules for all architectures take minutes: make check-cuda. Here those that differ most.
_EVERYTHING = "AGGML_CUDA_ALL" in os.environ
_ARCHS = ("75", "80", "90", "100", "120") if _EVERYTHING else ("75", "90")
_SOME = ("binary", "columns", "glu", "rows", "mul_mat_q[TYPE=Q4_K]", "quantize[TYPE=Q6_K]")


def _problems(job: tuple[str, str]) -> list[str]:
    module, arch = job
    log = compile_module(module, arch).log
    lines = [line for line in log.splitlines() if re.search(r"warning|error", line)]
    lines += [
        line
        for line in re.findall(r".*spill.*", log)
        if not re.search(r" 0 bytes spill stores, 0 bytes spill loads", line)
    ]
    return [f"{module} sm_{arch}: {line}" for line in lines]


@pytest.mark.timeout(1800 if _EVERYTHING else 120)
def test_modules_compile_without_warning_or_spill() -> None:
    jobs = [(module, arch) for arch in _ARCHS for module in (modules() if _EVERYTHING else _SOME)]
    # One process compiles one text at a time, whatever its threads do.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        found = [line for lines in pool.map(_problems, jobs, chunksize=4) for line in lines]
    assert not found, "\n".join(found)


def test_cubins_are_kept_and_found_again(tmp_path: Path) -> None:
    cubins = Cubins(tmp_path)
    assert cubins.find("glu", "80") is None
    made = cubins.get("glu", "80")
    assert made[:4] == b"\x7fELF"
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == made
    kept.write_bytes(b"kept")
    assert Cubins(tmp_path).get("glu", "80") == b"kept"
    assert Cubins(tmp_path).find("glu", "90") is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert Cubins(tmp_path / "file" / "cache").get("glu", "80")[:4] == b"\x7fELF"


def test_some_are_of_all() -> None:
    assert set(_SOME) <= set(modules())


def test_unknown_modules_are_refused() -> None:
    for name in ("nothing", "../secrets", "unary[", ""):
        with pytest.raises(InvalidArgument):
            source(name)


def test_what_the_compiler_says_is_in_the_error() -> None:
    with pytest.raises(DeviceError, match="TYPE"):
        compile_module("mul_mat_q", "80")  # without its type
