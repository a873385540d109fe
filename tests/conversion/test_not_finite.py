"""Numbers that blocks cannot hold are refused; importance of zero gives finite blocks.

Not here: the bits of the blocks (test_quant.py).
"""

from __future__ import annotations

import numpy as np
import pytest

import aggml
from aggml import DType, InvalidArgument

BLOCKS = [t for t in DType if t.is_quantized]
SMALL, LARGE = 512, 1 << 17  # at once; on the worker threads


def sample(n: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((n // 512, 512)).astype(np.float32)


def importance(dtype: DType) -> np.ndarray | None:
    return np.ones(512, np.float32) if dtype in (DType.IQ2_XXS, DType.IQ2_XS, DType.IQ1_S) else None


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda t: t.type_name)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
async def test_a_number_that_is_not_finite_is_refused_by_its_place(
    dtype: DType, wrong: float
) -> None:
    x = sample(SMALL * 3)
    x[1, 77] = wrong
    with pytest.raises(InvalidArgument, match=rf"x is {wrong} in row 1, column 77"):
        aggml.quantize(x, dtype, importance(dtype))


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_K", "iq4_nl", "mxfp4"])
@pytest.mark.parametrize("weighted", [False, True])
async def test_on_worker_threads_too(name: str, weighted: bool) -> None:
    x = sample(LARGE)
    x[200, 3] = np.nan
    weights = np.ones(512, np.float32) if weighted else None
    with pytest.raises(InvalidArgument, match=r"x is -?nan in row 200, column 3"):
        aggml.quantize(x, name, weights)
    with pytest.raises(InvalidArgument, match=r"x is -?nan in row 200, column 3"):
        await aggml.quantize_async(x, name, weights)
    x[200, 3] = 1
    assert np.isfinite(aggml.dequantize(await aggml.quantize_async(x, name, weights), name)).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1.0, -1e-30])
async def test_an_importance_that_is_not_finite_or_negative_is_refused(wrong: float) -> None:
    weights = np.ones(512, np.float32)
    weights[9] = wrong
    with pytest.raises(InvalidArgument, match=r"imatrix is (nan|-?inf|-1.*) in column 9"):
        aggml.quantize(sample(SMALL), "q4_K", weights)
    with pytest.raises(InvalidArgument, match=r"imatrix is (nan|-?inf|-1.*) in column 9"):
        await aggml.quantize_async(sample(SMALL), "q4_K", weights)


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda t: t.type_name)
def test_blocks_are_finite_whatever_the_importance_is(dtype: DType) -> None:
    random = np.random.default_rng(4)
    partly = random.random(512).astype(np.float32)
    partly[100:300] = 0
    some = np.where(np.arange(512) < 256, 0, 1).astype(np.float32)
    spread = np.full(512, 1e20, np.float32)
    for weights in (
        np.zeros(512, np.float32),
        partly,
        some,
        np.full(512, 1e-42, np.float32),
        spread,
    ):
        for x in (sample(SMALL * 2), np.zeros((2, 512), np.float32), sample(SMALL) * 1e-38):
            blocks = aggml.quantize(x, dtype, weights)
            assert np.isfinite(aggml.dequantize(blocks, dtype)).all()


def test_without_importance_a_block_of_iq4_nl_is_empty_as_in_ggml() -> None:
    """ggml writes the scale 0 and the code of 0 (8) for each element."""
    blocks = aggml.quantize(sample(SMALL), "iq4_nl", np.zeros(512, np.float32))
    assert set(blocks.reshape(-1, 18)[:, :2].reshape(-1)) == {0}
    assert set(blocks.reshape(-1, 18)[:, 2:].reshape(-1)) == {0x88}
    assert not aggml.dequantize(blocks, "iq4_nl").any()


def test_f16_and_bf16_keep_numbers_that_are_not_finite() -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)
    for name in ("f16", "bf16"):
        back = aggml.dequantize(aggml.quantize(x, name), name)
        np.testing.assert_array_equal(back, x)
