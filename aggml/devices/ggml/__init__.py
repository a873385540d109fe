"""ggml's own backends as devices: Vulkan, RPC, BLAS, its CPU, and every other backend of ggml.

Here: loading libraries and connecting to servers when the user asks for it. Not here: where
libraries lie (finding.py), which versions are known (library.py), the device (device.py), the calls
(native/ggml/).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aggml.backend.family import Family
from aggml.devices.ggml.device import GgmlDevice
from aggml.devices.ggml.finding import LibraryFiles, files_in, find_files
from aggml.devices.ggml.library import Library, libraries
from aggml.errors import BackendLoadError
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.backend.backend import Device

__all__ = [
    "GgmlDevice",
    "GgmlFamily",
    "aggml_backend_init",
    "connect",
    "family",
    "libraries",
    "load",
]


def load(path_or_folder: str | os.PathLike[str] | None = None) -> list[GgmlDevice]:
    """Load ggml and its backends; the devices are named "ggml:" and ggml's name, "ggml:Vulkan0".

    Loading starts drivers and may take seconds: do it before a loop runs, or in a thread. The same
    files give the same devices.

    Args:
        path_or_folder: a folder with libggml-base and backends, or one backend in such a folder
            (libggml-vulkan.so); None: ``GGML_BACKEND_PATH``, else the libraries of an installed
            llama-cpp-python.

    Raises:
        BackendLoadError: there is no library; it has an unknown version or lacks a function; or
            this process has loaded another ggml. The text says which file and why.
    """
    files = find_files() if path_or_folder is None else files_in(path_or_folder)
    return _load(files).devices


def _load(files: LibraryFiles) -> Library:
    library = Library.open(files)
    library.load(files.backends, named=files.named)
    return library


def connect(
    endpoint: str, path_or_folder: str | os.PathLike[str] | None = None
) -> list[GgmlDevice]:
    """The devices of a ``ggml-rpc-server``, each named "ggml:RPC" and a number.

    Blocks until the server answers: do it before a loop runs, or in a thread.

    Args:
        endpoint: "host:port". ggml's protocol has no protection of any kind: everybody who can
            reach the server can do anything there.
        path_or_folder: as `load`; None: a library that is loaded already and has RPC.

    Raises:
        BackendLoadError: no server answers; a server at this address was lost before; or no library
            has RPC.
    """
    if path_or_folder is not None:
        return _load(files_in(path_or_folder)).connect(endpoint)
    if not libraries():
        load()
    for library in libraries():
        if any(name.startswith("RPC") for name in library.backends):
            return library.connect(endpoint)
    raise BackendLoadError(
        "[ggml.connect] no loaded library of ggml has RPC: name the folder of one"
    )


class GgmlFamily(Family):
    """All devices of one build of ggml.

    Args:
        library: loaded.
    """

    name = "ggml"
    api_version = 1
    description = "backends of ggml"

    def __init__(self, library: Library) -> None:
        self.library = library

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that existed at the first call."""
        return tuple(self.library.devices)

    def features(self) -> Mapping[str, str]:
        """The version of the library, and its backends."""
        return {"VERSION": self.library.version, "BACKENDS": ",".join(self.library.backends)}


def family(path_or_folder: str | os.PathLike[str] | None = None) -> GgmlFamily:
    """The devices of `load` as a family, for `aggml.registry.register_family`.

    Raises:
        BackendLoadError: as `load`.
    """
    files = find_files() if path_or_folder is None else files_in(path_or_folder)
    return GgmlFamily(_load(files))


_family: GgmlFamily | None = None
_making = new_lock()


def aggml_backend_init() -> Family:
    """The family of ``GGML_BACKEND_PATH``, for the registry; the same each time.

    Raises:
        BackendLoadError: the variable names nothing, or what it names cannot be loaded.
    """
    global _family
    with _making:
        if _family is None:
            if not os.environ.get("GGML_BACKEND_PATH"):
                raise BackendLoadError(
                    "[ggml] GGML_BACKEND_PATH is not set: give it the path of a library of ggml"
                )
            _family = family()
        return _family


def __dir__() -> list[str]:
    return __all__
