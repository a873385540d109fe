"""Modules compile without warning or spill, and are kept. Not here: all of them (cubins.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from devices.cuda import cubins
from devices.cuda.cubins import problems

from aggml.devices.cuda.compile import Cubins, compile_module, nvrtc_version, source
from aggml.devices.cuda.lowering import modules
from aggml.errors import DeviceError, InvalidArgument

pytestmark = pytest.mark.skipif(
    nvrtc_version() is None, reason="nvidia-cuda-nvrtc is not installed"
)

#: Compiling all modules for all architectures takes half an hour of one core (make check-cuda).
#: Here only those that differ most.
_ARCHS = ("75", "90")
_SOME = ("binary", "columns", "glu", "rows", "mul_mat_q[TYPE=Q4_K]", "quantize[TYPE=Q6_K]")


@pytest.mark.slow
def test_modules_compile_without_warning_or_spill() -> None:
    found = [line for arch in _ARCHS for module in _SOME for line in problems((module, arch))]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_what_passed_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cubins, "_NOTES", tmp_path)
    jobs = [("glu", "90"), ("binary", "90")]
    assert cubins.check(jobs, processes=1, seconds=-1) == ([], 2)
    assert cubins.check(jobs[:1], processes=1) == ([], 0)
    (note,) = tmp_path.iterdir()
    assert note.name.startswith("glu-sm90-")
    assert cubins.check(jobs, processes=1, seconds=-1) == ([], 1)


def test_cubins_are_kept_and_found_again(tmp_path: Path) -> None:
    cache = Cubins(tmp_path)
    assert cache.find("glu", "80") is None
    made = cache.get("glu", "80")
    assert made[:4] == b"\x7fELF"
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == made
    kept.write_bytes(b"kept")
    assert Cubins(tmp_path).get("glu", "80") == b"kept"
    assert Cubins(tmp_path).find("glu", "90") is None


def test_a_shipped_cubin_counts_whichever_nvrtc_made_it(tmp_path: Path) -> None:
    kept, shipped = tmp_path / "kept", tmp_path / "shipped"
    Cubins(kept).get("glu", "80")
    (made,) = kept.iterdir()
    shipped.mkdir()
    other = made.name.replace(f"nvrtc{nvrtc_version()}", "nvrtc12.1")
    assert other != made.name
    (shipped / other).write_bytes(b"shipped")
    assert Cubins(kept, shipped).find("glu", "80") == b"shipped"
    assert Cubins(kept, shipped).find("glu", "90") is None
    # the one that is kept was made by another NVRTC
    assert Cubins(shipped, tmp_path).find("glu", "80") is None


def test_the_builtins_beside_nvrtc_are_loaded_with_it() -> None:
    """NVRTC of the 13.0 wheel does not find its builtins library by itself."""
    compile_module.__globals__["_nvrtc"]()
    loaded = Path("/proc/self/maps").read_text()
    library = next(line.split()[-1] for line in loaded.splitlines() if "libnvrtc.so" in line)
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so.*"):
        assert str(builtins.resolve()) in loaded or str(builtins) in loaded


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
        compile_module("mul_mat_q", "80")  # the macro for its type is missing


def test_the_notebook_tells_how_many_modules_there_are() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/notebook/cuda-without-a-gpu.md").read_text()
    n = len(modules())
    assert re.findall(r"all (\d+) modules for [^(]*\((\d+) cubins\)", text) == [
        (str(n), str(5 * n))
    ]
    assert re.findall(r"(\d+) cubins for sm_90", text) == [str(n)]
