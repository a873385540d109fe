"""GGUFWriter: the gguf package and GGUFFile read what was written; what cannot be is refused.

Not here: damaged files (test_reading.py).
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aggml
from aggml import DType
from aggml.gguf import GGUFFile, GGUFWriter, pieces, writer

if TYPE_CHECKING:
    from pathlib import Path

Kind = gguf.GGUFValueType
NUMBERS: dict[str, tuple[Any, Any]] = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint32": (0, (1 << 32) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint64": (0, (1 << 64) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "float32": (-0.5, 3.0e38),
    "float64": (-1e-300, 1e300),
}


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made.gguf"


def kinds_of(path: Path) -> dict[str, list[str]]:
    """The types that the gguf package finds, outermost first."""
    fields = gguf.GGUFReader(path).fields
    return {
        key: [kind.name.lower() for kind in field.types]
        for key, field in fields.items()
        if not key.startswith("GGUF.")
    }


# -- metadata


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_every_type_alone_and_in_arrays(path: Path, name: str) -> None:
    low, high = NUMBERS[name]
    with GGUFWriter(path) as w:
        w.add("low", low, name)
        w.add("high", high, name)
        w.add("both", [low, high], name)
        w.add("none", [], name)
        w.add("numpy", np.array([low, high], name))
        w.add("scalar", np.array(high, name)[()])
    assert kinds_of(path) == {
        **{key: [name] for key in ("low", "high", "scalar")},
        **{key: ["array", name] for key in ("both", "numpy")},
        "none": ["array"],
    }
    with GGUFFile.open(path) as file:
        stored = [float(np.float32(x)) if name == "float32" else x for x in (low, high)]
        assert [file.metadata["low"], file.metadata["high"]] == stored
        assert file.metadata["both"].tolist() == file.metadata["numpy"].tolist() == stored
        assert file.metadata["both"].dtype == file.metadata["none"].dtype == np.dtype(name)
        assert set(file.types.values()) == {name}


def test_python_values_get_the_types_that_llama_cpp_reads(path: Path) -> None:
    given_values: dict[str, tuple[Any, list[str]]] = {
        "count": (4096, ["uint32"]),
        "negative": (-1, ["int32"]),
        "large": (1 << 32, ["uint64"]),
        "very_negative": (-(1 << 31) - 1, ["int64"]),
        "eps": (1e-5, ["float32"]),
        "infinite": (float("inf"), ["float32"]),
        "yes": (True, ["bool"]),
        "text": ("blåbær 天", ["string"]),
        "bytes": (b"\xff\x00a", ["string"]),
        "heads": ([4, 8, 0], ["array", "int32"]),
        "wide": ([4, 1 << 31], ["array", "uint32"]),
        "wider": ([-1, 1 << 31], ["array", "int64"]),
        "mixed": ((1, 0.5), ["array", "float32"]),
        "scores": ([0.0, -1.0], ["array", "float32"]),
        "flags": ([True, False], ["array", "bool"]),
        "tokens": (["<s>", "", "▁the"], ["array", "string"]),
        "enum": (gguf.PoolingType.MEAN, ["uint32"]),
        "np_bool": (np.True_, ["bool"]),
        "np_texts": (np.array(["a", "bc"]), ["array", "string"]),
    }
    with GGUFWriter(path) as w:
        for key, (value, _) in given_values.items():
            w.add(key, value)
    assert kinds_of(path) == {key: kinds for key, (_, kinds) in given_values.items()}
    with GGUFFile.open(path) as file:
        found = file.metadata
        for key in (
            "count",
            "negative",
            "large",
            "very_negative",
            "yes",
            "text",
            "tokens",
            "flags",
        ):
            assert found[key] == given_values[key][0]
            assert type(found[key]) is type(given_values[key][0])
        assert found["bytes"].encode("utf-8", "surrogateescape") == b"\xff\x00a"
        assert found["eps"] == float(np.float32(1e-5))
        assert list(found["heads"]) == [4, 8, 0]


def test_nested_arrays_are_read_back(path: Path) -> None:
    with GGUFWriter(path) as w:
        w.add("nested", [[1, 2], [3]], "uint16")
        w.add("matrix", np.arange(6, dtype=np.int8).reshape(2, 3))
        w.add("texts", [["a"], ["b", "c"]])
    with GGUFFile.open(path) as file:
        first, second = file.metadata["nested"]
        assert (first.tolist(), second.tolist(), first.dtype) == ([1, 2], [3], np.uint16)
        assert [x.tolist() for x in file.metadata["matrix"]] == [[0, 1, 2], [3, 4, 5]]
        assert file.metadata["texts"] == [["a"], ["b", "c"]]


def test_metadata_is_copied_with_its_exact_types(path: Path, tmp_path: Path) -> None:
    with GGUFWriter(path) as w:
        for name, (low, high) in NUMBERS.items():
            w.add(name, low, name)
            w.add(f"{name}s", [low, high], name)
        w.add("texts", ["a", "b"])
        w.add("no_texts", [], "string")
        w.add("bools", [True])
    copied = tmp_path / "copied.gguf"
    with GGUFFile.open(path) as file, GGUFWriter(copied) as w:
        for key, value in file.metadata.items():
            w.add(key, value, file.types[key])
    assert copied.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [
        ("k", 256, "uint8", "256 is outside of uint8"),
        ("k", [1, -1], "uint64", "-1 is outside of uint64"),
        ("k", 1 << 64, None, "no type holds all from"),
        ("k", 1e300, None, 'name the type "float64"'),
        ("k", 10**400, "float32", "too large"),
        ("k", 1.5, "int32", "1.5 is no int32"),
        ("k", True, "int32", "True is no int32"),
        ("k", 1, "bool", "1 is no bool"),
        ("k", 1, "string", "1 is no string"),
        ("k", ["a", 1], None, "is no number, bool, string"),
        ("k", None, None, "None is no number"),
        ("k", {"a": 1}, None, "is no number"),
        ("k", [], None, "the type of the elements must be named"),
        ("k", 1, "array", "'array' is none of uint8"),
        ("k", 1, "Uint8", "'Uint8' is none of uint8"),
        ("k", np.float16(1), None, "no values of numpy's float16"),
        ("k", np.zeros(2, np.complex64), None, "no values of numpy's complex64"),
        ("k", [[[[[1]]]]], None, "nested more than 4 deep"),
        ("k", "\ud800", None, "no UTF-8"),
        ("", 1, None, "is no key"),
        (7, 1, None, "is no key"),
        ("k" * 65536, 1, None, "65536 bytes"),
        ("general.alignment", 48, None, "no power of two"),
        ("general.alignment", "32", None, "no power of two"),
        ("general.alignment", 0, None, "no power of two"),
    ],
)
def test_values_that_cannot_be_are_refused(
    path: Path, key: Any, value: Any, kind: str | None, words: str
) -> None:
    with GGUFWriter(path) as w:
        with pytest.raises(aggml.InvalidArgument, match=words):
            w.add(key, value, kind)
        w.add("good", 1)
    with GGUFFile.open(path) as file:
        assert file.metadata == {"good": 1}


def test_a_key_is_used_once(path: Path) -> None:
    with GGUFWriter(path) as w:
        w.add("k", 1)
        with pytest.raises(aggml.InvalidArgument, match="'k' has a value already"):
            w.add("k", 2)


# -- tensors

PLAIN: dict[str, np.ndarray] = {
    "f32": floats((3, 64), 1),
    "f16": floats((5, 32), 2).astype(np.float16),
    "bf16": floats((5, 32), 2).astype(ml_dtypes.bfloat16),
    "f64": floats((2, 3, 1, 5), 3).astype(np.float64),
    "i8": np.arange(-3, 4, dtype=np.int8),
    "i16": np.arange(7, dtype=np.int16),
    "i32": np.arange(7, dtype=np.int32),
    "i64": np.arange(7, dtype=np.int64).reshape(1, 7),
    "scalar": np.array(2.5, np.float32),
    "none": np.zeros((3, 0, 4), np.float32),
}


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_tensors_of_plain_types(path: Path, alignment: int) -> None:
    with GGUFWriter(path, alignment=alignment) as w:
        for name, array in PLAIN.items():
            w.add_tensor(name, array)
    with GGUFFile.open(path) as file:
        assert file.alignment == alignment
        assert list(file.tensors) == list(PLAIN)
        for name, array in PLAIN.items():
            assert file.data(name).tobytes() == array.tobytes()
            wanted = (array.shape or (1,))[::-1]
            assert file.tensors[name].ne == (*wanted, 1, 1, 1)[:4]
    for peer in gguf.GGUFReader(path).tensors:
        if peer.name != "none":  # its last offset is the end of the file
            assert peer.data_offset % alignment == 0
        assert peer.data.tobytes() == PLAIN[peer.name].tobytes()
        assert peer.tensor_type.name.lower() == {"scalar": "f32", "none": "f32"}.get(
            peer.name, peer.name
        )
    assert path.stat().st_size % alignment == 0


def quantizers() -> list[DType]:
    found = []
    for kind in DType:
        try:
            aggml.quantize(np.zeros(kind.blck_size, np.float32), kind)
        except aggml.AggmlError:
            continue
        if kind.is_quantized:
            found.append(kind)
    return found


@pytest.mark.parametrize("kind", quantizers(), ids=str)
def test_floats_are_quantized_and_blocks_are_taken_as_they_are(path: Path, kind: DType) -> None:
    x = floats((4, 2 * kind.blck_size), kind.value)
    blocks = aggml.quantize(x, kind)
    with GGUFWriter(path) as w:
        w.add_tensor("floats", x, kind)
        w.add_tensor("blocks", blocks, kind.type_name)
        w.add_tensor("flat", blocks.reshape(-1), kind, ne=(x.shape[1], 2, 2))
        w.add_tensor("bytes", blocks.tobytes(), kind, ne=x.shape[::-1])
        w.add_tensor("f16", x.astype(np.float16).reshape(2, 2, -1), kind)
    with GGUFFile.open(path) as file:
        for name in ("floats", "blocks", "flat", "bytes"):
            assert file.data(name).tobytes() == blocks.tobytes()
            assert file.tensors[name].dtype is kind
        assert file.tensors["flat"].ne == (x.shape[1], 2, 2, 1)
        halves = aggml.quantize(x.astype(np.float16).astype(np.float32), kind)
        assert file.data("f16").tobytes() == halves.tobytes()
        assert file.tensors["f16"].ne == (x.shape[1], 2, 2, 1)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "BF16"])
def test_the_gguf_package_finds_the_numbers(path: Path, kind: str) -> None:
    x = floats((3, 512), 7)
    with GGUFWriter(path) as w:
        w.add("general.architecture", "llama")
        w.add_tensor("x", x, kind)
    (peer,) = gguf.GGUFReader(path).tensors
    assert peer.tensor_type is gguf.GGMLQuantizationType[kind]
    wanted = aggml.dequantize(aggml.quantize(x, kind), kind, ne=(512, 3)).reshape(3, 512)
    np.testing.assert_allclose(gguf.dequantize(peer.data, peer.tensor_type), wanted, atol=1e-6)


def test_float_types_become_each_other(path: Path) -> None:
    x = floats((3, 40), 8)
    with GGUFWriter(path) as w:
        for kind in ("f16", "bf16", "f64"):
            w.add_tensor(kind, x, kind)
        w.add_tensor("back", x.astype(np.float64), "f32")
        w.add_tensor("bits", x.astype(ml_dtypes.bfloat16).view(np.uint16), "bf16")
        w.add_tensor("raw", x.view(np.uint8), "f32")
    with GGUFFile.open(path) as file:
        assert file.data("f16").tobytes() == x.astype(np.float16).tobytes()
        assert file.data("bf16").tobytes() == x.astype(ml_dtypes.bfloat16).tobytes()
        assert file.data("bits").tobytes() == file.data("bf16").tobytes()
        assert file.data("f64").tobytes() == x.astype(np.float64).tobytes()
        assert file.data("back").tobytes() == file.data("raw").tobytes() == x.tobytes()
        assert file.tensors["bits"].ne == file.tensors["raw"].ne == (40, 3, 1, 1)


def test_any_strides_and_byte_orders(path: Path) -> None:
    x = floats((6, 8, 64), 9)
    views = {
        "turned": x.T,
        "every_other": x[::2, ::-1, ::4],
        "row": x[1, :, 3],
        "big_endian": x.astype(">f4"),
        "spread": np.broadcast_to(x[0, 0], (3, 64)),
    }
    with GGUFWriter(path) as w:
        for name, view in views.items():
            w.add_tensor(name, view)
        w.add_tensor("q8", x[::2].transpose(1, 0, 2), "q8_0")
    with GGUFFile.open(path) as file:
        for name, view in views.items():
            assert file.data(name).tobytes() == np.ascontiguousarray(view, "<f4").tobytes()
        q8 = aggml.quantize(np.ascontiguousarray(x[::2].transpose(1, 0, 2)), "q8_0")
        assert file.data("q8").tobytes() == q8.tobytes()


def test_large_tensors_go_to_disk_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cube, a matrix and a row, each larger than a piece; quantized ones are the same."""
    monkeypatch.setattr(pieces, "PIECE", 8192)
    monkeypatch.setattr(writer, "COPIED", 5000)
    arrays = {"cube": floats((5, 3, 1024), 1), "matrix": floats((70, 256), 2)}
    arrays["row"] = floats((20480,), 3)
    sizes: list[int] = []
    put = writer._put

    def watched(target: int, data: memoryview, at: int) -> int:
        sizes.append(len(data))
        return put(target, data, at)

    monkeypatch.setattr(writer, "_put", watched)
    seen: list[tuple[int, int]] = []
    with GGUFWriter(path, progress=lambda done, total: seen.append((done, total))) as w:
        for name, x in arrays.items():
            w.add_tensor(name, x)
            w.add_tensor(f"{name}.T", x.T)
            w.add_tensor(f"{name}.q4_K", x, "q4_K")
    assert max(sizes) <= 8192
    assert seen == sorted(seen)
    assert seen[0][0] == 0
    assert seen[-1] == (w.nbytes, w.nbytes)
    assert len(seen) > w.nbytes / 5000
    with GGUFFile.open(path) as file:
        for name, x in arrays.items():
            assert file.data(name).tobytes() == x.tobytes()
            assert file.data(f"{name}.T").tobytes() == x.T.tobytes()
            assert file.data(f"{name}.q4_K").tobytes() == aggml.quantize(x, "q4_K").tobytes()


def test_an_array_is_not_kept(path: Path) -> None:
    x = floats((4, 32), 1)
    with GGUFWriter(path) as w:
        w.add_tensor("x", x)
        before = x.copy()
        x[:] = 0
        kept = weakref.ref(x)
        del x
        assert kept() is None
    with GGUFFile.open(path) as file:
        assert file.data("x").tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("name", "array", "dtype", "ne", "error", "words"),
    [
        ("", floats((2,), 1), None, None, aggml.InvalidArgument, "1 to 63 bytes"),
        ("ä" * 32, floats((2,), 1), None, None, aggml.InvalidArgument, "1 to 63 bytes"),
        (5, floats((2,), 1), None, None, aggml.InvalidArgument, "1 to 63 bytes"),
        ("\ud800", floats((2,), 1), None, None, aggml.InvalidArgument, "of UTF-8"),
        ("there", floats((2,), 1), None, None, aggml.InvalidArgument, "added already"),
        ("x", [1.0, 2.0], None, None, aggml.InvalidHandle, "list is no array"),
        ("x", np.zeros(4, np.uint8), None, None, aggml.InvalidArgument, "numpy's uint8"),
        ("x", np.zeros(4, np.complex64), None, None, aggml.InvalidArgument, "complex64"),
        ("x", np.zeros(4, np.uint16), "q8_0", None, aggml.LayoutMismatch, "no q8_0"),
        ("x", np.zeros((2, 33), np.uint8), "q8_0", None, aggml.LayoutMismatch, "rows of 33 bytes"),
        ("x", floats((3, 33), 1), "q8_0", None, aggml.LayoutMismatch, "rows of 33 elements"),
        ("x", np.zeros(32, np.int32), "q8_0", None, aggml.LayoutMismatch, "i32 elements"),
        ("x", floats((32,), 1), "i32", None, aggml.LayoutMismatch, "become i32"),
        ("x", floats((256,), 1), "iq2_xxs", None, aggml.AggmlError, "importance matrix"),
        ("x", floats((1, 1, 1, 1, 2), 1), None, None, aggml.LayoutMismatch, "5 axes"),
        ("x", floats((6,), 1), None, (4, 2), aggml.LayoutMismatch, "the 6 elements"),
        ("x", floats((6,), 1), None, "ab", aggml.InvalidArgument, "no extents"),
        ("x", floats((6,), 1), "q9_9", None, aggml.InvalidArgument, "q9_9"),
    ],
)
def test_tensors_that_cannot_be_are_refused(
    path: Path, name: Any, array: Any, dtype: Any, ne: Any, error: type[Exception], words: str
) -> None:
    with GGUFWriter(path) as w:
        w.add_tensor("there", floats((2,), 1))
        with pytest.raises(error, match=words) as caught:
            w.add_tensor(name, array, dtype, ne=ne)
        if words != "q9_9":
            assert repr(name) in str(caught.value)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == ["there"]


# -- the file


def left(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_an_exception_leaves_no_file_and_the_old_one_in_place(path: Path) -> None:
    def fail() -> None:
        with GGUFWriter(path) as w:
            w.add_tensor("x", floats((4, 32), 1))
            assert left(path) == before  # nothing is seen before it is whole
            raise ZeroDivisionError

    before: list[str] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert left(path) == before
    path.write_bytes(b"old")
    before = [path.name]
    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    with GGUFWriter(path) as w:
        w.add("a", 1)
        assert path.read_bytes() == b"old"
    assert left(path) == ["made.gguf"]
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_disk_that_is_full_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, room = writer._put, [3000]

    def full(target: int, data: memoryview, at: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(target, data, at)

    monkeypatch.setattr(writer, "_put", full)
    w = GGUFWriter(path)
    w.add_tensor("small", floats((32,), 1))
    with pytest.raises(OSError, match="No space"):
        w.add_tensor("large", floats((1024,), 2))
    room[0] = 200
    w.add_tensor("other", floats((32,), 3))
    with pytest.raises(OSError, match="No space"):
        w.close()
    assert left(path) == []
    assert w.closed
    room[0] = 100_000
    with GGUFWriter(path) as w:  # what failed in between is not in the file
        w.add_tensor("small", floats((32,), 1))
        room[0] = 0
        with pytest.raises(OSError, match="No space"):
            w.add_tensor("large", floats((1024,), 2))
        room[0] = 100_000
        w.add_tensor("other", floats((32,), 3))
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == ["small", "other"]
        assert file.data("other").tobytes() == floats((32,), 3).tobytes()


def test_folders_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFWriter(tmp_path / "nowhere" / "x.gguf")
    with pytest.raises(IsADirectoryError):
        GGUFWriter(tmp_path)
    with pytest.raises(aggml.InvalidArgument, match="48 is no power of two"):
        GGUFWriter(tmp_path / "x.gguf", alignment=48)
    assert os.listdir(tmp_path) == []


def test_a_closed_writer_refuses_and_closes_again(path: Path) -> None:
    w = GGUFWriter(path)
    w.close()
    w.close()
    assert "closed" in repr(w)
    with pytest.raises(aggml.InvalidState, match=r"made\.gguf"):
        w.add("a", 1)
    with pytest.raises(aggml.InvalidState, match=r"made\.gguf"):
        w.add_tensor("x", floats((2,), 1))
    with GGUFFile.open(path) as file:
        assert (file.version, file.metadata, file.tensors) == (3, {}, {})


def test_a_writer_that_nobody_closes_says_so(path: Path) -> None:
    w = GGUFWriter(path)
    with pytest.warns(ResourceWarning, match="never closed: no file was written"):
        del w
    assert left(path) == []


def test_permissions_are_those_of_other_files(path: Path) -> None:
    before = os.umask(0o027)
    try:
        GGUFWriter(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# -- on a loop


async def test_written_off_the_loop_it_is_the_same(path: Path, tmp_path: Path) -> None:
    x = floats((8, 256), 1)
    other = tmp_path / "other.gguf"
    seen: list[int] = []
    async with GGUFWriter(path, progress=lambda done, _: seen.append(done)) as w:
        w.add("a", 1)
        await w.add_tensor_async("x", x)
        await w.add_tensor_async("q", x, "q4_K")
    assert seen[-1] == w.nbytes
    with GGUFWriter(other) as w:
        w.add("a", 1)
        w.add_tensor("x", x)
        w.add_tensor("q", x, "q4_K")
    assert path.read_bytes() == other.read_bytes()  # noqa: ASYNC240 1 kB


async def test_cancelled_closing_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COPIED", 1000)
    scope = anyio.CancelScope()

    def progress(done: int, _: int) -> None:
        if done > 2000:
            scope.cancel()

    w = GGUFWriter(path, progress=progress)
    w.add_tensor("x", floats((8, 256), 1))
    with scope:
        await w.aclose()
    assert scope.cancelled_caught
    assert w.closed
    assert left(path) == []


async def test_cancelled_adding_adds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1024)
    put = writer._put
    async with GGUFWriter(path) as w:
        with anyio.CancelScope() as scope:

            def watched(target: int, data: memoryview, at: int) -> int:
                anyio.from_thread.run_sync(scope.cancel)
                return put(target, data, at)

            with monkeypatch.context() as patch:
                patch.setattr(writer, "_put", watched)
                await w.add_tensor_async("x", floats((8, 256), 1))
        assert scope.cancelled_caught
        assert w.nbytes == 0
        await w.add_tensor_async("x", floats((8, 256), 2))
    with GGUFFile.open(path) as file:
        assert file.data("x").tobytes() == floats((8, 256), 2).tobytes()


async def test_one_tensor_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another task does while a thread writes is refused; leaving waits for the thread."""
    put = writer._put
    w = GGUFWriter(path)
    refused: list[str] = []

    def from_elsewhere() -> None:
        with pytest.raises(aggml.InvalidState, match="being added"):
            w.add_tensor("y", floats((2,), 1))
        with pytest.raises(aggml.InvalidState, match="being added"):
            w.close()
        refused.append("both")
        w.abandon()

    def watched(target: int, data: memoryview, at: int) -> int:
        anyio.from_thread.run_sync(from_elsewhere)
        return put(target, data, at)

    monkeypatch.setattr(writer, "_put", watched)
    with pytest.raises(aggml.InvalidState, match="is closed"):
        await w.add_tensor_async("x", floats((8, 256), 1))
    assert refused == ["both"]
    assert left(path) == []


# -- anything

Scalars = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=32),
    st.text(max_size=20).filter(lambda x: "\0" not in x),
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    values=st.dictionaries(st.text("abc.", min_size=1, max_size=6), Scalars, max_size=6),
    shapes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=4),
    alignment=st.sampled_from([1, 2, 32, 256]),
)
def test_anything_written_is_read_back(
    path: Path, values: dict[str, Any], shapes: list[list[int]], alignment: int
) -> None:
    arrays = {f"t{i}": floats(tuple(shape), i) for i, shape in enumerate(shapes)}
    with GGUFWriter(path, alignment=alignment) as w:
        for key, value in values.items():
            w.add(key, value)
        for name, array in arrays.items():
            w.add_tensor(name, array)
    with GGUFFile.open(path) as file:
        found = dict(file.metadata)
        found.pop("general.alignment", None)
        assert repr(found) == repr(values)
        for name, array in arrays.items():
            assert file.data(name).tobytes() == array.tobytes()
            assert file.tensors[name].ne == (*array.shape[::-1], 1, 1, 1)[:4]
