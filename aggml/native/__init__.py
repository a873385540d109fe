"""The native layer: C below, bound by binding/.

Here: the choice of instruction sets. Not here: anything public.
"""

from __future__ import annotations

import os
from pathlib import Path

from aggml.errors import InvalidArgument

try:
    from aggml.native import _native
except ImportError as _error:
    # Python searches the folder in which it was started first. In a checkout it therefore finds the
    # sources, although the package is installed elsewhere.
    here: Path = Path(__file__).parent
    others: str = ", ".join(sorted(x.name for x in here.glob("_native*.so"))) or "none"
    raise ImportError(
        f"{here} has no native module for this Python (found: {others}). If this is a checkout, "
        "start Python in another folder after `pip install .`, or use `pip install -e .`"
    ) from _error

__all__ = ["FEATURES", "ISAS", "cpu_mask", "isas"]

_ROWS = _native.isas()
_ALL = 0xFFFFFFFF

#: The bits of CPU features by their names in native/table/isas.def.
FEATURES: dict[str, int] = {name: bit for name, _, bit in _native.features()}

#: Former names, still understood: amd512 serves a Zen 5 as well.
_FORMER = {"zen4": "amd512"}

#: The features that a plan may use under each name, the plainest first; "native" means all.
ISAS: dict[str, int] = {**{name: needs | takes for name, needs, takes in _ROWS}, "native": _ALL}
_NEEDED = {**{name: needs for name, needs, _ in _ROWS}, "native": 0}


def isas() -> list[str]:
    """Instruction sets that this machine can run, the plainest first, without "native"."""
    have = _native.cpu_features()
    return [name for name, needed in _NEEDED.items() if name != "native" and not needed & ~have]


def cpu_mask(isa: str | None) -> int:
    """CPU features that a plan may use, as bits of native/table/isas.def.

    Args:
        isa: a name in ISAS, or a former one ("zen4" for "amd512"). None: AGGML_ISA from the
            environment; if that is unset or empty, all features of this machine.

    Raises:
        InvalidArgument: there is no such name, or this machine cannot run it.
    """
    name = isa if isa is not None else os.environ.get("AGGML_ISA") or "native"
    name = _FORMER.get(name, name)
    have = _native.cpu_features()
    if name not in ISAS or _NEEDED[name] & ~have:
        raise InvalidArgument(
            f"[native] isa={name!r} is not one of {[*isas(), 'native']} that this machine can run"
        )
    return ISAS[name] & have


def __dir__() -> list[str]:
    return __all__
