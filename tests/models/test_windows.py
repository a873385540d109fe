"""A layer with a window caches no more positions than its window: the sizes of all caches.

Not here: that such a ring gives the logits of a whole cache (test_architectures.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from models import layout, random_models

import aggml
from aggml import DType
from aggml.models.kv.caches import CHUNK, Caches
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from pathlib import Path

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
