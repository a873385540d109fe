"""No kernel executes an instruction that its row of kernels.def does not ask for.

Each object of a build is disassembled. A kernel whose row lacks a feature ends the process with
SIGILL on a machine without it, where the choice takes the kernel. Here: x86. Not here: what the
kernels compute (the C programs beside this file).
"""

from __future__ import annotations

import functools
import platform
import shutil
from pathlib import Path

import instructions
import pytest

import aggml
from aggml.native import _native, cpu_mask, isas

ROOT = Path(__file__).resolve().parents[2]
FEATURES = {name: bit for name, _, bit in _native.features()}
ISAS = {name: (needs, takes) for name, needs, takes in _native.isas()}

pytestmark = [
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump (binutils)"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the instructions of x86-64"),
]


@functools.cache
def build() -> Path:
    """The newest build that is no sanitizer's."""
    builds = [
        path.parents[2]
        for path in (ROOT / "build").glob("*/CMakeFiles/aggml_base.dir/aggml")
        if not path.parents[2].name.startswith(("asan", "tsan"))
    ]
    if not builds:
        pytest.skip("no objects in build/: pip install --editable . (or make check-c) leaves them")
    return max(builds, key=lambda path: (path / "CMakeFiles").stat().st_mtime)


@functools.cache
def functions(folder: str) -> dict[str, set[str]]:
    """All functions of the objects of a folder of aggml/native that the sources still have."""
    found: dict[str, set[str]] = {}
    for path in build().glob(f"CMakeFiles/*.dir/aggml/native/{folder}/*.o"):
        if (ROOT / "aggml" / "native" / folder / path.stem).is_file():
            found |= instructions.functions_of(path)
    return found


def bits(features: set[str]) -> int:
    """The features as bits; tiles alone are those of either kind of matrix product."""
    return sum(FEATURES[name] for name in features - {"AMX"})


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
def test_a_kernel_executes_only_what_its_row_asks_for(isa: str) -> None:
    rows = [(kernel, needs) for kernel, of, needs, *_ in _native.variants() if of == isa]
    if not rows:
        pytest.skip(f"this machine has no kernels for {isa}")
    found, wrong, names = functions(f"kernels/{isa}"), {}, FEATURES.items()
    for kernel, needs in rows:
        used = bits(found[f"agk_{kernel}_{isa}"])
        if beyond := used & ~needs:
            wrong[kernel] = [name for name, bit in names if beyond & bit]
    assert wrong == {}


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
def test_the_objects_of_an_instruction_set_need_no_more_than_it_has(isa: str) -> None:
    needs, takes = ISAS[isa]
    found = functions(f"kernels/{isa}")
    if not found:
        pytest.skip(f"no objects for {isa} in {build()}")
    assert {name for name, used in found.items() if bits(used) & ~(needs | takes)} == set()


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    "folder",
    ["table", "formats", "kernels/scalar", "lower", "lower/attention", "lower/mul_mat", "runtime"],
)
def test_the_portable_files_run_on_every_processor(folder: str) -> None:
    found = functions(folder)
    assert found
    assert {name: used for name, used in found.items() if used} == {}


@pytest.mark.parametrize(
    ("name", "operands", "encoding", "feature"),
    [
        ("vcvtph2ps", "(%rdi),%ymm0", "", "F16C"),
        ("vcvtph2ps", "(%rdi),%zmm0", "", "AVX512"),
        ("vcvtps2ph", "$0x4,%xmm17,(%rdi)", "", "AVX512"),
        ("vfmadd231ps", "%ymm1,%ymm2,%ymm3", "", "FMA"),
        ("vpaddd", "%ymm1,%ymm2,%ymm3", "", "AVX2"),
        ("vpaddd", "%ymm1,%ymm2,%ymm3{%k1}", "", "AVX512"),
        ("vpdpbusd", "%ymm1,%ymm2,%ymm3", "vex", "AVX_VNNI"),
        ("vpdpbusd", "%ymm1,%ymm2,%ymm3", "", "AVX512_VNNI"),
        ("vdpbf16ps", "%zmm1,%zmm2,%zmm3", "", "AVX512_BF16"),
        ("vpermi2b", "%zmm1,%zmm2,%zmm3", "", "AVX512_VBMI"),
        ("tdpbssd", "%tmm1,%tmm2,%tmm3", "", "AMX_INT8"),
        ("tileloadd", "(%rax,%rbx,1),%tmm0", "", "AMX"),
        ("pshufb", "%xmm1,%xmm2", "", "AVX2"),
        ("kmovd", "%k1,%eax", "", "AVX512"),
        ("addps", "%xmm1,%xmm2", "", None),
        ("pand", "%xmm1,%xmm2", "", None),
        ("test", "%eax,%eax", "", None),
    ],
)
def test_an_instruction_tells_its_feature(
    name: str, operands: str, encoding: str, feature: str | None
) -> None:
    assert instructions.feature_of(name, operands, encoding) == feature


@pytest.mark.parametrize("name", ["shlx", "andn", "vpopcntd", "pdep", "vpmadd52luq"])
def test_an_instruction_that_nothing_is_compiled_for_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        instructions.feature_of(name, "%eax,%ebx,%ecx")


def test_the_former_name_of_an_instruction_set_is_understood() -> None:
    if "amd512" in isas():
        assert cpu_mask("zen4") == cpu_mask("amd512")
    else:
        with pytest.raises(aggml.InvalidArgument, match="amd512"):
            cpu_mask("zen4")
