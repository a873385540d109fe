"""What the tests of all adapters share: small models of random weights, a trained one, a form.

A model is opened once for a file of tests, by blocking code. Not here: the tests.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from models import random_models, weights

from aggml.models import blocking
from aggml.models.small import write_small

__all__ = [
    "HELLO", "LETTER", "WORDS", "answer_of", "bert", "check_forecast", "close_all", "forecast",
    "near", "qwen", "reranker", "small",
]  # fmt: skip

HELLO: Final[list[dict[str, Any]]] = [{"role": "user", "content": "Hello!"}]
LETTER: Final = "QQ=="  # base64, and no picture
CITIES: Final = ("Paris", "Rome")
WORDS: Final = random_models.words("▁one", "▁two", "▁three", "▁four", "▁a", "▁query")
TRAINED: Final = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

_open: list[Any] = []


def _opened(path: Path, **options: Any) -> Any:
    _open.append(blocking.load(path, **options))
    return _open[-1]


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="aggml-integrations-"))


@functools.cache
def small() -> Any:
    """A model that continues text, of random weights."""
    return _opened(write_small(_folder() / "small.gguf"), ctx=1024, slots=4)


@functools.cache
def bert() -> Any:
    """An encoder of random weights."""
    return _opened(random_models.write(_folder() / "bert.gguf", "bert", WORDS))


@functools.cache
def reranker() -> Any:
    """A reranker of random weights."""
    return _opened(random_models.write(_folder() / "rank.gguf", "bert-rank", WORDS))


@functools.cache
def qwen() -> Any:
    """A trained model that calls tools; the test skips if it is missing."""
    return _opened(weights.find(TRAINED), ctx=4096, slots=4)


def close_all() -> None:
    """Close what was opened; the next test opens it anew."""
    while _open:
        _open.pop().close()
    for opened in (small, bert, reranker, qwen):
        opened.cache_clear()


def answer_of(model: Any, text: str, *, stream: bool) -> Any:
    """A message of LangChain, whole or joined from its pieces."""
    if not stream:
        return model.invoke(text)
    joined: Any = None
    for piece in model.stream(text):
        joined = piece if joined is None else joined + piece
    return joined


@functools.cache
def forecast() -> Any:
    """A form, as a class of pydantic."""
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model(
        "forecast", __doc__="The weather.", city=(Literal[CITIES], ...),
        days=(int, pydantic.Field(ge=1, le=9)),
    )  # fmt: skip


def check_forecast(given: Any) -> None:
    """Whether arguments or an answer are of the form."""
    found = given if isinstance(given, dict) else given.model_dump()
    assert found.keys() == {"city", "days"}
    assert found["city"] in CITIES
    assert found["days"] in range(1, 10)


def near(values: list[float | None]) -> Any:
    """Log-probabilities up to the rounding of steps that had other tokens in them."""
    return pytest.approx(values, abs=1e-3)
