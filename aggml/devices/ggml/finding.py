"""Where libraries of ggml lie: a folder, a file, ``GGML_BACKEND_PATH``, llama-cpp-python.

Here: which files belong together. Nothing is loaded. Not here: versions (library.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.errors import BackendLoadError
from aggml.process.paths import user_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LibraryFiles", "files_in", "find_files"]

_SUFFIX: Final = ".dylib" if sys.platform == "darwin" else ".so"
#: File names of a library; the plain name is tried before names with a version.
_LIBRARY: Final = re.compile(rf"libggml(?:-[\w-]+)?{re.escape(_SUFFIX)}(?:\.[\d.]+)?$")


class LibraryFiles(NamedTuple):
    """The files of one build.

    Attributes:
        base: libggml-base.
        registry: libggml, which has the registry.
        backends: the backends that libggml loads, in order of their names.
        named: whether the user asked for that one backend. Otherwise these are all backends of a
            folder, some of which may be linked into libggml and so be registered already.
    """

    base: Path
    registry: Path
    backends: tuple[Path, ...]
    named: bool = False


def _find_file(folder: Path, name: str) -> Path | None:
    plain = folder / f"lib{name}{_SUFFIX}"
    if plain.exists():
        return plain
    found = sorted(folder.glob(f"lib{name}{_SUFFIX}.*"))
    return found[0] if found else None


def files_in(path_or_folder: str | os.PathLike[str]) -> LibraryFiles:
    """The files of a build: all backends of a folder, or the one that is named.

    Raises:
        BackendLoadError: something is missing; the text says what.
    """
    path = user_path(path_or_folder)
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise BackendLoadError(f"[ggml.load] there is no {path}")
    base, registry = _find_file(folder, "ggml-base"), _find_file(folder, "ggml")
    missing = [n for n, p in (("libggml-base", base), ("libggml", registry)) if p is None]
    if base is None or registry is None:
        raise BackendLoadError(f"[ggml.load] {folder} has no {' and no '.join(missing)}")
    backends = [
        found
        for found in sorted(folder.iterdir())
        if found.name.endswith(_SUFFIX)
        and _LIBRARY.match(found.name)
        and found.name not in (f"libggml{_SUFFIX}", f"libggml-base{_SUFFIX}")
    ]
    named = path.is_file() and path.resolve() not in (base.resolve(), registry.resolve())
    return LibraryFiles(base, registry, (path,) if named else tuple(backends), named)


def find_files() -> LibraryFiles:
    """The files that ``GGML_BACKEND_PATH`` names, else those of an installed llama-cpp-python.

    Raises:
        BackendLoadError: neither is there.
    """
    named = os.environ.get("GGML_BACKEND_PATH")
    if named:
        return files_in(named)
    package = importlib.util.find_spec("llama_cpp")
    for place in (package.submodule_search_locations or ()) if package else ():
        folder = user_path(place) / "lib"
        if folder.is_dir():
            return files_in(folder)
    raise BackendLoadError(
        "[ggml.load] GGML_BACKEND_PATH names no library, and llama-cpp-python is not installed"
    )
