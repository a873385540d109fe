"""A stream that is cut anywhere and continued by the service: the client sees one answer.

Not here: replicas that are killed (tests/ray).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from serve.support import serving

from aggml.models.decoder.sampling import Sampler
from aggml.serve.http.resuming import NOTE, RESUMING, SoFar

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.applications import Starlette

    from aggml.serve.http.resuming import Note

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
PROMPT = [1, *range(40, 60)]
CHAT = {"messages": [{"role": "user", "content": "Say it again."}]}


@dataclass
class Seen:
    """All that a client has seen of one choice."""

    text: str = ""
    begun: int = 0  # how many events had a role
    told: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """All that a client has seen of an answer."""

    choices: dict[int, Seen] = field(default_factory=dict)
    heads: set[tuple[Any, ...]] = field(default_factory=set)
    usage: list[Any] = field(default_factory=list)
    done: int = 0
    errors: list[Any] = field(default_factory=list)

    def see(self, data: bytes) -> None:
        for line in data.decode().splitlines():
            if line == "data: [DONE]":
                self.done += 1
            elif line:
                self._event(json.loads(line.removeprefix("data: ")))

    def _event(self, event: Any) -> None:
        if "error" in event:
            self.errors.append(event["error"])
            return
        self.heads.add((event["id"], event["created"], event["model"]))
        if event.get("usage"):
            self.usage.append(event["usage"])
        for choice in event["choices"]:
            seen = self.choices.setdefault(choice["index"], Seen())
            delta = choice.get("delta", {})
            seen.begun += "role" in delta
            seen.text += choice.get("text") or delta.get("content") or ""
            if choice["finish_reason"]:
                seen.reasons.append(choice["finish_reason"])
            if choice["logprobs"]:
                told = choice["logprobs"]
                seen.told += zip(told["tokens"], told["text_offset"], strict=True)


async def stream(
    app: Starlette, path: str, asked: dict[str, Any], so_far: SoFar | None
) -> list[tuple[bytes, Note | None]]:
    """The events of an answer, each with its note."""
    body = json.dumps(asked | {"stream": True}).encode()
    found = []
    read = False

    async def receive() -> dict[str, Any]:
        nonlocal read
        if read:
            await anyio.sleep_forever()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message["body"]:
            found.append((message["body"], message.get(NOTE)))

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": path, "root_path": "",
        "raw_path": path.encode(), "query_string": b"", "scheme": "http", "server": None,
        "client": None, "headers": [(b"content-type", b"application/json")],
        "extensions": {} if so_far is None else {RESUMING: so_far},
    }  # fmt: skip
    await app(scope, receive, send)
    return found


def told_of(events: list[tuple[bytes, Note | None]], seed: int) -> SoFar:
    """The state that the deployment in front has collected from the notes of these events."""
    so_far = SoFar(name="name", created=5, seed=seed)
    for _, note in events:
        assert note is not None
        so_far.add(note)
    return so_far


SEEDED = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 11, "ignore_eos": True}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}),
    "drawn": (COMPLETIONS, {"prompt": PROMPT, **SEEDED}),
    "no seed": (COMPLETIONS, {"prompt": PROMPT, **SEEDED, "seed": None}),
    "may end": (COMPLETIONS, {"prompt": PROMPT, **SEEDED, "stop_token_ids": list(range(9, 12))}),
    "stopped": (COMPLETIONS, {"prompt": PROMPT, **SEEDED, "stop": list("etaoinshrdlu<_")}),
    "held back": (COMPLETIONS, {"prompt": PROMPT, **SEEDED, "stop": ["zqzqzq", "no such text"]}),
    "rules": (
        COMPLETIONS,
        {
            "prompt": PROMPT, **SEEDED, "repetition_penalty": 1.5, "presence_penalty": 0.5,
            "frequency_penalty": 0.5, "min_tokens": 6, "ignore_eos": False,
            "stop_token_ids": list(range(3, 60)),
        },
    ),
    "probabilities": (COMPLETIONS, {"prompt": PROMPT, **SEEDED, "logprobs": 2, "stop": ["zz"]}),
    "several": (COMPLETIONS, {"prompt": [PROMPT, PROMPT[:9]], **SEEDED, "n": 2, "stop": ["e"]}),
    "chat": (CHATS, {**CHAT, **SEEDED, "n": 2}),
}  # fmt: skip

STOPPED = ("stopped", "several")


@pytest.mark.long(cases=2)
@pytest.mark.either_loop
@pytest.mark.parametrize("name", REQUESTS)
async def test_wherever_a_stream_is_cut_it_goes_on_as_if_it_was_not(file: Path, name: str) -> None:
    path, more = REQUESTS[name]
    asked = {"max_tokens": 12, "stream_options": {"include_usage": True}, **more}
    async with serving(models=[file]) as (app, _):
        whole = await stream(app, path, asked, told_of([], 3))
        wanted = Answer()
        for data, _ in whole:
            wanted.see(data)
        assert wanted.done == 1
        assert len(whole) > 3
        for cut in range(len(whole)):
            seen = Answer()
            for data, _ in whole[:cut]:
                seen.see(data)
            for data, _ in await stream(app, path, asked, told_of(whole[:cut], 3)):
                seen.see(data)
            cached = [x.pop("prompt_tokens_details") for x in seen.usage]
            assert all(x["cached_tokens"] <= seen.usage[0]["prompt_tokens"] for x in cached)
            expected = [{k: v for k, v in x.items() if "details" not in k} for x in wanted.usage]
            if name in STOPPED:  # tokens that were made after the stop string may have been counted
                assert seen.usage[0]["prompt_tokens"] == expected[0]["prompt_tokens"]
                expected = seen.usage
            assert (seen.choices, seen.heads, seen.done, seen.usage) == (
                wanted.choices, wanted.heads, 1, expected,
            )  # fmt: skip


async def test_a_stream_that_goes_on_has_what_is_left_of_its_time(file: Path) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "timeout": 50}
    async with serving(models=[file]) as (app, _):
        late = told_of([], 3)
        late.seconds = 50.0
        ((data, note),) = await stream(app, COMPLETIONS, asked, late)
        answer = Answer()
        answer.see(data)
        assert answer.errors[0]["type"] == "timeout_error"
        assert note is not None
        assert note.ended  # so that no other replica continues it


async def test_nobody_in_front_no_notes(file: Path) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    async with serving(models=[file]) as (app, _):
        events = await stream(app, COMPLETIONS, asked, None)
        assert [note for _, note in events] == [None] * len(events)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_sampler_has_the_same_number_for_a_token_whichever_it_draws_first(n: int) -> None:
    one, other = (Sampler(temperature=2.0, top_k=0, top_p=1.0, seed=4) for _ in range(2))
    numbers = [one.numbers(i) for i in range(20)]
    assert [other.numbers(i) for i in range(n, 20)] == numbers[n:]
    assert [other.numbers(i) for i in range(n)] == numbers[:n]
