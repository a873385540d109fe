"""Instruction sets under ggml's names, compared with the system's flags: FT-01 to FT-27."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import aggml
from aggml.devices.cpu import CPUFeatures, compiled_features, isas, usable_features
from aggml.native import _native, cpu_mask

CPUINFO = Path("/proc/cpuinfo")
# Names of the flags in /proc/cpuinfo.
X86 = {
    "sse3": {"pni"},
    "ssse3": {"ssse3"},
    "avx": {"avx"},
    "avx_vnni": {"avx_vnni"},
    "avx2": {"avx2"},
    "bmi2": {"bmi2"},
    "f16c": {"f16c"},
    "fma": {"fma"},
    "avx512": {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"},
    "avx512_vbmi": {"avx512vbmi"},
    "avx512_vnni": {"avx512_vnni"},
    "avx512_bf16": {"avx512_bf16"},
    "amx_int8": {"amx_tile", "amx_int8"},
}
ARM = {
    "neon": {"asimd"},
    "arm_fma": {"asimd"},
    "fp16_va": {"asimdhp"},
    "dotprod": {"asimddp"},
    "matmul_int8": {"i8mm"},
    "sve": {"sve"},
    "sme": {"sme"},
    "sme2": {"sme2"},
}
ELSEWHERE = {"riscv_v": "riscv64", "vsx": "ppc64le", "vxe": "s390x", "wasm_simd": "wasm32"}
BUILT = {"llamafile"}  # it tells how the library was built, not what the machine can do
LENGTHS = {"sve_cnt": "sve", "rvv_vlen": "riscv_v"}


def flags() -> set[str]:
    """The processor features that the kernel of the system lists as usable."""
    for line in CPUINFO.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


def test_every_name_is_accounted_for() -> None:
    assert {*X86, *ARM, *ELSEWHERE, *BUILT, *LENGTHS} == set(CPUFeatures._fields)


@pytest.mark.feature("FT-01")
@pytest.mark.feature("FT-02")
@pytest.mark.feature("FT-03")
@pytest.mark.feature("FT-04")
@pytest.mark.feature("FT-05")
@pytest.mark.feature("FT-06")
@pytest.mark.feature("FT-07")
@pytest.mark.feature("FT-08")
@pytest.mark.feature("FT-09")
@pytest.mark.feature("FT-10")
@pytest.mark.feature("FT-11")
@pytest.mark.feature("FT-12")
@pytest.mark.feature("FT-13")
@pytest.mark.parametrize("name", X86)
def test_x86(name: str) -> None:
    wanted = platform.machine() == "x86_64" and X86[name] <= flags()
    assert getattr(usable_features(), name) is wanted


@pytest.mark.feature("FT-14")
@pytest.mark.feature("FT-15")
@pytest.mark.feature("FT-16")
@pytest.mark.feature("FT-17")
@pytest.mark.feature("FT-18")
@pytest.mark.feature("FT-19")
@pytest.mark.feature("FT-21")
@pytest.mark.parametrize("name", ARM)
def test_arm(name: str) -> None:
    wanted = platform.machine() == "aarch64" and ARM[name] <= flags()
    assert getattr(usable_features(), name) is wanted


@pytest.mark.feature("FT-22")
@pytest.mark.feature("FT-24")
@pytest.mark.feature("FT-25")
@pytest.mark.feature("FT-26")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_machines_have_is_not_here(name: str) -> None:
    if platform.machine() != ELSEWHERE[name]:
        assert getattr(usable_features(), name) is False
        assert getattr(compiled_features(), name) is False


@pytest.mark.feature("FT-20")
@pytest.mark.feature("FT-23")
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_vectors_are_bytes_or_0(name: str) -> None:
    features = usable_features()
    length = getattr(features, name)
    assert type(length) is int
    assert (length > 0) == getattr(features, LENGTHS[name])
    assert length % 16 == 0
    assert getattr(compiled_features(), name) == 0


@pytest.mark.feature("FT-27")
def test_products_in_tiles_are_built_in() -> None:
    tiles = [name for name, *_ in _native.variants() if "tile" in name]
    assert compiled_features().llamafile is bool(tiles)


def test_what_is_compiled_in_follows_from_the_kernels() -> None:
    """`compiled_features` lists what was compiled, whether or not this machine can run it."""
    sets = {isa for _, isa, _, _ in _native.variants()}
    compiled = compiled_features()
    assert compiled.avx2 is ("avx2" in sets)
    assert compiled.avx512 is ("avx512" in sets)
    if compiled.avx512:
        assert compiled.avx2
    if compiled.avx2:
        assert compiled.avx
        assert compiled.ssse3
        assert compiled.sse3
        assert compiled.fma
        assert compiled.f16c
    assert not compiled.bmi2  # no source file is compiled with it


def test_what_is_chosen_is_usable() -> None:
    usable = usable_features()
    assert usable.avx2 >= ("avx2" in isas())
    assert usable.avx512 >= ("avx512" in isas())


@pytest.mark.feature("RG-21")
@pytest.mark.feature("CP-09")
@pytest.mark.feature("RG-04")
def test_the_family_of_the_cpu_tells_what_it_uses() -> None:
    family = aggml.get_family("CPU")
    assert [device.name for device in family.devices] == ["CPU"]
    listed = family.features()
    compiled, usable = compiled_features(), usable_features()
    for name in CPUFeatures._fields:
        told = listed.get(name.upper())
        if name in LENGTHS:
            assert told == (str(getattr(usable, name)) if getattr(usable, name) else None)
        else:
            assert told == ("1" if getattr(compiled, name) and getattr(usable, name) else None)
    features = family.extension("ggml_backend_get_features")
    assert features is not None
    assert features() == listed


@pytest.mark.feature("RG-04")
def test_extension_functions_of_the_cpu() -> None:
    family = aggml.get_family("CPU")
    set_n_threads = family.extension("ggml_backend_set_n_threads")
    assert set_n_threads is not None
    with family.device(0).backend() as be:
        set_n_threads(be, 3)
        assert be.n_threads == 3  # type: ignore[attr-defined]
    new, free = (family.extension(f"ggml_threadpool_{x}") for x in ("new", "free"))
    assert new is not None
    assert free is not None
    pool = new(aggml.ThreadPoolParams(2))
    assert pool.n_threads == 2
    free(pool)
    assert family.extension("ggml_backend_comm_init") is None


def test_the_environment_names_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGGML_ISA", raising=False)
    everything = cpu_mask(None)
    monkeypatch.setenv("AGGML_ISA", "")
    assert cpu_mask(None) == everything
    monkeypatch.setenv("AGGML_ISA", "scalar")
    assert cpu_mask(None) == cpu_mask("scalar")
    assert cpu_mask("native") == everything
    monkeypatch.setenv("AGGML_ISA", "z80")
    with pytest.raises(ValueError, match="isa='z80' is not one of"):
        cpu_mask(None)
