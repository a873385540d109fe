"""Damaged GGUF files are refused, with the file's name and what is wrong.

Not here: sound files (test_reading.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf_by_hand import entry, gguf_file, text, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aggml
from aggml.gguf import GGUFError, GGUFFile

if TYPE_CHECKING:
    from pathlib import Path


Refuse = Callable[..., None]


@pytest.fixture
def refused(tmp_path: Path) -> Refuse:
    def refuse(data: bytes, *words: str) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(data)
        for mmap in (True, False):
            with pytest.raises(GGUFError) as caught:
                GGUFFile.open(path, mmap=mmap)
            for word in ("broken.gguf", *words):
                assert word in str(caught.value)
        assert isinstance(caught.value, (aggml.AggmlError, ValueError))

    return refuse


def test_no_gguf_file_is_refused(refused: Refuse) -> None:
    refused(b"", "no GGUF file")
    refused(b"GGU", "no GGUF file")
    refused(b"GGML" + bytes(100), "GGML")
    refused(b"GGUF", "version")
    refused(gguf_file(version=1), "version 1")
    refused(gguf_file(version=4), "version 4")
    refused(gguf_file(version=3 << 24), "big-endian")


def test_absurd_counts_are_refused_at_once(refused: Refuse) -> None:
    refused(gguf_file(n_tensors=1 << 62), "tensors", str(1 << 62))
    refused(gguf_file(n_values=(1 << 64) - 1), "metadata values")
    refused(gguf_file((value("k", 9, struct.pack("<IQ", 8, 1 << 60)),)), "'k'", str(1 << 60))
    refused(gguf_file((value("k", 9, struct.pack("<IQ", 6, 1 << 62)),)), "'k'")
    refused(gguf_file((value("k", 8, struct.pack("<Q", 1 << 63)),)), "'k'", str(1 << 63))
    refused(gguf_file((struct.pack("<Q", 1 << 40) + bytes(40),)), "key", str(1 << 40))


def test_damaged_metadata_is_refused(refused: Refuse) -> None:
    seven = struct.pack("<I", 7)
    refused(gguf_file((value("k", 4, seven), value("k", 4, seven))), "'k'", "twice")
    refused(gguf_file((value("k", 13, seven),)), "'k'", "type 13")
    refused(gguf_file((value("k", 9, struct.pack("<IQ", 99, 1)),)), "'k'", "type 99")
    refused(gguf_file((value("k", 7, b"\2"),)), "'k'", "bool")
    refused(gguf_file((value(b"\xff", 4, seven),)), "UTF-8")
    deep = struct.pack("<IQ", 9, 1) * 50
    refused(gguf_file((value("k", 9, deep),)), "'k'", "nested")
    for bad in (0, 3, 48, 1 << 31):
        refused(
            gguf_file((value("general.alignment", 4, struct.pack("<I", bad)),)),
            "alignment",
            str(bad),
        )
    refused(gguf_file((value("general.alignment", 10, struct.pack("<Q", 32)),)), "alignment")
    refused(gguf_file((value("general.alignment", 8, text("32")),)), "alignment")


def test_damaged_tensors_are_refused(refused: Refuse) -> None:
    refused(gguf_file((), (entry("x", (8,)), entry("x", (8,), offset=32)), 64), "'x'", "twice")
    refused(gguf_file((), (entry("x", (8,), dims=5),), 64), "'x'", "5 extents")
    refused(gguf_file((), (entry("x", (8,), dims=(1 << 32) - 1),), 64), "'x'", "extents")
    refused(gguf_file((), (entry("x", (8,), kind=4),), 64), "'x'", "type 4")
    refused(gguf_file((), (entry("x", (8,), kind=1 << 31),), 64), "'x'", "type")
    refused(gguf_file((), (entry("x", (33,), kind=8),), 64), "'x'", "33", "q8_0")
    refused(gguf_file((), (entry(b"\xff", (8,)),), 64), "UTF-8")
    refused(gguf_file((), (entry("x", (1 << 40, 1 << 40)),), 64), "'x'", str(1 << 40))
    refused(gguf_file((), (entry("x", (1 << 63, 2, 2, 2)),), 64), "'x'")
    refused(gguf_file((), (entry("x", (1 << 63, 0)),), 64), "'x'")
    refused(gguf_file((), (entry("x", (0, 1 << 63, 1 << 63)),), 64), "'x'")


def test_offsets_that_cannot_be_are_refused(refused: Refuse) -> None:
    refused(gguf_file((), (entry("x", (8,), offset=4),), 64), "'x'", "4", "aligned to 32")
    refused(gguf_file((), (entry("x", (8,), offset=64),), 64), "'x'", "32 bytes")
    refused(gguf_file((), (entry("x", (8,), offset=(1 << 64) - 32),), 64), "'x'")
    refused(gguf_file((), (entry("x", (8,)),), 31), "'x'", "31"[:0])
    refused(
        gguf_file((), (entry("a", (9,)), entry("b", (8,), offset=32)), 64), "'a'", "'b'", "overlap"
    )


def test_a_file_cut_anywhere_is_refused(raw: bytes, refused: Refuse) -> None:
    for length in range(0, len(raw) - 32, 13):  # the padding after the last tensor may be missing
        refused(raw[:length])


def open_if_sound(path: Path) -> None:
    """Open the file and read everything, or get a GGUFError: nothing else may happen."""
    try:
        with GGUFFile.open(path) as file:
            for name, tensor in file.tensors.items():
                assert len(file.data(name)) == tensor.nbytes
    except GGUFError:
        return


def test_any_flipped_byte_is_read_or_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flipped.gguf"
    rng = np.random.default_rng(0)
    header = len(raw) - 1500
    for position in range(4, header):
        data = bytearray(raw)
        data[position] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        open_if_sound(path)


@pytest.mark.long
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    changes=st.lists(
        st.tuples(st.integers(4, 2000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6
    ),
    cut=st.integers(0, 600),
)
def test_random_damage_is_read_or_refused(
    raw: bytes, tmp_path: Path, changes: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(raw)
    for position, new in changes:
        data[position : position + len(new)] = new
    path = tmp_path / "random.gguf"
    path.write_bytes(data[: len(data) - cut])
    open_if_sound(path)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.binary(max_size=300))
def test_random_bytes_behind_the_magic_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + data)
    open_if_sound(path)
