"""Tuning parameters for this processor: `aggml bench --tune` measures and saves them.

They set how far ahead kernels prefetch and how much work a thread claims at a time
(native/table/tunables.def), so no result depends on them. The first backend of a process takes them
from the user's cache, else from ``tuned.json`` in this folder. Not here: the measuring
(aggml/cli/tune.py).
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["adopt", "cache_path", "chosen", "known", "processor", "save"]

VERSION: Final = 1
SHIPPED: Final = Path(__file__).with_name("tuned.json")

_adopted = [False]


def processor() -> str:
    """The key of this processor in the files: its name, family and model."""
    wanted = {"model name": "", "cpu family": "family", "model": "model"}
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if not name.strip():
                    break
                if name.strip() in wanted:
                    found[name.strip()] = f"{wanted[name.strip()]} {value.strip()}".strip()
    except OSError:
        pass
    return ", ".join(found[name] for name in wanted if name in found) or platform.processor()


def cache_path() -> Path:
    """The file in which the user's parameters are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aggml" / "tuned.json"


def known(path: Path) -> dict[str, dict[str, int]]:
    """The parameters by processor in a file; empty if it is missing or has another version."""
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(read, dict) or read.get("version") != VERSION:
        return {}
    found = read.get("processors")
    return (
        {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}
    )


def chosen() -> dict[str, int]:
    """The parameters in use, without those that still have their default."""
    return {name: value for name, _, _, _, value in _native.tunables() if value != 0}


def adopt() -> None:
    """Use the parameters for this processor, once per process; values out of range are ignored."""
    if _adopted[0]:
        return
    _adopted[0] = True
    cache = cache_path()
    if not (cache.exists() or SHIPPED.exists()):
        return
    mine, name = known(cache), processor()
    for key, value in mine.get(name, known(SHIPPED).get(name, {})).items():
        if isinstance(value, int):
            _native.tune(key, value)


def save(numbers: Mapping[str, int]) -> Path:
    """Save parameters for this processor next to those of others; returns the file's path."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    processors = {**known(path), processor(): dict(numbers)}
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(
        json.dumps({"version": VERSION, "processors": processors}, indent=1), encoding="utf-8"
    )
    part.replace(path)
    return path
