"""Devices that come with the package, as `aggml.devices.NAME`.

Nothing is imported before it is asked for: the registry does that on first use, or a name of here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_NAMES = ("cpu", "cuda", "ggml", "sim")


def __getattr__(name: str) -> ModuleType:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
