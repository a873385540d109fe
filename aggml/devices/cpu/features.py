"""Instruction sets: those that kernels were compiled for, and those that this machine can run.

Here: ggml's names for them, and the list that the family reports. Not here: the choice of kernels
(native/__init__.py).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from aggml.native import _native

__all__ = ["CPUFeatures", "compiled_features", "feature_list", "usable_features"]


class CPUFeatures(NamedTuple):
    """One flag for each of ggml's ``ggml_cpu_has_*``; ``sve_cnt`` and ``rvv_vlen`` are bytes."""

    sse3: bool = False
    ssse3: bool = False
    avx: bool = False
    avx_vnni: bool = False
    avx2: bool = False
    bmi2: bool = False
    f16c: bool = False
    fma: bool = False
    avx512: bool = False
    avx512_vbmi: bool = False
    avx512_vnni: bool = False
    avx512_bf16: bool = False
    amx_int8: bool = False
    neon: bool = False
    arm_fma: bool = False
    fp16_va: bool = False
    dotprod: bool = False
    matmul_int8: bool = False
    sve: bool = False
    sve_cnt: int = 0
    sme: bool = False
    sme2: bool = False
    riscv_v: bool = False
    rvv_vlen: int = 0
    vsx: bool = False
    vxe: bool = False
    wasm_simd: bool = False
    llamafile: bool = False


_BYTES: Final = {"sve_cnt", "rvv_vlen"}
# ggml's names of features that kernels may need.
_BITS: Final = {ggml: bit for _, ggml, bit in _native.features() if ggml is not None}
_IMPLIED: Final = {"avx2": ("sse3", "ssse3", "avx"), "avx512": ("avx2",)}
# The order of ggml's list (ggml_backend_get_features).
_LISTED: Final = (
    *("sse3", "ssse3", "avx", "avx_vnni", "avx2", "f16c", "fma", "bmi2", "avx512", "avx512_vbmi"),
    *("avx512_vnni", "avx512_bf16", "amx_int8", "neon", "arm_fma", "fp16_va", "matmul_int8"),
    *("sve", "dotprod", "sve_cnt", "sme", "sme2", "riscv_v", "rvv_vlen", "vsx", "vxe"),
    *("wasm_simd", "llamafile"),
)


def _has_tiled_products() -> bool:
    """Whether there are tiled product kernels, which ggml's feature "llamafile" stands for."""
    return any(kernel.startswith("mm_blocks") for kernel, *_ in _native.variants())


def usable_features() -> CPUFeatures:
    """Features of the processor that the operating system lets programs use; found at run time."""
    found: dict[str, Any] = {
        name: value if name in _BYTES else bool(value) for name, value, _ in _native.cpu_report()
    }
    return CPUFeatures(**found, llamafile=_has_tiled_products())


def compiled_features() -> CPUFeatures:
    """Features that kernels of this build were compiled for, even if this machine lacks them.

    ``ggml_cpu_has_*`` answer the same. Vector lengths are 0: no kernel has one built in.
    """
    found = {name for name, _, base in _native.cpu_report() if base}
    needs = 0
    for _, _, needed, _ in _native.variants():
        needs |= needed
    found |= {name for name, bit in _BITS.items() if needs & bit}
    for name, implied in reversed(_IMPLIED.items()):
        if name in found:
            found |= set(implied)
    return CPUFeatures(**dict.fromkeys(found, True), llamafile=_has_tiled_products())


def feature_list() -> dict[str, str]:
    """Features both compiled in and usable here, by ggml's names and order; "1" or a number."""
    compiled, usable = compiled_features(), usable_features()
    return {
        name.upper(): str(int(getattr(usable, name)))
        for name in _LISTED
        if getattr(usable, name) and (getattr(compiled, name) or name in _BYTES)
    }
