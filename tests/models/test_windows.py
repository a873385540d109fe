"""A layer with a window or chunks: the sizes of all caches, and which positions a token sees.

Not here: that such a ring gives the logits of a whole cache (test_architectures.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
from models import layout, random_models

import aggml
from aggml import DType
from aggml.models.engine.staging import Piece, mask
from aggml.models.kv.caches import CHUNK, Caches
from aggml.models.kv.room import Room
from aggml.models.kv.rows import mask_of, ring_mask
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from pathlib import Path

ROOMS: Final = [Room(), Room(7), Room(7, chunked=True), Room(64, chunked=True)]
CTX: Final = 32768
STEP: Final = 256  # the rows of a ring are a multiple of this


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss", "olmo3"])
async def test_a_cache_of_32k_positions_has_them_in_layers_without_a_window_alone(
    tmp_path: Path, name: str
) -> None:
    path = random_models.write(tmp_path / f"{name}.gguf", name)
    with aggml.GGUFFile.open(path) as file:
        metadata = file.metadata
    window = int(metadata[f"{metadata['general.architecture']}.attention.sliding_window"])
    async with aggml.get_device("CPU").backend() as backend:
        with await open_model(path) as opened:
            decoder = await load_decoder(backend, opened, ctx=CTX)
        caches = decoder.caches
        rows = {length for _, length in caches.rows}
        # Even the last of the CHUNK tokens that a step takes has to see a whole window before it.
        ring = min(rows)
        assert window + CHUNK <= ring <= window + CHUNK + STEP
        assert rows == {ring, CTX}
        assert sum(len(of) for of in caches.layers) == len(caches.rows)
        row = DType.F16.row_size(layout.HEAD * layout.KV_HEADS)
        for cache, length in caches.rows:
            assert cache.nbytes == row * length
            assert cache.buffer is not None
        whole = Caches(decoder.model, DType.F16, CTX, 1, ring=False)
        kept, otherwise = (sum(cache.nbytes for cache in x.all) for x in (caches, whole))
        near = sum(length == ring for _, length in caches.rows)
        decoder.close()
    assert otherwise - kept == near * (CTX - ring) * row > 0


def _sees(room: Room, at: int, position: int) -> bool:
    if position > at or position < 0:
        return False
    if room.window is None:
        return True
    if room.chunked:
        return position // room.window == at // room.window
    return at - position < room.window


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("positions", [[[0, 1, 2]], [[5, 6, 7, 8]], [[13], [14], [30]], [[9, 12]]])
def test_a_token_sees_its_window_or_its_chunk(room: Room, positions: list[list[int]]) -> None:
    found = mask_of(np.array(positions, np.int32), 32, room)
    wanted = [[[_sees(room, at, p) for p in range(32)] for at in row] for row in positions]
    assert np.array_equal(found[:, 0] == 0, wanted)
    assert np.array_equal(found[:, 0] == -np.inf, np.logical_not(wanted))


@pytest.mark.parametrize("room", ROOMS[1:])
def test_a_token_sees_its_window_or_its_chunk_in_a_ring(room: Room) -> None:
    positions = np.array([[30, 31, 32, 33, 34, 35, 36]], np.int32)
    found = ring_mask(positions, 16, room, 16)[0, 0]
    held = [next(p for p in range(36, 20, -1) if p % 16 == row) for row in range(16)]
    wanted = [[_sees(room, at, p) for p in held] for at in positions[0].tolist()]
    assert np.array_equal(found == 0, wanted)


@pytest.mark.parametrize("room", ROOMS)
def test_prompts_side_by_side_see_their_own_windows_and_chunks(room: Room) -> None:
    pieces = [Piece([1] * 9, first=4, slot=1, at=32), Piece([1] * 3, first=0, slot=0, at=0)]
    found = mask(pieces, 12, 64, room)[0, 0]
    wanted = np.zeros((12, 64), bool)
    for row, (begin, at) in enumerate([*((32, 4 + i) for i in range(9)), (0, 0), (0, 1), (0, 2)]):
        wanted[row, begin : begin + 13] = [_sees(room, at, p) for p in range(13)]
    assert np.array_equal(found == 0, wanted)
