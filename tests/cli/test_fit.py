"""`aggml fit`: what of a model fits, for people and for programs.

Not here: the decision (tests/models/test_fit.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from cli.program import run, told
from models import random_models
from support import in_a_thread

import aggml
from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


def said(path: Path, **options: Any) -> aggml.models.Fit:
    found = []
    in_a_thread(lambda: found.append(anyio.run(partial(aggml.models.fit, path, **options))))
    return found[0]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_parts_are_those_of_the_python_function(small: Path, loop: str) -> None:
    found = told("fit", small, "--ctx", "512", "--slots", "2", "--loop", loop)
    wanted = said(small, ctx=512, slots=2)
    for name in ("ctx", "slots", "weights", "packed", "pages", "scratch", "graphs", "total"):
        assert found[name] == getattr(wanted, name)
    assert found["cache"] == "f16"
    assert found["architecture"] == "llama"
    (where,) = found["placement"]
    assert (where["device"], where["first"], where["stop"]) == ("CPU", 0, 4)
    assert where["weights"] == found["weights"]


def test_the_text_names_all_parts(small: Path) -> None:
    text, errors = run("fit", small, "--device", "CPU", "--ctx", "256", "--slots", "1")
    assert errors == ""
    assert text.startswith("llama: 1 sequence of 256 tokens, keys and values in f16\n")
    for name in ("weights", "packed", "pages", "scratch", "graphs", "total", "memory", "CPU"):
        assert f"  {name}" in text


def test_memory_is_given_in_megabytes(small: Path) -> None:
    found = told("fit", small, "--memory", "48")
    assert found["memory"] == 48 << 20
    assert found["total"] <= 48 << 20


def test_a_model_that_does_not_fit_is_a_failure_in_one_line(small: Path) -> None:
    text, errors = run("fit", small, "--memory", "5", "--json", status=1)
    assert text == ""
    assert errors.count("\n") == 1
    assert "are missing" in errors
    assert "5242880 bytes (5.0 MiB)" in errors


def test_an_encoder_has_no_cache(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    found = told("fit", path)
    assert found["cache"] is None
    assert found["pages"] == 0


@pytest.mark.parametrize(
    "wrong", [("--memory", "0"), ("--ctx", "0"), ("--slots", "x"), ("--cache", "f8")]
)
def test_wrong_options_are_refused(small: Path, wrong: tuple[str, str]) -> None:
    _, errors = run("fit", small, *wrong, status=2)
    assert wrong[0] in errors
