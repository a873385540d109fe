"""The native layer: C below, bound by binding/.

Here: the choice of instruction sets. Not here: anything public.
"""

from __future__ import annotations

import os

from aggml.errors import InvalidArgument
from aggml.native import _native

__all__ = ["ISAS", "cpu_mask", "isas"]

_AVX2 = 0b111  # AVX2, FMA, F16C: the bits of native/table/kernels.h
_AVXVNNI = _AVX2 | 1 << 7
_AVX512 = _AVX2 | 1 << 3
_ZEN4 = _AVX512 | 1 << 4 | 1 << 15  # AVX-512 with VNNI as AMD has it
_AMX = _AVX512 | 1 << 5 | 1 << 9 | 1 << 10  # with BF16, bf16 and int8 tiles

_NEON = 1 << 8
_DOTPROD = _NEON | 1 << 11  # dot products of bytes
_I8MM = _DOTPROD | 1 << 13  # matrix products of bytes

#: What a plan may use under each name, the best last; "avx512" takes VNNI, BF16 and VBMI with it
#: where the machine has them, "i8mm" the matrix products of bf16.
ISAS: dict[str, int] = {
    "scalar": 0,
    "avx2": _AVX2,
    "avxvnni": _AVXVNNI,
    "avx512": _AVX512 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 12,
    "zen4": _ZEN4 | 1 << 5 | 1 << 6 | 1 << 12,
    "amx": _AMX | 1 << 4 | 1 << 6,
    "neon": _NEON,
    "dotprod": _DOTPROD,
    "i8mm": _I8MM | 1 << 14,
    "native": 0xFFFFFFFF,
}
_NEEDED = {
    "scalar": 0,
    "avx2": _AVX2,
    "avxvnni": _AVXVNNI,
    "avx512": _AVX512,
    "zen4": _ZEN4,
    "amx": _AMX,
    "neon": _NEON,
    "dotprod": _DOTPROD,
    "i8mm": _I8MM,
    "native": 0,
}


def isas() -> list[str]:
    """Instruction sets that this machine can run, the plainest first, without "native"."""
    have = _native.cpu_features()
    return [name for name, needed in _NEEDED.items() if name != "native" and not needed & ~have]


def cpu_mask(isa: str | None) -> int:
    """CPU features a plan may use, as bits of native/table/kernels.h.

    Args:
        isa: a name in ISAS; None: AGGML_ISA from the environment, unless that is unset or empty:
            all that there are.

    Raises:
        InvalidArgument: there is no such name, or this machine cannot run it.
    """
    name = isa if isa is not None else os.environ.get("AGGML_ISA") or "native"
    have = _native.cpu_features()
    if name not in ISAS or _NEEDED[name] & ~have:
        raise InvalidArgument(
            f"[native] isa={name!r} is not one of {[*isas(), 'native']} that this machine can run"
        )
    return ISAS[name] & have
