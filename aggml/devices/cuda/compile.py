"""Cubins of kernel files: compiled by NVRTC for one architecture, kept on disk.

Here: the text of a module with its includes, NVRTC through ctypes (it needs no driver, and its
calls hold no GIL), the cache. Not here: which modules there are (lowering.py), loading a cubin
(module.py). Every function may block for seconds: call none on an event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from aggml.errors import DeviceError, InvalidArgument, Unsupported
from aggml.process.extras import install_command

__all__ = ["CompilerOutput", "Cubins", "compile_module", "default_cache", "nvrtc_version", "source"]

_KERNELS = Path(__file__).resolve().parent / "kernels"
_NATIVE = _KERNELS.parents[2] / "native"
#: Folders that are searched for a quoted include.
_PATH = (_KERNELS, _NATIVE / "table", _NATIVE / "formats")
_MODULE = re.compile(r"(\w+)(?:\[([\w=,]+)\])?")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
#: A line in which a kernel file gives compiler options of its own.
_OPTIONS = re.compile(r"^// options: (.+)$", re.MULTILINE)


class CompilerOutput(NamedTuple):
    """A cubin and what the compiler said: warnings, registers and spills of each kernel."""

    cubin: bytes
    log: str


# -- the text


def _expand(path: Path, once: set[Path]) -> str:
    """The text of a file, with each quoted include replaced by its text."""
    text = path.read_text(encoding="utf-8")
    if "#pragma once" in text:
        if path in once:
            return ""
        once.add(path)
        text = text.replace("#pragma once", "")

    def include(match: re.Match[str]) -> str:
        for folder in _PATH:
            found = folder / match[1]
            if found.is_file():
                line = text.count("\n", 0, match.end()) + 2
                return f'#line 1 "{found.name}"\n{_expand(found, once)}\n#line {line} "{path.name}"'
        raise InvalidArgument(f"[cuda.compile] {path.name} includes {match[1]}, which is not there")

    return _INCLUDE.sub(include, text)


@functools.cache
def source(module: str) -> tuple[str, tuple[str, ...]]:
    """The whole text of a module, ``unary`` or ``mul_mat_q[TYPE=Q4_0]``, and its own options.

    Raises:
        InvalidArgument: there is no such file.
    """
    match = _MODULE.fullmatch(module)
    path = _KERNELS / f"{match[1]}.cu" if match else _KERNELS
    if match is None or not path.is_file():
        raise InvalidArgument(f"[cuda.compile] there is no module {module!r}")
    text = f'#line 1 "{path.name}"\n{_expand(path, set())}'
    options = [f"-D{definition}" for definition in (match[2] or "").split(",") if definition]
    for line in _OPTIONS.findall(text):
        options += line.split()
    return text, tuple(options)


# -- NVRTC


def _library_paths() -> list[str]:
    """Candidates for NVRTC's library: those of the wheel first, then the loader's."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [
        str(path) for folder in folders for path in Path(folder).glob("cu13/lib/libnvrtc.so.*")
    ]
    found += [
        str(path)
        for folder in folders
        for path in Path(folder).glob("cu13/bin/x86_64/nvrtc64_*_0.dll")
    ]
    return [*found, "libnvrtc.so.13", "libnvrtc.so"]


def _load_builtins(path: str) -> None:
    """Load the library of built-in functions that lies in NVRTC's folder.

    NVRTC opens it by name at its first compilation. The wheel of 13.0 has no run path, so the
    loader finds the library only if it is loaded in the process already.
    """
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def _nvrtc() -> ctypes.CDLL | None:
    for path in _library_paths():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if os.path.isabs(path):
            _load_builtins(path)
        return library
    return None


def _library() -> ctypes.CDLL:
    library = _nvrtc()
    if library is None:
        raise Unsupported(
            "[cuda.compile] NVRTC is not installed, and no compiled kernel (cubin) was found: "
            f"{install_command('cuda')}"
        )
    return library


@functools.cache
def nvrtc_version() -> str | None:
    """The version of NVRTC, such as ``13.5``; None if it is not installed."""
    library = _nvrtc()
    if library is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _options(options: tuple[str, ...], arch: str) -> list[str]:
    return [
        f"--gpu-architecture=sm_{arch}",
        "--std=c++17",
        "--restrict",
        "--device-as-default-execution-space",
        "--ptxas-options=-v",
        *options,
    ]


def compile_module(module: str, arch: str) -> CompilerOutput:
    """Compile for ``arch`` ("75", "90", "90a") without looking into the cache.

    Raises:
        DeviceError: the compiler refuses the text; its log is in the message.
        Unsupported: NVRTC is not installed.
    """
    library = _library()
    text, own = source(module)
    options = [option.encode() for option in _options(own, arch)]
    program = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status != 0:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            words = library.nvrtcGetErrorString(status).decode()
            log = f"\n{_text(library, program, 'ProgramLog')}" if program.value else ""
            raise DeviceError(f"[cuda.compile] {module} for sm_{arch}: {words}{log}")

    name = f"{module}.cu".encode()
    call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name, 0, None, None)
    try:
        call(
            "nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        size = ctypes.c_size_t()
        call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        call("nvrtcGetCUBIN", program, cubin)
        return CompilerOutput(cubin.raw, _text(library, program, "ProgramLog"))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value or 1)
    getattr(library, f"nvrtcGet{what}")(program, text)
    return text.value.decode(errors="replace").strip()


# -- the cache


def default_cache() -> Path:
    """The user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aggml" / "cuda"


class Cubins:
    """Cubins by module and architecture: shipped with the package, kept on disk, or compiled.

    Args:
        directory: where compiled cubins are kept; None: `default_cache`. A directory that cannot
            be written is no error: the next process then compiles again.
        shipped: the folder of the cubins that came with the package; None: next to this file.
    """

    def __init__(self, directory: Path | None = None, shipped: Path | None = None) -> None:
        self._directory = default_cache() if directory is None else directory
        self._shipped = _KERNELS.parent / "cubins" if shipped is None else shipped

    def stem(self, module: str, arch: str) -> str:
        """The stem of the cubin's file name: module, hash of text and options, architecture."""
        text, options = source(module)
        key = hashlib.sha256("\0".join((text, *_options(options, arch))).encode()).hexdigest()[:24]
        return f"{re.sub(r'[^0-9A-Za-z]+', '-', module).strip('-')}-{key}-sm{arch}"

    def find(self, module: str, arch: str) -> bytes | None:
        """A stored cubin of this text for this architecture; None if there is none.

        A shipped cubin is used whichever version of NVRTC made it. A cubin from the cache must come
        from the installed version of NVRTC; if NVRTC is not installed, any cached cubin is used.
        """
        stem = self.stem(module, arch)
        version = nvrtc_version() or "*"
        for folder, made_by in ((self._shipped, "*"), (self._directory, version)):
            for path in sorted(folder.glob(f"{stem}-nvrtc{made_by}.cubin"), reverse=True):
                try:
                    return path.read_bytes()
                except OSError:
                    continue
        return None

    def get(self, module: str, arch: str) -> bytes:
        """A cubin, compiled if none is stored.

        Raises:
            DeviceError: the compiler refuses the text.
            Unsupported: there is neither a cubin nor NVRTC.
        """
        found = self.find(module, arch)
        if found is None:
            found = compile_module(module, arch).cubin
            name = f"{self.stem(module, arch)}-nvrtc{nvrtc_version()}.cubin"
            self._keep(name, found)
        return found

    def _keep(self, name: str, cubin: bytes) -> None:
        """Write the file atomically: a reader finds either the whole file or none."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._directory, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(cubin)
                Path(temporary).replace(self._directory / name)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
        except OSError:
            return  # the cache directory is read-only
