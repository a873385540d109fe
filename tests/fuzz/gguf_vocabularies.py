"""Fuzzer: generated GGUF vocabularies give the tokens and texts of llama.cpp.

Each program is a vocabulary of one of llama.cpp's kinds, with random types of tokens, special
tokens and flags, and some texts. Tokens with and without special ones, the bytes of each token and
the tokens that end an answer must be the same. It needs llama-cpp-python; what llama.cpp gave for
some programs is recorded (tests/models/test_recorded_vocabularies.py).
"""

from __future__ import annotations

import ctypes
import importlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuzz.rounds import Failure, Report, draw
from models.random_vocabularies import WAYS, a_text, a_vocabulary, differences, write

from aggml.models.tokenizers import open_vocabulary

if TYPE_CHECKING:
    import random

LOOPS: Final = ("no loop",)
SHORT: Final = 40
TEXTS: Final = 8

llama_cpp: Any = importlib.import_module("llama_cpp")
_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_quiet = _Log(lambda level, text, data: None)
llama_cpp.llama_log_set(_quiet, None)
llama_cpp.llama_backend_init()


def expected(path: Path, texts: list[str]) -> dict[str, Any]:
    """What llama.cpp gives for a file: tokens of texts, bytes of tokens, tokens that end."""
    about = llama_cpp.llama_model_default_params()
    about.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), about)
    assert model, f"llama.cpp does not read {path}"
    words = llama_cpp.llama_model_get_vocab(model)
    room = (llama_cpp.llama_token * 8192)()

    def ids(text: str, special: bool, parse: bool) -> list[int]:
        raw = text.encode()
        n = llama_cpp.llama_tokenize(words, raw, len(raw), room, len(room), special, parse)
        return list(room[:n])

    def piece(token: int) -> str:
        out = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(words, token, out, 256, 0, False)
        return out.raw[: max(n, 0)].hex()

    n = llama_cpp.llama_vocab_n_tokens(words)
    found = {
        "ids": [[ids(x, s, p) for s, p in WAYS] for x in texts],
        "pieces": [piece(i) for i in range(n)],
        "ends": [i for i in range(n) if llama_cpp.llama_vocab_is_eog(words, i)],
    }
    llama_cpp.llama_model_free(model)
    return found


def program(r: random.Random, path: Path, counts: Counter[str]) -> None:
    """One vocabulary."""
    metadata = a_vocabulary(r)
    texts = [a_text(r, metadata) for _ in range(TEXTS)]
    write(path, metadata)
    wanted = expected(path, texts)
    words = open_vocabulary(metadata)
    assert words is not None
    found = differences(words, metadata, texts, wanted)
    shown = {k: x for k, x in metadata.items() if "scores" not in k}
    assert not found, f"{found[0]}\n({len(found)} differences) {shown}"
    counts[metadata["tokenizer.ggml.model"]] += 1


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """Run programs ``first`` to ``first + programs - 1``."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(first, first + programs):
            try:
                program(draw(seed, k), Path(folder, "vocabulary.gguf"), counts)
            except AssertionError as error:
                raise Failure(seed, k, loop, str(error)) from error
    return Report(programs, dict(sorted(counts.items())))
