"""The codebook types, iq1 to iq3: recorded rows bit for bit, gguf's decoder, odd values."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
from corpus_loader import Vector, vectors

import aggml

TYPES = ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"]
RECORDED = [v for v in vectors() if v.type in TYPES]


def test_what_is_recorded() -> None:
    """7 types in both directions; three of them cannot be quantized without weights."""
    kinds = {(v.type, v.kind) for v in RECORDED}
    assert {(t, k) for t in TYPES for k in ("dequantize", "quantize_imatrix")} < kinds
    assert len(RECORDED) == 7 * 3 + 4 * 2 + 3


@pytest.mark.parametrize("vector", [v for v in RECORDED if "dequantize" in v.kind], ids=str)
def test_dequantize(vector: Vector) -> None:
    expected = vector.array("dst")
    rows, columns = expected.shape
    actual = aggml.dequantize(vector.array("src"), vector.type, ne=(columns, rows))
    assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("vector", [v for v in RECORDED if "dequantize" not in v.kind], ids=str)
def test_quantize(vector: Vector) -> None:
    imatrix = vector.array("imatrix") if vector.kind == "quantize_imatrix" else None
    actual = aggml.quantize(vector.array("src"), vector.type, imatrix)
    assert np.array_equal(actual, vector.array("dst"))


@pytest.mark.parametrize("type_name", TYPES)
def test_random_blocks_are_what_gguf_reads(type_name: str) -> None:
    dtype = aggml.DType.parse(type_name)
    blocks = np.random.default_rng(dtype.value).integers(
        0, 256, (300, dtype.type_size), dtype=np.uint8
    )
    with np.errstate(over="ignore", invalid="ignore"):  # blocks whose scale is infinite or NaN
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(dtype.value))
    actual = aggml.dequantize(blocks, dtype, ne=(256, 300))
    assert np.array_equal(actual, expected, equal_nan=True)


@pytest.mark.parametrize("type_name", ["iq2_xxs", "iq2_xs", "iq1_s"])
def test_rows_without_weights_are_refused(type_name: str) -> None:
    with pytest.raises(aggml.InvalidArgument, match=rf"\[quantize\] {type_name} needs"):
        aggml.quantize(np.ones((1, 256), np.float32), type_name)


@pytest.mark.parametrize("type_name", TYPES)
def test_rows_share_the_weights_of_their_columns(type_name: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((3, 512), np.float32)
    imatrix = rng.random(512, np.float32) + 0.1
    together = aggml.quantize(rows, type_name, imatrix)
    halves = [
        aggml.quantize(rows[:, at : at + 256], type_name, imatrix[at : at + 256]) for at in (0, 256)
    ]
    assert np.array_equal(together, np.concatenate(halves, axis=1))


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-45, -0.0])
def test_no_value_is_dangerous(type_name: str, value: float) -> None:
    rows = np.full((2, 256), value, np.float32)
    rows[1, 1::2] = 1.0
    for each in (1.0, 0.0, -1.0, np.nan):
        imatrix = np.full(256, each, np.float32)
        if not (np.isfinite(value) and np.isfinite(each) and each >= 0):
            with pytest.raises(aggml.errors.InvalidArgument, match="finite numbers"):
                aggml.quantize(rows, type_name, imatrix)
            continue
        blocks = aggml.quantize(rows, type_name, imatrix)
        assert np.array_equal(blocks, aggml.quantize(rows, type_name, imatrix))
        aggml.dequantize(blocks, type_name, ne=(256, 2))


FIRST_USE = f"""
import threading, numpy as np, aggml
rows, weights = np.random.default_rng(0).standard_normal((1, 256), np.float32), np.ones(256)
barrier, found = threading.Barrier(4), {{}}
def work(i):
    if i < 4: barrier.wait()
    found[i] = [aggml.quantize(rows, t, weights).tobytes() for t in {TYPES}]
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
work(4)
assert len(found) == 5 and all(found[i] == found[4] for i in found)
"""


def test_threads_may_share_the_first_use() -> None:
    """The first thread that needs the search tables builds them; the child process has none yet."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
