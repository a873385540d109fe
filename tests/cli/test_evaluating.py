"""`aggml imatrix` and `aggml eval`: files and numbers, for people and for programs.

Not here: whether the numbers are right (tests/models/test_measuring.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli.program import run
from models import random_models
from models.test_measuring import text
from models.test_rank_heads import vocabulary

import aggml
from aggml.models.imatrix import read_imatrix

if TYPE_CHECKING:
    from pathlib import Path


def test_a_matrix_is_measured_used_and_what_was_lost_is_told(tmp_path: Path) -> None:
    model = random_models.write(tmp_path / "model.gguf", "qwen3moe", vocabulary())
    words, matrix = tmp_path / "letters.txt", tmp_path / "matrix.gguf"
    words.write_text(text(), encoding="utf-8")
    told = json.loads(run("imatrix", model, words, matrix, "--ctx", "64", "--json")[0])
    assert (told["chunks"], told["tokens"], told["target"]) == (2, 128, str(matrix))
    assert told["matrices"] == len(read_imatrix(matrix))
    with aggml.GGUFFile.open(matrix) as file:
        assert file.metadata["imatrix.datasets"] == ["letters.txt"]
    small, saved = tmp_path / "small.gguf", tmp_path / "base.logits"
    run("gguf", "quantize", model, small, "--type", "q4_0", "--imatrix", matrix)
    more = ("--ctx", "64", "--threads", "1")
    base = json.loads(run("eval", model, words, *more, "--save-logits", saved, "--json")[0])
    assert base["divergence"] is None
    beside = json.loads(run("eval", small, words, *more, "--kl-base", model, "--json")[0])
    again = json.loads(run("eval", small, "--kl-base", saved, "--json")[0])
    for found in (beside, again):
        apart = found["divergence"]
        assert found["ppl"] == pytest.approx(beside["ppl"])
        assert apart["base_ppl"] == pytest.approx(base["ppl"], rel=1e-3)
        assert 0 < apart["kl"] < 1
        assert apart["kl_percentiles"]["50"] < apart["kl_percentiles"]["99.9"]
    lines = run("eval", small, words, *more, "--chunks", "1", "--kl-base", model)[0].splitlines()
    assert lines[0].startswith("perplexity ")
    assert "31 of 1 chunks" in lines[1]
    assert "same token on top" in lines[-1]


def test_a_text_that_is_no_text_is_refused(tmp_path: Path) -> None:
    model = random_models.write(tmp_path / "model.gguf", "llama", vocabulary())
    raw = tmp_path / "raw"
    raw.write_bytes(b"\xff\xfe\x00")
    out, err = run("eval", model, raw, status=2)
    assert not out
    assert "no text in UTF-8" in err
    assert "text is missing" in run("eval", model, status=1)[1]
