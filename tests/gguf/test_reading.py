"""GGUF files: what the gguf package writes is read back; what is damaged is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aggml
from aggml import DType
from aggml.gguf import GGUFError, GGUFFile

if TYPE_CHECKING:
    from pathlib import Path

VALUES: dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]] = {
    "t.uint8": (200, gguf.GGUFValueType.UINT8, None),
    "t.int8": (-100, gguf.GGUFValueType.INT8, None),
    "t.uint16": (60000, gguf.GGUFValueType.UINT16, None),
    "t.int16": (-30000, gguf.GGUFValueType.INT16, None),
    "t.uint32": (4_000_000_000, gguf.GGUFValueType.UINT32, None),
    "t.int32": (-2_000_000_000, gguf.GGUFValueType.INT32, None),
    "t.uint64": (1 << 63, gguf.GGUFValueType.UINT64, None),
    "t.int64": (-(1 << 62), gguf.GGUFValueType.INT64, None),
    "t.float32": (0.5, gguf.GGUFValueType.FLOAT32, None),
    "t.float64": (1e-300, gguf.GGUFValueType.FLOAT64, None),
    "t.bool": (True, gguf.GGUFValueType.BOOL, None),
    "t.string": ("blåbær 天", gguf.GGUFValueType.STRING, None),
    "t.strings": (["<s>", "", "▁the"], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING),
    "t.floats": ([0.25, -1.0], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32),
    "t.ints": ([3, -4, 5], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32),
    "t.bools": ([True, False], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL),
}


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TENSORS: dict[str, np.ndarray] = {
    "blk.0.attn_q.weight": floats((3, 64), 1),
    "blk.0.attn_k.weight": floats((5, 32), 2).astype(np.float16),
    "cube": floats((2, 3, 4), 3),
    "four": floats((2, 3, 1, 5), 4),
    "ids": np.arange(7, dtype=np.int32),
    "bias": floats((1,), 5),
}
Q8 = floats((4, 64), 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (value, kind, element) in VALUES.items():
        writer.add_key_value(key, value, kind, element)
    for name, array in TENSORS.items():
        writer.add_tensor(name, array)
    q8 = gguf.quantize(Q8, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def raw(model: Path) -> bytes:
    return model.read_bytes()


# -- a file made by hand, to be damaged


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(key: str | bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def entry(
    name: str | bytes, ne: tuple[int, ...], kind: int = 0, offset: int = 0, dims: int | None = None
) -> bytes:
    extents = struct.pack(f"<{len(ne)}Q", *ne)
    count = len(ne) if dims is None else dims
    return text(name) + struct.pack("<I", count) + extents + struct.pack("<IQ", kind, offset)


def gguf_file(
    values: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    *,
    version: int = 3,
    alignment: int = 32,
    n_values: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(values) if n_values is None else n_values,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(values) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + bytes(data)


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


# -- what is right


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


# -- on a device


@pytest.mark.parametrize("mmap", [True, False])
async def test_mapped_weights_are_computed_with(model: Path, mmap: bool) -> None:
    device = aggml.get_device("CPU")
    with GGUFFile.open(model, mmap=mmap) as file:
        before = file.data("blk.0.attn_q.weight").ctypes.data
        buffer = file.map(device)
        weight = file.tensors["blk.0.attn_q.weight"]
    assert weight.address == before  # no copy
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


# -- what is damaged


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
    for length in range(0, len(raw) - 32, 13):  # the last tensor's padding may be missing
        refused(raw[:length])


def open_if_sound(path: Path) -> None:
    """Open and look at everything, or be refused: nothing else may happen."""
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
