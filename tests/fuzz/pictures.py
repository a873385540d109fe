"""mmproj files with one or two wrong values or tensors, and pictures of any size.

A program takes a small mmproj file, changes it, and loads it beside its text model. Either `load`
raises one ModelError whose text names a key or a tensor, or the embeddings of a picture have the
right width. Not here: text models (metadata.py), what is computed (tests/models/test_pictures.py).
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fuzz.rounds import one_by_one
from models import picture_files as files
from models.layout import WIDTH

import aggml
from aggml.models import ModelError

if TYPE_CHECKING:
    import random

    from fuzz.rounds import Report

__all__ = ["LOOPS", "SHORT", "run"]

LOOPS = ("asyncio",)
SHORT = 60
NAMES_IT = re.compile(r"clip\.[\w.]+|(v|mm)\.[\w.]+|makes embeddings of")
NUMBERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64, 96, 1 << 31, -1, 1 << 40, 0.5, 1e30, math.nan,
    math.inf, "x", [1, 2, 3], True, False,
)  # fmt: skip
COLOURS = ([0.0] * 3, [1e30] * 3, [math.nan] * 3, [1.0], [[1], [2], [3]], 5, "abc", [True] * 3)
SIZES = ((1, 1), (5, 90), (50, 70), (33, 200), (300, 7), (64, 64))


def _change(
    source: random.Random, metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]
) -> str:
    """Change a value or a tensor; returns of which kind the change is."""
    if source.random() < 0.6:
        key = source.choice([x for x in metadata if x.startswith("clip.")])
        metadata[key] = source.choice(COLOURS if isinstance(metadata[key], list) else NUMBERS)
        return "values"
    name = source.choice(list(tensors))
    values = tensors[name]
    how = source.randrange(4)
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[name] = values[: max(1, len(values) // 2)]
    elif how == 2:
        tensors[name] = np.concatenate([values, values])
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            tensors[name] = values * np.float32(source.choice([0.0, 1e30, math.nan, math.inf]))
    return "tensors"


async def _program(source: random.Random) -> Counter[str]:
    kind = source.choice(list(files.KINDS))
    metadata, tensors = files.metadata_of(kind), dict[str, Any](files.weights(kind))
    counts = Counter(_change(source, metadata, tensors) for _ in range(source.randint(1, 2)))
    with tempfile.TemporaryDirectory() as folder:
        eyes = Path(folder, "eyes.gguf")
        with aggml.GGUFWriter(eyes) as writer:
            for key, value in metadata.items():
                writer.add(key, value)
            for name, values in tensors.items():
                writer.add_tensor(name, values)
        text = files.write_text(Path(folder, "text.gguf"), kind)
        found = await _rows(text, eyes, source.choice(SIZES))
    if isinstance(found, str):
        assert NAMES_IT.search(found), f"{kind}: {found}"
        return counts + Counter(refused=1)
    assert found.ndim == 2
    assert found.shape[1] == WIDTH
    return counts + Counter(seen=1)


async def _rows(text: Path, eyes: Path, size: tuple[int, int]) -> Any:
    """The embeddings of a picture, or the text of the refusal."""
    try:
        async with await aggml.models.load(text, ctx=512, mmproj=eyes) as model:
            return await model.embed_image(np.zeros((*size, 3), np.uint8))
    except ModelError as error:
        return str(error)


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """Run programs ``first`` to ``first + programs - 1``."""
    return one_by_one(_program, seed, programs, loop, first)
