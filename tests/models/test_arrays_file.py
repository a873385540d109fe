"""ArraysFile places tensors where their arrays lie, in a mapped file or in memory.

Not here: the formats that such arrays come from (test_speech.py).
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import DType
from aggml.models.checkpoints.arrays import ArraysFile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_arrays_are_not_copied_where_a_device_reads_host_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    path = tmp_path / "weights.bin"
    path.write_bytes(values.tobytes())
    with path.open("rb") as opened:
        whole = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY), np.float32)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "mapped": whole.reshape(3, 64), "own": values, "wide": values.astype(np.float64),
    }  # fmt: skip
    device = aggml.get_device("CPU")
    with ArraysFile(path, {}, arrays) as file, device.backend(n_threads=1) as be:
        buffers = file.map(device)
        assert [x.is_file for x in buffers] == [True, False, False]
        for name in ("mapped", "own"):
            placement = file.tensors[name].placement
            assert placement is not None
            assert placement.address == arrays[name].__array_interface__["data"][0]
        for tensor in file.tensors.values():
            assert tensor.dtype is DType.F32
            assert np.array_equal(np.asarray(await be.get(tensor)).reshape(3, 64), values)
        for buffer in buffers:
            buffer.close()


def test_a_tensor_that_is_placed_already_leaves_nothing_behind(tmp_path: Path) -> None:
    arrays = {x: np.ones((2, 32), np.float32) for x in ("a", "b")}
    device = aggml.get_device("CPU")
    with ArraysFile(tmp_path, {}, arrays) as file:
        (buffer,) = file.map(device, ["b"])
        with pytest.raises(aggml.AlreadyAllocated):
            file.map(device)
        assert file.tensors["a"].placement is None
        buffer.close()
