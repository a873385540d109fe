"""GGUFWriter's tensors: the gguf package and GGUFFile read what was written.

Invalid tensors are refused. Not here: metadata (test_writing_metadata.py), exceptions and
full disks (test_writing_ends.py), damaged files (test_damaged.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf_by_hand import floats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aggml
from aggml import DType
from aggml.gguf import GGUFFile, GGUFWriter, pieces, writer

if TYPE_CHECKING:
    from pathlib import Path


Kind = gguf.GGUFValueType
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
        if peer.name != "none":  # gguf gives the end of the file as offset of this tensor
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
    """As a cube, a matrix and a row, each larger than a piece; quantized ones, too."""
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
        ("x", floats((32,), 1), "i32", None, aggml.LayoutMismatch, "cannot be written as i32"),
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
