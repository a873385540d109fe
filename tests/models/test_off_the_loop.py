"""What takes long while a model is loaded runs in threads and not on the event loop.

Not here: that waiting callers leave the loop alone while they compute (tests/stream).
"""

from __future__ import annotations

import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

import aggml
from aggml.models import catalogue, text_model
from aggml.models.chat.template import ChatTemplate
from aggml.models.small import write_small
from aggml.serve import Limits, load_served

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


class Noted:
    """A function that notes which threads call it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.threads: list[int] = []

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.threads.append(threading.get_ident())
        return self.function(*args, **options)

    def only_elsewhere(self) -> bool:
        return bool(self.threads) and threading.get_ident() not in self.threads


async def test_looking_for_architectures_and_devices(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, devices = Noted(entry_points), Noted(aggml.best_device)
    monkeypatch.setattr(catalogue, "entry_points", packages)
    monkeypatch.setattr(aggml, "best_device", devices)
    catalogue._find_all.cache_clear()
    async with await aggml.models.load(small) as model:
        assert model.architecture == "llama"
    assert packages.only_elsewhere()
    assert devices.only_elsewhere()


async def test_opening_for_the_service(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, templates = Noted(entry_points), Noted(ChatTemplate)
    monkeypatch.setattr(catalogue, "entry_points", packages)
    monkeypatch.setattr(text_model, "ChatTemplate", templates)
    catalogue._find_all.cache_clear()
    async with (
        aggml.get_device("CPU").backend() as backend,
        load_served(small, backend, Limits(slots=1, ctx=256)) as served,
    ):
        assert served.name
    assert packages.only_elsewhere()
    assert templates.only_elsewhere()


async def test_the_first_conversation_reads_the_template_in_a_thread(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = Noted(ChatTemplate)
    monkeypatch.setattr(text_model, "ChatTemplate", templates)
    async with aggml.models.load(small, ctx=256) as model:
        await model.chat([{"role": "user", "content": "Hello!"}], max_tokens=1)
    assert templates.only_elsewhere()
