"""read_numbered_literals: the vocabulary of RWKV from rwkv_vocab_v20230424.txt and files like it.

Here: that format. Not here: cutting text by it (../tokenizers/longest.py).
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from aggml.models.checkpoints.folder_vocabulary import FolderVocabulary
from aggml.models.errors import ModelError
from aggml.models.tokenizers.longest import escape_token
from aggml.models.tokenizers.roles import CONTROL, NORMAL

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_numbered_literals"]


def read_numbered_literals(path: Path) -> FolderVocabulary:
    r"""Read a file with a token in each line: its id, a Python literal (str or bytes), its bytes.

    Token 0 begins and ends texts, as in llama.cpp. The token of two line feeds ends a turn of a
    conversation.

    Raises:
        ModelError: a line has another form; the message gives its number.
    """
    words = FolderVocabulary("rwkv", {0: "<s>"}, {0: CONTROL})
    turn = None
    for at, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        told = _read_line(line)
        if told is None:
            raise ModelError(
                f"{path.name}, line {at}: expected number, literal and size, found {line[:60]!r}"
            )
        i, token = told
        words.tokens[i], words.kinds[i] = escape_token(token), NORMAL
        if token == b"\n\n":
            turn = i
    words.special = {"bos_token": 0, "eos_token": 0}
    words.add_bos = words.add_eos = False
    if turn is not None:
        words.more["eot_token_id"] = turn
    return words


def _read_line(line: str) -> tuple[int, bytes] | None:
    """Token id and bytes of a line; None if it is damaged."""
    try:
        number, rest = line.split(" ", 1)
        literal, size = rest.rsplit(" ", 1)
        told = ast.literal_eval(literal)
        token = told.encode() if isinstance(told, str) else told
        fits = isinstance(token, bytes) and len(token) == int(size)
        return (int(number), token) if fits else None
    except (ValueError, SyntaxError):
        return None
