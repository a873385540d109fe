"""A request of a kind that was answered before opens no file, imports and compiles nothing.

All of that would hold up the event loop, in which every other answer is written. Python itself
reports such things (PEP 578). Not here: files that a request sends, first requests of a kind.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from serve.support import serving

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

MESSAGES = [{"role": "user", "content": "hello"}]
SLOW = ("open", "compile", "import", "os.listdir", "os.scandir", "subprocess.Popen")
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 2, "stream": True, "logprobs": 1}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stream": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "top_k": 3, "invented": 1}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 2}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
    ("/v1/embeddings", {"input": "hello"}),
    ("/completion", {"prompt": "hello", "n_predict": 2}),
    ("/tokenize", {"content": "hello"}),
    ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 2}}),
    ("/v1/models", {}),
    ("/props", {}),
    ("/health", {}),
    ("/metrics", {}),
]
_seen: list[str] | None = None
_thread = 0


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and event in SLOW and threading.get_ident() == _thread:
        _seen.append(f"{event} {args[0]!r}"[:200])


@pytest.fixture(scope="module", autouse=True)
def _watched() -> None:
    sys.addaudithook(_hook)  # for as long as the process lives, so it does nothing without `_seen`


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await (client.post(path, json=body) if body else client.get(path))
    assert answer.status_code == 200, answer.text


@pytest.mark.long(cases=4)
@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_what_was_answered_once_opens_and_compiles_nothing(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    global _seen, _thread
    async with serving(models=[write_small(tmp_path / "small.gguf")]) as (_, client):
        for _ in range(2):
            await ask(client, path, body)
        _seen, _thread = [], threading.get_ident()
        try:
            await ask(client, path, body)
            found = list(_seen)
        finally:
            _seen = None
    assert not found, found
