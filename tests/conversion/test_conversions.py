"""convert: every value of the 16-bit floats as in ggml, rows of any length, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from corpus_loader import CORPUS

import aggml
from aggml.devices.cpu import isas

Array = np.ndarray[Any, Any]
ISAS = pytest.mark.parametrize("isa", [*isas(), None])
BF16 = np.dtype(ml_dtypes.bfloat16)


def recorded(name: str) -> tuple[Array, Array]:
    with np.load(CORPUS / "types.npz") as file:
        return file[f"{name}/src"], file[f"{name}/dst"]


@ISAS
@pytest.mark.feature("FC-01", "FC-03", "FC-13")
def test_every_f16_as_recorded(isa: str | None) -> None:
    bits, wanted = recorded("fp16_to_f32")
    assert sorted(bits.tolist()) == list(range(1 << 16))
    found = aggml.convert(bits.view(np.float16), "f32", isa=isa)
    assert np.array_equal(found.view(np.uint32), wanted)


@ISAS
@pytest.mark.feature("FC-06", "FC-07", "FC-15")
def test_every_bf16_as_recorded(isa: str | None) -> None:
    bits, wanted = recorded("bf16_to_f32")
    assert sorted(bits.tolist()) == list(range(1 << 16))
    found = aggml.convert(bits.view(BF16), "f32", isa=isa)
    assert np.array_equal(found.view(np.uint32), wanted)


@pytest.mark.feature("FC-02", "FC-04")
def test_f32_to_f16_as_recorded() -> None:
    bits, wanted = recorded("f32_to_fp16")
    found = aggml.convert(bits.view(np.float32), "f16", isa="scalar")
    assert np.array_equal(found.view(np.uint16), wanted)


@ISAS
@pytest.mark.feature("FC-12")
def test_f32_to_f16_of_any_kernel_differs_in_nan_at_most(isa: str | None) -> None:
    bits, wanted = recorded("f32_to_fp16_cpu")
    x = bits.view(np.float32)
    found = aggml.convert(x, "f16", isa=isa).view(np.uint16)
    number = ~np.isnan(x)
    assert np.array_equal(found[number], wanted[number])
    assert np.isnan(found[~number].view(np.float16)).all()
    assert np.array_equal(found[~number] >> 15, wanted[~number] >> 15)


@ISAS
@pytest.mark.feature("FC-05", "FC-08", "FC-09", "FC-14")
def test_f32_to_bf16_as_recorded(isa: str | None) -> None:
    bits, wanted = recorded("f32_to_bf16_ref")
    found = aggml.convert(bits.view(np.float32), "bf16", isa=isa)
    assert np.array_equal(found.view(np.uint16), wanted)


@pytest.mark.feature("FC-08")
def test_only_subnormals_may_differ_from_what_one_machine_of_ggml_gave() -> None:
    bits, wanted = recorded("f32_to_bf16")
    found = aggml.convert(bits.view(np.float32), "bf16").view(np.uint16)
    normal = (bits & 0x7F800000) != 0
    assert np.array_equal(found[normal], wanted[normal])


@pytest.mark.feature("FC-10")
def test_f32_to_f32_copies() -> None:
    x = np.array([0.0, -0.0, np.inf, np.nan, 1e-45], np.float32)
    y = aggml.convert(x, "f32")
    assert y is not x
    assert np.array_equal(x.view(np.uint32), y.view(np.uint32))


@pytest.mark.feature("FC-11")
def test_f32_to_i32_is_defined_for_all() -> None:
    top = 2.0**31
    x = np.array([1.9, -1.9, 0.0, -0.0, np.nan, np.inf, -np.inf, top, -top, 1e30, -1e30], "f4")
    x = np.append(x, np.nextafter(np.float32(top), np.float32(0)))
    high, low = 2**31 - 1, -(2**31)
    wanted = [1, -1, 0, 0, 0, high, low, high, low, high, low, 2147483520]
    assert aggml.convert(x, "i32").tolist() == wanted


@ISAS
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rows_of_any_length(isa: str | None, dtype: str, rng: np.random.Generator) -> None:
    kind = aggml.DType.parse(dtype)
    assert kind.numpy is not None
    for n in (*range(70), 255, 1000):
        x = rng.standard_normal(n).astype(np.float32)
        there = aggml.convert(x, kind, isa=isa)
        assert np.array_equal(there, x.astype(kind.numpy))
        assert np.array_equal(aggml.convert(there, "f32", isa=isa), there.astype(np.float32))


@pytest.mark.feature("FC-01", "FC-05")
def test_scalars_and_shapes() -> None:
    assert aggml.convert(np.float32(1.5), "f16").shape == ()
    assert aggml.convert(np.float16(1.5), "f32") == 1.5
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(aggml.convert(x[:, ::2, ::-1], "f16"), x[:, ::2, ::-1])
    assert aggml.convert(np.zeros((3, 0), np.float32), "bf16").shape == (3, 0)


def test_out_is_filled_or_refused() -> None:
    out = np.empty(3, np.float16)
    x = np.array([1, 2, 3], np.float32)
    assert aggml.convert(x, "f16", out=out) is out
    assert out.tolist() == [1, 2, 3]
    frozen = np.empty(3, np.float16)
    frozen.flags.writeable = False
    for bad, error in (
        (np.empty(3, np.float32), aggml.LayoutMismatch),
        (np.empty(2, np.float16), aggml.LayoutMismatch),
        (np.empty(6, np.float16)[::2], aggml.LayoutMismatch),
        ([0, 0, 0], aggml.InvalidHandle),
        (frozen, aggml.InvalidArgument),
    ):
        with pytest.raises(error):
            aggml.convert(x, "f16", out=bad)  # type: ignore[arg-type]


def test_what_cannot_be_converted() -> None:
    x = np.zeros(32, np.float32)
    for dtype, source in (
        ("q8_0", x),
        ("i8", x),
        ("f16", x.astype("f8")),
        ("bf16", x.astype("f2")),
    ):
        with pytest.raises(aggml.Unsupported, match="convert"):
            aggml.convert(source, dtype)
    with pytest.raises(aggml.InvalidArgument, match="f17"):
        aggml.convert(x, "f17")
    with pytest.raises(aggml.InvalidHandle, match="list"):
        aggml.convert([1.0], "f16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pentium"):
        aggml.convert(x, "f16", isa="pentium")
