"""The builds of ggml that the tests load, and servers that speak RPC.

Here: finding and starting; a skip says how to get what is missing. Not here: tests.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aggml.devices.ggml as ggml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.ggml import GgmlDevice

ROOT = Path(__file__).resolve().parents[3]
#: What `make ggml-libraries` builds, the newest first.
VERSIONS = ("0.3.36", "0.3.16", "0.3.8")


def folder(version: str | None = None) -> Path:
    """The libraries of one version of llama-cpp-python; of the one that is under test if None."""
    named = os.environ.get("AGGML_GGML_LIBRARIES")
    if named and version is None:
        return Path(named)
    found = ROOT / "build" / f"ggml-{version or VERSIONS[0]}" / "bin"
    if not found.is_dir():
        pytest.skip(f"no libraries of ggml in {found.parent}: make ggml-libraries")
    return found


def need() -> None:
    """For the top of a file: its tests are one skip where there are no libraries.

    A suite of 2,500 tests took 4 s to say that many times.
    """
    try:
        folder()
    except pytest.skip.Exception as missing:
        pytest.skip(str(missing), allow_module_level=True)


@functools.cache
def devices() -> dict[str, GgmlDevice]:
    """The devices of the libraries under test, by ggml's name."""
    # Mesa's software Vulkan is a CPU for Vulkan, which ggml leaves out unless it is named.
    os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")
    return {device.name: device for device in ggml.load(folder())}


def device(name: str) -> GgmlDevice:
    """One of them; skips where it is missing."""
    found = devices().get(f"ggml:{name}")
    if found is None:
        pytest.skip(
            f"{folder()} has no ggml:{name}: make ggml-libraries (Vulkan: also mesa-vulkan-drivers)"
        )
    return found


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


def start_server(version: str | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """A server over ggml's CPU, of the version under test if None: the process, its endpoint."""
    if not ggml.libraries()[0].survives:
        pytest.skip("this version of ggml ends the process when a connection is lost")
    program = folder(version) / "ggml-rpc-server"
    if not program.exists():
        pytest.skip(f"no {program}: make ggml-libraries")
    port = _free_port()
    server = subprocess.Popen(
        [program, "--port", str(port), "--threads", "2", "--device", "CPU"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while not _answers(port):
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            pytest.fail(f"{program} does not answer")
        time.sleep(0.02)
    return server, f"127.0.0.1:{port}"


@contextlib.contextmanager
def server() -> Iterator[tuple[subprocess.Popen[bytes], list[GgmlDevice]]]:
    """A server for as long as the block lasts, and its devices."""
    devices()
    process, endpoint = start_server()
    try:
        yield process, ggml.connect(endpoint)
    finally:
        process.kill()
        process.wait()
