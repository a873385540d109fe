"""Files of saved logits: the probabilities that a model gave all tokens, as llama.cpp writes them.

A head with the tokens of the text, then for each scored token a scale, the smallest logarithm and
two bytes for each token of the vocabulary. Here: reading and writing. Not here: what is computed
with them (evaluating.py).
"""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Any, Final, Self

import anyio.to_thread
import numpy as np

from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["LogitReader", "LogitWriter", "is_saved"]

MAGIC: Final = b"_logits_"
HEAD: Final = struct.Struct("<8sIii")
#: What is further below the best logit than this is saved as if it were so far below.
DEPTH: Final = 16.0
LEVELS: Final = 65535
MOST_CTX: Final = 1 << 24


def is_saved(path: Path) -> bool:
    """Whether a path is a file that begins as files of saved logits do. Blocks meanwhile."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class LogitReader:
    """An open file of saved logits. Opening blocks while it reads the tokens.

    Attributes:
        ctx: tokens of a chunk.
        vocabulary: tokens that have probabilities.
        chunks: the tokens of each chunk.

    Raises:
        ModelError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        self._file: IO[bytes] = path.open("rb")
        try:
            head = self._file.read(HEAD.size)
            if len(head) < HEAD.size or not head.startswith(MAGIC):
                raise ModelError(f"{str(path)!r} is no file of saved logits")
            self.ctx: int
            self.vocabulary: int
            _, self.ctx, self.vocabulary, count = HEAD.unpack(head)
            if not 2 <= self.ctx <= MOST_CTX or self.vocabulary < 1 or count < 1:
                raise ModelError(
                    f"{str(path)!r} has {count} chunks of {self.ctx} tokens of a vocabulary of "
                    f"{self.vocabulary}, expected were at least 1 of 2 of 1"
                )
            self._width = 2 * ((self.vocabulary + 1) // 2) + 4
            self._rows = self.ctx - 1 - self.ctx // 2
            self._begin = HEAD.size + 4 * self.ctx * count
            wanted = self._begin + 2 * self._width * self._rows * count
            if size != wanted:
                raise ModelError(f"{str(path)!r} has {size} bytes, expected were {wanted}")
            ids = np.frombuffer(self._file.read(4 * self.ctx * count), "<i4")
            if ids.min() < 0 or ids.max() >= self.vocabulary:
                raise ModelError(f"{str(path)!r} has token ids that are not in its vocabulary")
            self.chunks: list[list[int]] = ids.reshape(count, self.ctx).tolist()
        except BaseException:
            self._file.close()
            raise

    def rows(self, chunk: int, first: int, n: int) -> F32:
        """Logarithms of probabilities of some scored tokens of a chunk, (n, vocabulary)."""
        self._file.seek(self._begin + 2 * self._width * (chunk * self._rows + first))
        raw = np.frombuffer(self._file.read(2 * self._width * n), "<u2").reshape(n, self._width)
        about = np.ascontiguousarray(raw[:, :4]).view("<f4")
        found: F32 = raw[:, 4 : 4 + self.vocabulary] * about[:, :1] + about[:, 1:]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class LogitWriter:
    """Writes a file of saved logits: `add` logits in order, then `finish`.

    It is written under another name, and renamed when it is complete. Opening blocks for a moment.

    Args:
        path: the file.
        ctx: tokens of a chunk.
        vocabulary: tokens that have probabilities.
        chunks: the tokens of each chunk.
    """

    def __init__(
        self, path: Path, ctx: int, vocabulary: int, chunks: Sequence[Sequence[int]]
    ) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._file: IO[bytes] = self._part.open("wb")
        self._file.write(HEAD.pack(MAGIC, ctx, vocabulary, len(chunks)))
        self._file.write(np.array(chunks, "<i4").tobytes())

    def add(self, logits: F32) -> None:
        """Add the logits of some tokens, (tokens, vocabulary). Blocks while it writes."""
        top = logits.max(1, keepdims=True)
        low = np.maximum(logits.min(1, keepdims=True), top - DEPTH)
        sums = np.log(np.exp(logits - top).sum(1, dtype=np.float64, keepdims=True))
        scale = ((top - low) / LEVELS).astype("<f4")
        n, vocabulary = logits.shape
        row = np.zeros((n, 2 * ((vocabulary + 1) // 2) + 4), "<u2")
        about = np.concatenate([scale, (low - top - sums).astype("<f4")], axis=1)
        row[:, :4] = np.ascontiguousarray(about).view("<u2")
        steps = np.rint((np.maximum(logits, low) - low) / np.where(scale == 0, 1, scale))
        row[:, 4 : 4 + vocabulary] = np.clip(steps, 0, LEVELS)
        self._file.write(row.tobytes())

    async def finish(self, kind: Any, *_: object) -> None:  # noqa: ANN401 as of __aexit__
        """Rename the file if there was no error, else delete it."""
        await anyio.to_thread.run_sync(self._end, kind is None, abandon_on_cancel=False)

    def _end(self, complete: bool) -> None:
        self._file.close()
        if complete:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)
