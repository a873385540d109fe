"""The builds of ggml that the tests load, and RPC servers.

Here: finding and starting them; a skip says how to get what is missing. Not here: tests.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_until

import aggml.devices.ggml as ggml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.ggml import GgmlDevice

ROOT = Path(__file__).resolve().parents[3]
#: The versions that `make ggml-libraries` builds, the newest first.
VERSIONS = ("0.3.36", "0.3.16")


def folder(version: str | None = None) -> Path:
    """The folder with the libraries of a version of llama-cpp-python; None: the one under test."""
    named = os.environ.get("AGGML_GGML_LIBRARIES")
    if named and version is None:
        return Path(named)
    found = ROOT / "build" / f"ggml-{version or VERSIONS[0]}" / "bin"
    if not found.is_dir():
        pytest.skip(f"no libraries of ggml in {found.parent}: make ggml-libraries")
    return found


def need() -> None:
    """Called at the top of a test file: without libraries the whole file is one skip.

    Skipping each of the 2,500 tests of the suite separately took 4 s.
    """
    try:
        folder()
    except pytest.skip.Exception as missing:
        pytest.skip(str(missing), allow_module_level=True)


@functools.cache
def devices() -> dict[str, GgmlDevice]:
    """The devices of the libraries under test, by ggml's name."""
    # Mesa's software Vulkan calls itself a CPU. ggml leaves such devices out unless they are named.
    os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")
    return {device.name: device for device in ggml.load(folder())}


def device(name: str) -> GgmlDevice:
    """The device of this name; the test is skipped if it is missing."""
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
    """Start a server of this version over ggml's CPU; None: the one under test.

    Returns:
        The process, and its endpoint.
    """
    program = folder(version) / "ggml-rpc-server"
    if not program.exists():
        pytest.skip(f"no {program}: make ggml-libraries")
    port = _free_port()
    server = subprocess.Popen(
        [program, "--port", str(port), "--threads", "2", "--device", "CPU"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _answers(port) or server.poll() is not None)
    finally:
        if not _answers(port):
            server.kill()
    assert server.poll() is None, f"{program} does not answer"
    return server, f"127.0.0.1:{port}"


@contextlib.contextmanager
def server() -> Iterator[tuple[subprocess.Popen[bytes], list[GgmlDevice]]]:
    """A server that runs until the block ends, and its devices."""
    devices()
    process, endpoint = start_server()
    try:
        yield process, ggml.connect(endpoint)
    finally:
        process.kill()
        process.wait()
