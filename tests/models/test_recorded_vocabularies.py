"""Random GGUF vocabularies of each kind give the tokens and texts that llama.cpp gave.

These were recorded (benchmarks/make_vocabularies.py). Not here: the ways of cutting words
(test_cuts.py), new vocabularies each time (tests/fuzz/gguf_vocabularies.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from models.random_vocabularies import differences

from aggml.models.tokenizers import open_vocabulary

RECORDED: Final[list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("recorded_vocabularies.json").read_text(encoding="ascii")
)


@pytest.mark.parametrize("k", range(len(RECORDED)))
def test_tokens_texts_and_ends_are_those_of_llama_cpp(k: int) -> None:
    case = RECORDED[k]
    words = open_vocabulary(case["metadata"])
    assert words is not None
    assert differences(words, case["metadata"], case["texts"], case["wanted"]) == []


def test_every_kind_was_recorded() -> None:
    kinds = {x["metadata"]["tokenizer.ggml.model"] for x in RECORDED}
    assert kinds == {"bert", "gemma4", "gpt2", "llama", "rwkv", "t5", "whitespace"}
