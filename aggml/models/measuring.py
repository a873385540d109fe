"""measure_imatrix: how much each column of each matrix matters for a text, written to a file.

The file has the form of llama.cpp's llama-imatrix in GGUF: for each matrix the sums of the squares
of what its columns are multiplied by, and how many rows were summed. Here: the text's chunks, sums,
the file. Not here: the nodes that sum (decoder/activations.py), reading such files (imatrix.py),
quantizing with them (converting.py).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import numpy as np

import aggml
from aggml import GGUFWriter, InvalidArgument
from aggml.models.arguments import file_path, flag, integer, one_text, show
from aggml.models.decoder.activations import Activations, activations_of
from aggml.models.errors import ModelError
from aggml.models.imatrix import COUNTS, SUMS
from aggml.models.kv.caches import CHUNK
from aggml.models.loading import load_decoder
from aggml.models.model import LONG_TEXT
from aggml.models.site import free_with, site_of
from aggml.models.tokenizers import open_vocabulary
from aggml.models.weights import open_model

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from aggml import Backend, Scheduler
    from aggml.models.decoder.batch import Shape
    from aggml.models.decoder.decoder import Decoder
    from aggml.models.tokenizers import Vocabulary

__all__ = ["Importance", "begin_text", "chunks_of", "measure_imatrix", "open_decoder"]

#: The fewest tokens of a chunk: shorter pieces of text say little, and half of a chunk is scored.
FEWEST: Final = 16


@dataclass(frozen=True, slots=True)
class Importance:
    """What `measure_imatrix` has written.

    Attributes:
        chunks: how many pieces of the text were computed.
        tokens: of all of them.
        matrices: how many matrices have sums.
        unused: experts of all matrices that no token of the text was sent to; they weigh alike.
    """

    chunks: int
    tokens: int
    matrices: int
    unused: int


async def measure_imatrix(
    path: str | os.PathLike[str],
    text: str,
    target: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    ctx: int = 512,
    chunks: int | None = None,
    output: bool = False,
    dataset: str = "text",
    progress: Callable[[int, int], None] | None = None,
) -> Importance:
    """Write an importance matrix of a model for a text: ``quantize`` and `convert` take it.

    The text is computed in chunks of ``ctx`` tokens, each of which begins anew. One chunk is in
    memory at a time, and of each matrix only sums.

    Args:
        path: the model, a GGUF file or a folder of Hugging Face; it must continue text.
        text: at least ``ctx`` tokens; the more, the better.
        target: the file to write; an existing one is replaced when the new one is complete.
        backend: where to compute; None: the best device.
        ctx: tokens of a chunk.
        chunks: at most so many; None: the whole text.
        output: whether the matrix of the logits is measured, too.
        dataset: what the file calls the text.
        progress: called with the chunks done so far and the chunks in all.

    Raises:
        InvalidArgument: the text is too short; an argument is wrong.
        ModelError: the file cannot be read, or does not continue text; a sum is not finite.
        OSError: the target cannot be written.

    Cancellation: takes effect after the current step; an old ``target`` stays.
    """
    place = "measure_imatrix"
    where = file_path(place, "target", target)
    content, named = one_text(place, "text", text), one_text(place, "dataset", dataset)
    size = integer(place, "ctx", ctx, FEWEST)
    most = None if chunks is None else integer(place, "chunks", chunks, 1)
    output = flag(place, "output", output)
    sums: dict[str, npt.NDArray[np.float64]] = {}
    counts: dict[str, npt.NDArray[np.float64]] = {}
    async with open_decoder(place, path, backend, size) as (decoder, words):
        pieces = await chunks_of(place, words, content, size, most)
        kept: dict[Shape, Activations] = {}
        for done, piece in enumerate(pieces):
            ids = begin_text(words, piece)
            if progress is not None:
                progress(done, len(pieces))
            for at in range(0, size, CHUNK):
                step = ids[at : at + CHUNK]
                for name, add, rows in await _measure_step(decoder, step, at, output, kept):
                    sums[name] = add if name not in sums else sums[name] + add
                    counts[name] = rows if name not in counts else counts[name] + rows
            for name, values in sums.items():
                if not np.isfinite(values).all():
                    raise ModelError(
                        f"what {name!r} is multiplied by is not finite in chunk {done}"
                    )
    if progress is not None:
        progress(len(pieces), len(pieces))
    await anyio.to_thread.run_sync(_write, where, sums, counts, len(pieces), size, named)
    unused = sum(int((x == 0).sum()) for x in counts.values())
    return Importance(len(pieces), len(pieces) * size, len(sums), unused)


async def _measure_step(
    decoder: Decoder,
    ids: Sequence[int],
    at: int,
    output: bool,
    kept: dict[Shape, Activations],
) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Name, sums and counts of each product of a step."""
    batch = decoder.batch_of(ids, at)
    shape = batch.shape(0)
    found = kept.get(shape)
    if found is None:
        step = await decoder.build(batch, hidden=not output)
        found = activations_of(step, output=output)
        await decoder.site.prepare(found.step.graph)
        free_with(found, found.step.graph)
        kept[shape] = found
    if not found.results:
        raise ModelError(f"a step of {len(ids)} tokens has no product with a matrix to measure")
    future = await decoder.run_more(found.step, batch, found.inputs, found.results)
    return found.read(await future)


@asynccontextmanager
async def open_decoder(
    place: str, path: str | os.PathLike[str], backend: Backend | Scheduler | None, ctx: int
) -> AsyncGenerator[tuple[Decoder, Vocabulary]]:
    """A model of one sequence of ``ctx`` tokens, and its tokenizer, until the end of the block.

    Raises:
        InvalidArgument: ``backend`` is neither a Backend nor a Scheduler.
        ModelError: the file cannot be read, does not continue text, or has no vocabulary.
    """
    where = file_path(place, "path", path)
    own = None
    if backend is None:
        own = (await anyio.to_thread.run_sync(aggml.best_device)).backend()
    at: Any = backend if own is None else own
    site_of(at)  # raises if it is neither a Backend nor a Scheduler
    try:
        with await open_model(where) as file:
            words = await anyio.to_thread.run_sync(open_vocabulary, file.metadata)
            if words is None:
                raise ModelError(f"{str(where)!r} has no vocabulary: its text has no tokens")
            decoder = await load_decoder(at, file, ctx=ctx)
        try:
            yield decoder, words
        finally:
            decoder.close()
            with anyio.CancelScope(shield=True):
                await decoder.lifetime.wait_until_freed()
    finally:
        if own is not None:
            with anyio.CancelScope(shield=True):
                await own.aclose()


async def chunks_of(
    place: str, words: Vocabulary, text: str, ctx: int, most: int | None
) -> list[list[int]]:
    """The whole chunks of a text. Names of control tokens in the text are text.

    Raises:
        InvalidArgument: the text has fewer tokens than a chunk.
    """
    if len(text) <= LONG_TEXT:
        ids = words.encode(text, special=False, literal=True)
    else:
        ids = await anyio.to_thread.run_sync(
            lambda: words.encode(text, special=False, literal=True)
        )
    if words.add_bos and words.bos is not None:
        ids.insert(0, words.bos)
    count = len(ids) // ctx
    if not count:
        raise InvalidArgument(
            f"[{place}] text {show(text[:40])} has {len(ids)} tokens, expected were at least "
            f"{ctx}, one chunk"
        )
    count = count if most is None else min(count, most)
    return [ids[i * ctx : (i + 1) * ctx] for i in range(count)]


def begin_text(words: Vocabulary, ids: Sequence[int]) -> list[int]:
    """A chunk that begins with the token that begins texts, if there is one.

    That token replaces the chunk's first one, as in llama.cpp.
    """
    begins = words.add_bos and words.bos is not None
    return [words.bos, *ids[1:]] if begins and words.bos is not None else [*ids]


def _write(
    path: Path,
    sums: dict[str, npt.NDArray[np.float64]],
    counts: dict[str, npt.NDArray[np.float64]],
    chunks: int,
    ctx: int,
    dataset: str,
) -> None:
    """Write the file; blocks meanwhile."""
    with GGUFWriter(path) as writer:
        writer.add("general.type", "imatrix")
        writer.add("imatrix.datasets", [dataset])
        writer.add("imatrix.chunk_count", chunks, "uint32")
        writer.add("imatrix.chunk_size", ctx, "uint32")
        for name in sorted(sums):
            told = counts[name].astype(np.float32).reshape(-1, 1)
            writer.add_tensor(name + SUMS, sums[name].astype(np.float32).reshape(len(told), -1))
            writer.add_tensor(name + COUNTS, told)
