"""Devices that come with the package, as `aggml.devices.NAME`.

A device module is imported on first use: by the registry, or by taking its name from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

# Importing the modules, even for type checkers alone, would be an import from a higher room.
__all__ = ["cpu", "cuda", "ggml", "sim"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
