"""Ngram files: what mostly followed some tokens, kept for the next process.

A file is GGUF: for each length of a context its tokens, and which token followed with how many
votes. It is written aside and renamed when it is whole, so of two processes that write one name the
later one counts. Here: the format. Not here: the table (ngrams.py), who reads and writes it
(../drafting.py, speculation.py).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import AggmlError
from aggml.gguf import GGUFFile, GGUFWriter
from aggml.models.engine.ngrams import ORDERS, VOTES, NgramTable
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["identity_of_tokens", "read_ngrams", "write_ngrams"]

KIND: Final = "ngrams"
VERSION: Final = 1
HALVES: Final = ("old", "young")


def identity_of_tokens(pieces: Sequence[str] | None, size: int) -> str:
    """What a file says of the vocabulary whose tokens it has, as a text.

    Args:
        pieces: the texts of all tokens; None: the model has no vocabulary.
        size: how many tokens the model has.
    """
    texts = [] if pieces is None else [x.encode("utf-8", "surrogatepass") for x in pieces]
    lengths = b"".join(len(x).to_bytes(4, "little") for x in texts)
    return hashlib.sha256(b"".join([b"%d\n" % size, lengths, *texts])).hexdigest()


def read_ngrams(path: Path, identity: str, vocabulary: int) -> NgramTable:
    """The table of a file; an empty one if there is no file.

    Blocks while it reads.

    Args:
        path: of the file.
        identity: of the vocabulary, by `identity_of_tokens`.
        vocabulary: how many tokens there are.

    Raises:
        ModelError: the file cannot be read, is no such file, or is of another vocabulary; there is
            none, and its folder is missing.
    """
    table = NgramTable()
    try:
        with GGUFFile.open(path) as file:
            told = file.metadata
            if told.get("general.type") != KIND or told.get(f"{KIND}.version") != VERSION:
                raise ModelError(f"{path} has no statistics of n-grams of version {VERSION}")
            if told.get(f"{KIND}.vocabulary") != identity:
                raise ModelError(
                    f"{path} has statistics of n-grams of another vocabulary: take another file"
                )
            for half in HALVES:
                for order in ORDERS:
                    rows = _rows(file, f"{half}.{order}", order, vocabulary, path)
                    table.add(half, rows.tolist())
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ModelError(f"{path} cannot be written: there is no such folder") from None
    except (AggmlError, OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the statistics of n-grams {path} cannot be read: {error}") from error
    return table


def _rows(file: GGUFFile, name: str, order: int, vocabulary: int, path: Path) -> Any:  # noqa: ANN401
    """Of each context its tokens, the token that followed, and its votes: (contexts, order + 2)."""
    if name not in file.tensors:
        return np.zeros((0, order + 2), np.int32)
    tensor = file.tensors[name]
    if tensor.dtype.type_name != "i32" or tensor.ne[0] != order + 2 or tensor.ndim > 2:
        raise ModelError(f"{path}: tensor {name!r} has another form")
    found = np.frombuffer(file.data(name), np.int32).reshape(-1, order + 2)
    tokens, votes = found[:, :-1], found[:, -1]
    # keys of positions of pictures are below 0: a context may have them, an answer has none
    if tokens.max() >= vocabulary or tokens[:, -1].min() < 0:
        raise ModelError(f"{path}: tensor {name!r} has tokens that are not 0 to {vocabulary - 1}")
    if votes.min() < 1 or votes.max() > 2 * VOTES[-1]:
        raise ModelError(f"{path}: tensor {name!r} has votes that are not 1 to {2 * VOTES[-1]}")
    return found


def write_ngrams(path: Path, identity: str, table: NgramTable) -> None:
    """Write a table; an empty one is not written.

    Blocks while it writes: 0.5 million contexts take about a second.

    Raises:
        OSError: the file cannot be written.
    """
    if not len(table):
        return
    aside = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.writing")
    try:
        with GGUFWriter(aside) as writer:
            writer.add("general.architecture", KIND)
            writer.add("general.type", KIND)
            writer.add(f"{KIND}.version", VERSION)
            writer.add(f"{KIND}.vocabulary", identity)
            for half in HALVES:
                for order in ORDERS:
                    rows = table.entries(half, order)
                    if rows:
                        writer.add_tensor(f"{half}.{order}", np.array(rows, np.int32))
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
