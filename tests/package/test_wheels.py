"""The tools that build wheels: what they pass to zig, and which files they compile.

zig itself is replaced by a program that prints its arguments. Not here: building a wheel (`make
wheel`).
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
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


def test_all_portable_files_are_compiled_for_other_systems() -> None:
    systems = tool("systems")
    (rooms,) = re.findall(
        r"^set\(rooms ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE
    )
    assert list(systems.ROOMS) == rooms.split()
    table = (ROOT / "aggml/native/table/isas.def").read_text()
    arm = {f"kernels/{name}" for name in re.findall(r"AGK_ISA\((\w+),\s*ARM", table)}
    assert {*systems.SYSTEMS["aarch64-macos"]} == {*systems.ROOMS} | arm
