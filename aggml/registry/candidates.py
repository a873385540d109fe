"""Candidates for plug-ins: built-in modules, entry points, files of a folder.

Here: listing them without importing, importing one. Not here: choosing and registering
(loading.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aggml.errors import BackendLoadError
from aggml.process.numbers import Numbers
from aggml.process.paths import user_path
from aggml.registry.table import BUILT_IN, ENTRY_POINT, EXPLICIT

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BUILT_IN_NAMES",
    "ENTRY_POINTS",
    "Candidate",
    "built_ins",
    "entry_points",
    "files_of",
    "forget",
    "of_source",
]

#: Entry point group of installed plug-ins.
ENTRY_POINTS = "aggml.backends"
#: The built-in families in the order of enumeration: accelerators first, the CPU last, as in ggml.
BUILT_IN_NAMES = ("cuda", "cpu")

# aggml_NAME.py, aggml_NAME-VARIANT.cpython-311-x86_64-linux-gnu.so, aggml_NAME/
_NAME = re.compile(r"aggml_(?P<family>[^-.]+)(?:-(?P<variant>[^.]+))?(?P<suffix>\..+)?")
_numbers = Numbers()


@dataclass(frozen=True)
class Candidate:
    """A module, entry point or file that may be a plug-in; it is not imported yet.

    Attributes:
        name: the family that it seems to be, from the name of its file or entry point.
        variant: "" for the plain plug-in; variants are chosen by score.
        source: where it comes from, for people to read.
        key: equal for the same file or module, however it was named.
        rank: see table.py.
        open: imports it; returns what exports ``aggml_backend_init``.
    """

    name: str
    variant: str
    source: str
    key: str
    rank: int
    open: Callable[[], Any]


def _split(name: str) -> tuple[str, str]:
    family, _, variant = name.partition("-")
    return family.lower(), variant


def _of_module(module: str, rank: int, source: str | None = None) -> Candidate:
    def open_it() -> ModuleType:
        return importlib.import_module(module)

    name = module.rpartition(".")[2].removeprefix("aggml_")
    return Candidate(name, "", source or f"module {module}", f"module {module}", rank, open_it)


def built_ins() -> list[Candidate]:
    """The families that are part of this package."""
    return [
        _of_module(module, BUILT_IN + i, "built in")
        for i, name in enumerate(BUILT_IN_NAMES)
        if importlib.util.find_spec(module := f"aggml.devices.{name}") is not None
    ]


def entry_points() -> list[Candidate]:
    """The plug-ins that installed packages offer as entry points, ordered by name."""
    found = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        name, variant = _split(point.name)
        of = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
        module = point.value.replace(":", ".")
        found.append(
            Candidate(
                name,
                variant,
                f"entry point {point.name}{of}",
                f"module {module}",
                ENTRY_POINT,
                point.load,
            )
        )
    return found


def _of_file(path: Path) -> Candidate | None:
    """A file or package folder as a candidate; None if its name is not that of a plug-in."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    suffix = match["suffix"] or ""
    if path.is_dir():
        if suffix or not (path / "__init__.py").is_file():
            return None
    elif suffix != ".py" and suffix not in EXTENSION_SUFFIXES:
        return None
    return _of_path(path, match["family"].lower(), match["variant"] or "")


def _of_path(path: Path, name: str, variant: str = "") -> Candidate:
    real = os.path.realpath(path)
    return Candidate(name, variant, str(path), real, EXPLICIT, lambda: _import_file(Path(real)))


def files_of(folder: Path) -> list[Candidate]:
    """The plug-ins in a folder, by name; none if there is no such folder."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    return [found for path in paths if (found := _of_file(path)) is not None]


def of_source(source: str | os.PathLike[str] | ModuleType) -> Candidate:
    """The candidate for `load`'s argument: a file, a package folder, a module or its dotted name.

    Raises:
        BackendLoadError: there is no such file.
    """
    if isinstance(source, ModuleType):
        return Candidate(
            source.__name__.rpartition(".")[2].removeprefix("aggml_"),
            "",
            f"module {source.__name__}",
            f"module {source.__name__}",
            EXPLICIT,
            lambda: source,
        )
    text = os.fspath(source)
    is_name = isinstance(source, str) and re.fullmatch(r"\w+(\.\w+)*", text)
    if is_name and not text.endswith((".py", ".so", ".pyd")):
        ranks = {f"aggml.devices.{name}": BUILT_IN + i for i, name in enumerate(BUILT_IN_NAMES)}
        return _of_module(text, ranks.get(text, EXPLICIT))
    path = user_path(text)
    if not path.exists():
        raise BackendLoadError(f"[load] there is no file {text!r}")
    match = _NAME.fullmatch(path.name)
    return _of_path(path, match["family"].lower() if match else path.stem)


def _import_file(path: Path) -> ModuleType:
    """Import a file or package folder under a unique module name, so that no two collide.

    The last part of the name is the file's: an extension module is initialised by it.
    """
    base = re.sub(r"\W.*", "", path.name)
    name = f"_aggml_plugin{next(_numbers)}.{base}"
    if path.is_dir():
        spec = importlib.util.spec_from_file_location(
            name, path / "__init__.py", submodule_search_locations=[str(path)]
        )
    elif path.suffix in (".so", ".pyd"):
        loader = ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    else:
        spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BackendLoadError(f"[load] {path} is neither a Python file nor an extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        forget(module)
        raise
    return module


def forget(module: object) -> None:
    """Drop the imported module, so that the next load of the same file imports it again.

    Modules that other code can import stay: a reload would leave two versions of their classes.
    """
    name = getattr(module, "__name__", "")
    if name.startswith("_aggml_plugin"):
        for key in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]
