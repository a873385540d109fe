"""GGUF files that the package gguf wrote are read, mapped and loaded.

Not here: damaged files (test_damaged.py).
"""

from __future__ import annotations

import struct
from pathlib import Path

import anyio
import gguf
import numpy as np
import pytest
from gguf_by_hand import Q8, TENSORS, VALUES, entry, floats, gguf_file, text, value

import aggml
from aggml import DType
from aggml.gguf import GGUFFile
from aggml.native import _native

MAPS = Path("/proc/self/maps")


@pytest.mark.parametrize("mmap", [True, False])
def test_metadata_is_what_was_written(model: Path, mmap: bool) -> None:
    with GGUFFile.open(model, mmap=mmap) as file:
        assert file.version == 3
        assert file.metadata["general.architecture"] == "llama"
        for key, (expected, kind, _) in VALUES.items():
            found = file.metadata[key]
            if kind is gguf.GGUFValueType.ARRAY:
                assert list(found) == expected
            else:
                assert found == expected
                assert type(found) is type(expected)


@pytest.mark.parametrize("mmap", [True, False])
def test_directory_agrees_with_the_gguf_package(model: Path, mmap: bool) -> None:
    reader = gguf.GGUFReader(model)
    with GGUFFile.open(model, mmap=mmap) as file:
        assert list(file.tensors) == [x.name for x in reader.tensors]
        assert list(file.metadata) == [x for x in reader.fields if not x.startswith("GGUF.")]
        for peer in reader.tensors:
            tensor = file.tensors[peer.name]
            assert tensor.dtype is DType(int(peer.tensor_type))
            assert tensor.ne == (*map(int, peer.shape), 1, 1, 1)[:4]
            assert tensor.nbytes == peer.n_bytes
            assert file.data(peer.name).tobytes() == peer.data.tobytes()


def test_a_version_2_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    path.write_bytes(
        gguf_file((value("a", 4, struct.pack("<I", 7)),), (entry("x", (8,)),), 32, version=2)
    )
    with GGUFFile.open(path) as file:
        assert (file.version, file.metadata, file.tensors["x"].ne) == (2, {"a": 7}, (8, 1, 1, 1))


def test_nested_arrays_and_odd_strings_are_read(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2h", 3, 2, -1, 2)
    nested = struct.pack("<IQ", 9, 2) + inner + struct.pack("<IQ", 8, 0)
    path = tmp_path / "nested.gguf"
    path.write_bytes(gguf_file((value("n", 9, nested), value("s", 8, text(b"\xff\x00a")))))
    with GGUFFile.open(path) as file:
        first, second = file.metadata["n"]
        assert (first.tolist(), second) == ([-1, 2], [])
        assert file.metadata["s"].encode("utf-8", "surrogateescape") == b"\xff\x00a"


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_alignment_of_the_file_is_used(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "aligned.gguf"
    step = max(alignment, 8)
    entries = (entry("a", (2,)), entry("b", (2,), offset=step))
    header = (value("general.alignment", 4, struct.pack("<I", alignment)),)
    path.write_bytes(
        gguf_file(header, entries, step, alignment=alignment) + struct.pack("<2f", 1, 2)
    )
    with GGUFFile.open(path) as file:
        assert file.alignment == alignment
        assert file.data("b").tobytes() == struct.pack("<2f", 1, 2)


def test_empty_and_scalar_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_file((), (entry("none", (4, 0, 3)), entry("one", ())), 4))
    with GGUFFile.open(path) as file:
        assert (file.tensors["none"].nbytes, file.tensors["one"].ne) == (0, (1, 1, 1, 1))
        assert file.data("none").size == 0
        assert file.nbytes == 4


def test_data_is_read_only_and_outlives_the_file(model: Path) -> None:
    with GGUFFile.open(model) as file:
        data = file.data("cube")
    assert not data.flags.writeable
    assert data.tobytes() == TENSORS["cube"].tobytes()


@pytest.mark.skipif(not MAPS.exists(), reason="/proc/self/maps is missing")
def test_the_last_reference_gives_a_mapping_back(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    n = 1 << 20  # 4 MB: given back by a thread (native/runtime/unmap.c)
    path.write_bytes(gguf_file((), (entry("x", (n,)),), 32) + bytes(4 * n))
    file = GGUFFile.open(path)
    held = file.data("x")
    file.close()
    assert not held.any()
    assert path.name in MAPS.read_text()
    del file, held
    _native.unmapped()
    assert path.name not in MAPS.read_text()


def test_a_closed_file_refuses(model: Path) -> None:
    file = GGUFFile.open(model)
    file.close()
    with pytest.raises(aggml.InvalidState, match=r"model\.gguf"):
        file.data("cube")
    assert "closed" in repr(file)


def test_unknown_names_are_refused(model: Path) -> None:
    with GGUFFile.open(model) as file, pytest.raises(aggml.InvalidArgument, match="nowhere"):
        file.data("nowhere")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFFile.open(tmp_path / "missing.gguf")


@pytest.mark.parametrize("mmap", [True, False])
async def test_mapped_weights_are_computed_with(model: Path, mmap: bool) -> None:
    device = aggml.get_device("CPU")
    with GGUFFile.open(model, mmap=mmap) as file:
        before = file.data("blk.0.attn_q.weight").ctypes.data
        buffer = file.map(device)
        weight = file.tensors["blk.0.attn_q.weight"]
    assert weight.address == before  # not copied
    assert buffer.usage is aggml.BufferUsage.WEIGHTS
    x = aggml.new_tensor("f32", ne=(64, 2), name="x")
    y = aggml.ops.mul_mat(weight, x)
    graph = aggml.Graph(y)
    given_x = floats((2, 64), 9)
    async with device.backend(n_threads=1) as be:
        be.alloc_graph(graph)
        found = await be.run(graph, {x: given_x}, y)
    expected = given_x @ TENSORS["blk.0.attn_q.weight"].T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


async def test_writing_to_a_mapped_tensor_leaves_the_file_alone(model: Path, raw: bytes) -> None:
    device = aggml.get_device("CPU")
    with GGUFFile.open(model) as file:
        file.map(device)
        bias = file.tensors["bias"]
        async with device.backend(n_threads=1) as be:
            await be.set(bias, np.array([42], np.float32))
            assert (await be.get(bias)).tolist() == [42]
    assert await anyio.Path(model).read_bytes() == raw


async def test_mapping_twice_is_refused_and_leaves_the_first(model: Path) -> None:
    device = aggml.get_device("CPU")
    with GGUFFile.open(model) as file:
        file.map(device)
        with pytest.raises(aggml.AlreadyAllocated):
            file.map(device)
        assert all(tensor.buffer is not None for tensor in file.tensors.values())


async def test_load_copies_and_reports_progress(model: Path) -> None:
    steps: list[tuple[int, int]] = []
    with GGUFFile.open(model) as file:
        async with aggml.get_device("CPU").backend(n_threads=1) as be:
            buffer = await file.load(be, progress=lambda done, total: steps.append((done, total)))
            assert buffer.usage is aggml.BufferUsage.WEIGHTS
            for name, expected in TENSORS.items():
                found = await be.get(file.tensors[name])
                assert found.tobytes() == expected.tobytes()
            q8 = await be.get(file.tensors["q8"])
            np.testing.assert_allclose(
                aggml.dequantize(q8, DType.Q8_0, ne=(64, 4)).reshape(4, 64), Q8, atol=0.02
            )
        assert steps[0] == (0, file.nbytes)
        assert steps[-1] == (file.nbytes, file.nbytes)
        assert steps == sorted(steps)


async def test_load_of_some_leaves_the_rest_unplaced(model: Path) -> None:
    with GGUFFile.open(model) as file:
        async with aggml.get_device("CPU").backend(n_threads=1) as be:
            await file.load(be, names=["cube"])
            assert file.tensors["cube"].buffer is not None
            assert file.tensors["four"].buffer is None
            with pytest.raises(aggml.InvalidArgument, match="nowhere"):
                await file.load(be, names=["nowhere"])


async def test_cancelled_load_unplaces_and_can_be_repeated(model: Path) -> None:
    with GGUFFile.open(model) as file:
        async with aggml.get_device("CPU").backend(n_threads=1) as be:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await file.load(be)
            assert scope.cancelled_caught
            assert all(tensor.buffer is None for tensor in file.tensors.values())
            await file.load(be)
            assert (await be.get(file.tensors["cube"])).tobytes() == TENSORS["cube"].tobytes()
