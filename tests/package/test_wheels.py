"""The tools that build wheels: what they pass to zig, which files and instruction sets they build.

zig itself is replaced by a program that prints its arguments. Not here: building a wheel (`make
wheel`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> Any:
    path = ROOT / "tools" / "wheels" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"wheels_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls the wrapper of a target; gives what it passed on."""
    shown = tmp_path / "show"
    shown.write_text('#!/bin/sh\nfor a do echo "$a"; done\n')
    shown.chmod(0o755)
    build = tool("build")
    monkeypatch.setattr(sys, "executable", str(shown))

    def call(target: str, *given: str) -> list[str]:
        build.wrapper(tmp_path / "cc", "cc", build.TARGETS[target].triple)
        done = subprocess.run([tmp_path / "cc", *given], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return call


def test_a_compiler_gets_its_target_and_the_arguments_as_they_are(compiler: Any) -> None:
    given = ["-O3", "-DNAME=a b", "-c", "it's here.c", "-o", "x.o"]
    passed = compiler("musllinux_1_2_x86_64", *given)
    assert passed == ["-m", "ziglang", "cc", "-target", "x86_64-linux-musl", *given]
    assert compiler("manylinux_2_28_aarch64", "x.c")[4:] == ["aarch64-linux-gnu.2.28", "x.c"]


@pytest.mark.parametrize("name", ["CMakeCCompilerId.c", "CMakeCXXCompilerId.cpp"])
def test_a_compiler_is_known_without_linking(compiler: Any, name: str) -> None:
    assert compiler("musllinux_1_2_x86_64", name)[5:] == ["-c", name]


def test_extensions_of_arm_have_the_names_of_zig(compiler: Any) -> None:
    passed = compiler("musllinux_1_2_aarch64", "-march=armv8.2-a+dotprod+i8mm", "x.c")
    assert passed[5:] == ["-mcpu=generic+v8_2a+dotprod+i8mm", "x.c"]


@pytest.mark.parametrize("target", tool("build").TARGETS)
def test_the_questions_of_cmake_link_nothing_for_musl(target: str, tmp_path: Path) -> None:
    build = tool("build")
    text = build.toolchain(build.TARGETS[target], tmp_path).read_text()
    assert ("STATIC_LIBRARY" in text) == target.startswith("musl")


def test_a_wrapper_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    """Else ccache would take it for another compiler."""
    build = tool("build")
    build.wrapper(tmp_path / "cc", "cc", "x86_64-linux-musl")
    os.utime(tmp_path / "cc", ns=(1, 1))
    build.wrapper(tmp_path / "cc", "cc", "x86_64-linux-musl")
    assert (tmp_path / "cc").stat().st_mtime_ns == 1
    build.wrapper(tmp_path / "cc", "cc", "aarch64-linux-musl")
    assert (tmp_path / "cc").stat().st_mtime_ns != 1
    assert "aarch64-linux-musl" in (tmp_path / "cc").read_text()


#: The choice of instruction sets without a compiler: what would be built is printed.
CHOICE = """
cmake_minimum_required(VERSION 3.18...4.3)
project(choice LANGUAGES NONE)
set(native {native})
include({isa})
function(aggml_isa name)
  message(STATUS "chosen ${{name}}")
endfunction()
function(aggml_isas_of_machine result)
  set(${{result}} "scalar;avx2" PARENT_SCOPE)
endfunction()
aggml_isas(${{native}}/table/isas.def)
"""


def choice(folder: Path, wanted: str) -> subprocess.CompletedProcess[str]:
    scripts = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake", path=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("cmake is not installed")
    native, isa = ROOT / "aggml" / "native", ROOT / "cmake" / "isa.cmake"
    (folder / "CMakeLists.txt").write_text(CHOICE.format(native=native, isa=isa))
    command = [cmake, "-S", str(folder), "-B", str(folder / "built"), f"-DAGGML_ISAS={wanted}"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("avx2", {"avx2"}),
        ("avx2,avxvnni", {"avx2", "avxvnni"}),
        ("native", {"avx2"}),
        ("scalar", set()),
        (
            "all",
            {
                *re.findall(
                    r"AGK_ISA\((\w+),\s*(?:X86|ARM)",
                    (ROOT / "aggml/native/table/isas.def").read_text(),
                )
            },
        ),
    ],
)
def test_instruction_sets_are_chosen_by_name(wanted: str, names: set[str], tmp_path: Path) -> None:
    done = choice(tmp_path, wanted)
    assert done.returncode == 0, done.stderr
    assert {*re.findall(r"^-- chosen (\w+)$", done.stdout, re.MULTILINE)} == names


def test_an_instruction_set_that_there_is_not_is_refused_by_its_name(tmp_path: Path) -> None:
    done = choice(tmp_path, "avx2,avx3")
    assert done.returncode != 0
    assert "AGGML_ISAS is avx2,avx3: expected all, native, or some of" in done.stderr


def test_the_lowest_version_of_a_package_is_the_highest_that_somebody_asks_for() -> None:
    asked = [
        "anyio>=4.8",
        "numpy",
        "anyio>=4.12",
        "anyio>=4.9",
        "hypercorn[trio]>=0.17",
        "torch==2.1",
    ]
    asked.append("ray[data,serve]>=2.50; python_version < '3.15'")
    asked.append("openai[realtime]>=1.82,!=1.99.2")
    expected = {"anyio": "4.12", "hypercorn": "0.17", "openai": "1.82", "ray": "2.50"}
    assert tool("lowest").lowest(asked) == expected


def test_all_portable_files_are_compiled_for_other_systems() -> None:
    systems = tool("systems")
    (rooms,) = re.findall(
        r"^set\(rooms ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    assert list(systems.ROOMS) == rooms.split()
    table = (ROOT / "aggml/native/table/isas.def").read_text()
    arm = {f"kernels/{name}" for name in re.findall(r"AGK_ISA\((\w+),\s*ARM", table)}
    assert {*systems.SYSTEMS["aarch64-macos"]} == {*systems.ROOMS} | arm


def test_an_environment_over_a_layered_one_sees_what_lies_below_it(tmp_path: Path) -> None:
    """And no editable installation: those are what another build is checked without."""
    lowest, middle, top = (tmp_path / name for name in ("lowest", "middle", "top"))
    venv.create(middle, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(middle)}))
    for folder, name in ((lowest, "deep"), (packages, "between"), (tmp_path / "here", "edited")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text("")
    (packages / "layered.pth").write_text(f"{lowest}\n")
    (packages / "edited.pth").write_text(f"{tmp_path / 'here'}\n")
    make = [str(middle / "bin" / "python"), str(ROOT / "tools" / "layered_venv.py"), str(top)]
    subprocess.run(make, check=True)

    names = ("deep", "between", "edited")
    code = f"import importlib.util as u; print(*[bool(u.find_spec(n)) for n in {names}])"
    outside = [str(top / "bin" / "python"), "-I", "-c", code]
    found = subprocess.run(outside, check=True, capture_output=True, text=True).stdout.split()
    assert found == ["True", "True", "False"]
