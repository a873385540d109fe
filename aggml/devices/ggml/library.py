"""Library: one build of ggml, loaded and checked; its devices.

Here: which versions are known, the errors for others. Not here: files (finding.py), devices
(device.py).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from aggml.devices.ggml.device import GgmlDevice
from aggml.errors import BackendLoadError
from aggml.native import _native
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml.devices.ggml.finding import LibraryFiles

__all__ = ["NEWEST", "Library", "check_version", "libraries"]

#: The newest version whose functions are known to take our arguments; llama-cpp-python 0.3.36.
NEWEST: Final = (0, 25)

_lock = new_lock()
_libraries: dict[str, Library] = {}


def libraries() -> list[Library]:
    """All loaded libraries, the latest first."""
    return [*_libraries.values()][::-1]


def check_version(version: str, path: object = "libggml-base") -> None:
    """Refuse versions newer than `NEWEST`: their functions may take other arguments.

    Older libraries report no version; they are recognized by their functions alone.

    Raises:
        BackendLoadError: the version is newer, or no number.
    """
    told = re.match(r"(\d+)\.(\d+)", version)
    if version and told is None:
        raise BackendLoadError(
            f"[ggml.load] {path}: found version {version!r}, which is no number; "
            f"expected 0.0 to {NEWEST[0]}.{NEWEST[1]}"
        )
    if told is not None and (int(told[1]), int(told[2])) > NEWEST:
        raise BackendLoadError(
            f"[ggml.load] {path}: found version {version}, newer than {NEWEST[0]}.{NEWEST[1]}, the "
            "newest that this aggml knows: parameters of functions may have changed"
        )


class Library:
    """One build of ggml; lives as long as the process.

    Attributes:
        path: of libggml-base.
        version: as the library reports it; "" if it reports none.
        backends: names of the families of its devices.
        problems: what could not be loaded, by file, and why.
    """

    def __init__(self, path: Path, native: Any) -> None:  # noqa: ANN401 - of the binding
        self.path = path
        self.native = native
        self.version: str = native.version
        self.problems: dict[str, str] = {}
        self._devices: dict[int, GgmlDevice] = {}
        self._making = new_lock()
        self._loaded: set[Path] = set()

    @classmethod
    def open(cls, files: LibraryFiles) -> Library:
        """The library of these files; the same object each time.

        Raises:
            BackendLoadError: it cannot be loaded, or its version is not known.
        """
        key = os.path.realpath(files.base)
        with _lock:
            found = _libraries.get(key)
            if found is None:
                native, why = _native.ggml_open(str(files.base), str(files.registry))
                if native is None:
                    raise BackendLoadError(f"[ggml.load] {files.base}: {why}")
                check_version(native.version, files.base)
                problem = native.load(None)
                if problem is not None:
                    raise BackendLoadError(f"[ggml.load] {files.registry}: {problem}")
                found = _libraries[key] = cls(files.base, native)
            return found

    def load(self, backends: Sequence[Path], *, named: bool = False) -> None:
        """Load backends. Those that fail are noted in ``problems``.

        Args:
            backends: files.
            named: whether the user asked for these files; then a failure is raised.

        Raises:
            BackendLoadError: there is no device, or a named file cannot be loaded.
        """
        with _lock:
            for path in backends:
                if path.resolve() in self._loaded:
                    continue
                why = self.native.load(str(path))
                if why is None:
                    self._loaded.add(path.resolve())
                else:
                    self.problems[str(path)] = why
        if self.problems and not self.devices:
            told = "; ".join(f"{path}: {why}" for path, why in self.problems.items())
            raise BackendLoadError(f"[ggml.load] {told}")
        if named and str(backends[0]) in self.problems:
            raise BackendLoadError(f"[ggml.load] {backends[0]}: {self.problems[str(backends[0])]}")

    @property
    def devices(self) -> list[GgmlDevice]:
        """All devices in ggml's order; the same objects each time."""
        with self._making:
            found = []
            for native in self.native.devices():
                if native.key not in self._devices:
                    self._devices[native.key] = GgmlDevice(native, self)
                found.append(self._devices[native.key])
            return found

    @property
    def backends(self) -> list[str]:
        """The families that are loaded, including those without devices: "CPU", "RPC"."""
        return list(self.native.families())

    def connect(self, endpoint: str) -> list[GgmlDevice]:
        """The devices of a server.

        Raises:
            BackendLoadError: the server does not answer or was lost before.
        """
        known = set(self.devices)
        with _lock:
            why = self.native.add_server(endpoint)
        if why is not None:
            raise BackendLoadError(f"[ggml.connect] {endpoint}: {why}")
        fresh = [device for device in self.devices if device not in known]
        found = fresh or [d for d in self.devices if d.remote and d.description == endpoint]
        if any(device.native.lost is not None for device in found):
            raise BackendLoadError(
                f"[ggml.connect] {endpoint}: the server there was lost; ggml holds a connection as "
                "long as the process lives. Give the address in another form "
                "(localhost for 127.0.0.1), use another port, or another process"
            )
        return found

    def __repr__(self) -> str:
        return f"<Library {self.path}, version {self.version or 'not told'}>"
