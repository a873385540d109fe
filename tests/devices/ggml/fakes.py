"""The fake backend of fake/, which works asynchronously: its devices and its counters.

Here: loading it into the libraries under test. Not here: tests.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import pytest
from devices.ggml import builds

import aggml.devices.ggml as ggml

if TYPE_CHECKING:
    from aggml.devices.ggml import GgmlDevice

__all__ = ["delay", "device", "longest_queue", "misused_events", "pinned_bytes"]


@functools.cache
def _library() -> ctypes.CDLL:
    builds.device("CPU")  # the CPU backend computes the fake's nodes
    path = builds.folder().parent / "fake" / "libggml-fake.so"
    if not path.exists():
        pytest.skip(f"no {path}: make ggml-libraries")
    ggml.libraries()[0].load([path])
    return ctypes.CDLL(str(path))


def device(index: int = 0) -> GgmlDevice:
    """One of the two devices of the fake."""
    _library()
    return next(d for d in ggml.libraries()[0].devices if d.name == f"ggml:Fake{index}")


def longest_queue() -> int:
    """The longest queue that a backend had since the last call."""
    return int(_library().fake_longest(True))


def misused_events() -> int:
    """How often an event was recorded again while somebody waited for it."""
    return int(_library().fake_misused())


def pinned_bytes() -> int:
    """Bytes that were allocated as pinned memory."""
    return int(_library().fake_pinned())


def delay(us: int) -> None:
    """Make each operation take at least this long, in us."""
    _library().fake_delay(us)
