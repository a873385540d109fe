"""aggml.quantize and aggml.dequantize as functions: shapes, many threads, the loop, misuse.

Not here: the resulting bytes (ops/test_types.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import ml_dtypes
import numpy as np
import pytest

import aggml
from aggml import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Types for each way of dividing the work: by rows or by blocks, with a search or without.
TYPES = ["f16", "bf16", "q4_0", "q8_0", "q5_1", "q4_K", "q6_K", "tq1_0", "nvfp4", "iq4_xs", "q8_K"]


def floats(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def row_by_row(
    x: NDArray[np.float32], dtype: str, imatrix: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    return np.stack([aggml.quantize(row, dtype, imatrix) for row in x])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_large_array_is_its_rows(dtype: str, *, weighted: bool) -> None:
    x = floats(80, 768)  # more than one thread does alone, and not a multiple of a chunk
    imatrix = np.abs(floats(768, seed=2)) if weighted else None
    blocks = aggml.quantize(x, dtype, imatrix)
    assert blocks.shape == (80, DType.parse(dtype).row_size(768))
    assert np.array_equal(blocks, row_by_row(x, dtype, imatrix))
    back = aggml.dequantize(blocks, dtype, ne=(768, 80))
    rows = [aggml.dequantize(row, dtype, ne=(768,)) for row in blocks]
    assert np.array_equal(back, np.stack(rows))


@pytest.mark.parametrize("dtype", TYPES)
async def test_awaited_conversions_give_what_blocking_ones_give(dtype: str) -> None:
    x = floats(3, 2, 256)
    blocks = await aggml.quantize_async(x, dtype)
    assert np.array_equal(blocks, aggml.quantize(x, dtype))
    back = await aggml.dequantize_async(blocks, dtype, ne=(256, 2, 3))
    assert back.shape == (3, 2, 256)
    assert np.array_equal(back, aggml.dequantize(blocks, dtype, ne=(256, 2, 3)))


async def test_awaited_with_weights_side_by_side() -> None:
    x, imatrix = floats(4, 512), np.abs(floats(512, seed=2))
    kinds = ["q4_0", "q5_0", "q2_K", "q3_K", "q5_K", "iq4_nl", "tq2_0"]
    found = await aggml.gather(*[aggml.quantize_async(x, kind, imatrix) for kind in kinds])
    for kind, blocks in zip(kinds, found, strict=True):
        assert np.array_equal(blocks, aggml.quantize(x, kind, imatrix))


async def test_cancelled_quantization_is_aborted() -> None:
    future = aggml.quantize_async(floats(1000, 4096), "q4_K")  # some 100 ms on any machine
    with anyio.move_on_after(0):
        await future
    with pytest.raises(aggml.Aborted):
        await future
    x = floats(2, 256)
    assert np.array_equal(await aggml.quantize_async(x, "q4_K"), aggml.quantize(x, "q4_K"))


async def test_arrays_are_kept_until_done() -> None:
    expected = aggml.quantize(floats(40, 1024), "q4_K")
    future = aggml.quantize_async(floats(40, 1024), "q4_K")  # the array has no other reference
    assert np.array_equal(await future, expected)


@pytest.mark.parametrize("shape", [(256,), (1, 256), (2, 3, 4, 2, 256), (0, 256), (3, 0)])
async def test_shapes(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    row = DType.Q4_K.row_size(shape[-1])
    for blocks in (aggml.quantize(x, "q4_K"), await aggml.quantize_async(x, "q4_K")):
        assert blocks.shape == (*shape[:-1], row)
        assert aggml.dequantize(blocks, "q4_K", ne=shape[::-1]).shape == shape
        assert (await aggml.dequantize_async(blocks, "q4_K", ne=shape[::-1])).shape == shape


@pytest.mark.parametrize("shape", [(256,), (1, 256), (2, 3, 4, 2, 256), (0, 256), (3, 0)])
@pytest.mark.parametrize("dtype", [kind for kind in DType if kind.is_quantized], ids=str)
async def test_back_and_forth_keeps_the_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    blocks = aggml.quantize(x, dtype, np.ones(shape[-1], np.float32))
    back = aggml.dequantize(blocks, dtype)
    assert back.shape == x.shape
    assert np.array_equal(back, aggml.dequantize(blocks.reshape(-1), dtype, ne=shape[::-1]))
    assert np.array_equal(back, await aggml.dequantize_async(blocks, dtype))
    assert np.array_equal(back.reshape(-1), aggml.dequantize(blocks, dtype, ne=x.size))


@pytest.mark.parametrize("dtype", ["float16", "bf16"])
def test_back_and_forth_of_halves(dtype: str) -> None:
    x = floats(3, 5).astype(DType.parse(dtype).numpy).astype(np.float32)
    blocks = aggml.quantize(x, dtype)
    assert np.array_equal(aggml.dequantize(blocks, dtype), x)
    halves = x.astype(DType.parse(dtype).numpy)
    assert np.array_equal(aggml.dequantize(halves, dtype), x)
    assert np.array_equal(aggml.dequantize(halves[:, ::2], dtype), x[:, ::2])
    assert np.array_equal(aggml.dequantize(x, "float32"), x)


def test_arrays_with_gaps_and_at_odd_addresses() -> None:
    x = floats(6, 512)
    expected = aggml.quantize(np.ascontiguousarray(x[::2, :256]), "q8_K")
    assert np.array_equal(aggml.quantize(x[::2, :256], "q8_K"), expected)
    odd = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    odd[:] = x
    assert np.array_equal(aggml.quantize(odd, "q8_K"), aggml.quantize(x, "q8_K"))
    bytes_at_odd = np.empty(expected.nbytes + 1, np.uint8)[1:].reshape(expected.shape)
    bytes_at_odd[:] = expected
    assert np.array_equal(
        aggml.dequantize(bytes_at_odd, "q8_K", ne=(256, 3)),
        aggml.dequantize(expected, "q8_K", ne=(256, 3)),
    )


def test_halves_may_come_as_what_they_are() -> None:
    x = floats(64)
    half, brain = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)
    assert np.array_equal(aggml.quantize(x, "f16").view(np.float16), half)
    assert np.array_equal(aggml.dequantize(half, "f16", ne=(64,)), half.astype(np.float32))
    assert np.array_equal(aggml.dequantize(brain, "bf16", ne=(64,)), brain.astype(np.float32))
    assert np.array_equal(
        aggml.dequantize(brain.view(np.uint16), "bf16", ne=(64,)), brain.astype(np.float32)
    )


@pytest.mark.parametrize("value", [1e-42, -3e38, 0.0])
@pytest.mark.parametrize("dtype", [kind.type_name for kind in DType if kind.is_quantized])
def test_any_float_can_be_quantized(dtype: str, value: float) -> None:
    """Blocks of extreme numbers may be infinite, but do no harm and leave other rows intact."""
    x = floats(2, 512)
    x[0, 256:300] = value
    imatrix = np.ones(512, np.float32)
    blocks = aggml.quantize(x, dtype, imatrix)
    aggml.dequantize(blocks, dtype, ne=(512, 2))
    assert np.array_equal(blocks[1], aggml.quantize(x[1], dtype, imatrix))


BLOCKS = np.zeros(144, np.uint8)
WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "f64": (
        lambda: aggml.quantize(np.zeros(256), "q4_K"),
        aggml.LayoutMismatch,
        r"\[quantize\] .*float64",
    ),
    "other byte order": (
        lambda: aggml.quantize(np.zeros(256, ">f4"), "q4_K"),
        aggml.LayoutMismatch,
        r"\[quantize\]",
    ),
    "half a block": (
        lambda: aggml.quantize(floats(128), "q4_K"),
        aggml.LayoutMismatch,
        r"\[quantize\] .*128.*256.*q4_K",
    ),
    "a scalar": (
        lambda: aggml.quantize(np.float32(1), "q4_K"),  # type: ignore[arg-type]
        aggml.LayoutMismatch,
        r"\[quantize\]",
    ),
    "no type": (lambda: aggml.quantize(floats(32), "q9"), aggml.InvalidArgument, "q9"),
    "no quantizer": (
        lambda: aggml.quantize(floats(32), "i32"),
        aggml.Unsupported,
        r"\[quantize\] .*i32",
    ),
    "no quantizer, awaited": (
        lambda: aggml.quantize_async(floats(32), "i32"),
        aggml.Unsupported,
        r"\[quantize_async\] .*i32",
    ),
    "weights of other columns": (
        lambda: aggml.quantize(floats(256), "q4_K", floats(255)),
        aggml.InvalidArgument,
        r"\[quantize\] imatrix .*255.*256",
    ),
    "weights that are no numbers": (
        lambda: aggml.quantize(floats(256), "q4_K", np.array(["a"] * 256)),
        aggml.InvalidArgument,
        r"\[quantize\] imatrix",
    ),
    "too few bytes": (
        lambda: aggml.dequantize(BLOCKS[:100], "q4_K", ne=(256,)),
        aggml.LayoutMismatch,
        r"\[dequantize\] .*144 bytes, got 100",
    ),
    "blocks of floats": (
        lambda: aggml.dequantize(np.zeros(36, np.float32), "q4_K", ne=(256,)),
        aggml.LayoutMismatch,
        r"\[dequantize\] .*float32",
    ),
    "no extents": (
        lambda: aggml.dequantize(BLOCKS, "q4_K", ne=()),
        aggml.InvalidArgument,
        r"\[dequantize\] ne=\(\)",
    ),
    "negative extents": (
        lambda: aggml.dequantize(BLOCKS, "q4_K", ne=(-256, -1)),
        aggml.InvalidArgument,
        r"\[dequantize\] ne=",
    ),
    "half extents": (
        lambda: aggml.dequantize(BLOCKS, "q4_K", ne=(256, 0.5)),  # type: ignore[arg-type]
        aggml.InvalidArgument,
        r"\[dequantize\] ne=",
    ),
    "half a number of extents": (
        lambda: aggml.dequantize(BLOCKS, "q4_K", ne=25.6),  # type: ignore[arg-type]
        aggml.InvalidArgument,
        r"\[dequantize\] ne=25.6",
    ),
    "a number that cuts a block": (
        lambda: aggml.dequantize(BLOCKS, "q4_K", ne=255),
        aggml.InvalidArgument,
        r"\[dequantize\] ne=\(255,\).*256",
    ),
    "rows that cut a block": (
        lambda: aggml.dequantize(BLOCKS.reshape(2, 72), "q4_K"),
        aggml.LayoutMismatch,
        r"\[dequantize\] .*\(2, 72\).*144 bytes; pass the extents as ne=",
    ),
    "a scalar of bytes": (
        lambda: aggml.dequantize(np.zeros((), np.uint8), "q4_K"),
        aggml.LayoutMismatch,
        r"\[dequantize\]",
    ),
    "nothing to read": (
        lambda: aggml.dequantize(np.zeros(4, np.int32), "i32", ne=(4,)),
        aggml.Unsupported,
        r"\[dequantize\] .*i32",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_misuse_is_refused_at_the_call(what: str) -> None:
    do, error, message = WRONG[what]
    with pytest.raises(error, match=message):
        do()
