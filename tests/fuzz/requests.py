"""Random requests to aggml.serve, in process: an answer that is right, or a refusal by name.

A program is one request. A right request gets an answer of the documented schema, with the same
contents whether it is streamed or not. A wrong one gets a 400 or 404 that names a wrong field.
Bytes that are no request get a 4xx. No answer is 5xx, and nothing is logged. Not here: the requests
(request_bodies.py).
"""

from __future__ import annotations

import base64
import json
import logging
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
from fuzz.request_bodies import CTX, WIDTH, Body, broken, drawn
from fuzz.rounds import Failure, Report, draw
from models import random_models

from aggml.models.small import write_small
from aggml.serve import Limits
from aggml.serve.http import Options, application

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = 40
PATIENCE = 120  # seconds for one answer: longer is a hang, even on a slow machine
JUNK = 0.15  # share of the programs that send broken bytes


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """As `fuzz.rounds.Fuzzer`."""
    return anyio.run(_round, seed, programs, loop, first, backend=loop)


async def _round(seed: int, programs: int, loop: str, first: int) -> Report:
    counts: Counter[str] = Counter()
    failure: Failure | None = None
    with tempfile.TemporaryDirectory() as folder, _logged() as records:
        path = write_small(Path(folder) / "small.gguf")
        limits = Limits(slots=4, ctx=CTX, kv_memory=64 << 20)
        files = [path, write_encoder(Path(folder) / "encoder.gguf")]
        app = application(Options(models=files, threads=1, limits=limits))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
        ):
            for k in range(first, first + programs):
                asked: list[object] = []
                try:
                    with anyio.fail_after(PATIENCE):
                        await _program(draw(seed, k), client, counts, asked)
                    if records:
                        raise AssertionError(f"was logged: {records[0].getMessage()}")
                except Exception as error:
                    failure = Failure(seed, k, loop, f"{asked}\n{error!r}")
                    failure.__cause__ = error
                    break
    # not raised inside: the service's task groups would wrap it in an exception group
    if failure is not None:
        raise failure
    return Report(programs, dict(sorted(counts.items())))


def write_encoder(path: Path) -> Path:
    """Write a small BERT of random weights, whose vocabulary has one word of a letter, "a"."""
    return random_models.write(path, "bert", random_models.words("▁a"))


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """The records of level WARNING or above that are logged while the block runs."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # Warnings of asyncio that a callback took long depend on the machine.
            ignored = "unknown field" in record.getMessage()  # told once in the log, as documented
            slow = record.name == "asyncio" and record.levelno <= logging.WARNING
            if not ignored and not slow:
                records.append(record)

    handler = Handler(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(handler)


async def _program(
    source: Any, client: httpx.AsyncClient, counts: Counter[str], asked: list[object]
) -> None:
    if source.random() < JUNK:
        path, data = broken(source)
        asked += [path, data[:2000]]
        answer = await client.post(f"/v1/{path}", content=data)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        if answer.status_code != 200:
            _check_refusal(answer)
        counts["broken"] += 1
        return
    body = drawn(source)
    asked += [body.path, json.dumps(body.fields), sorted(body.wrong)]
    answer = await client.post(f"/v1/{body.path}", json=body.fields)
    assert answer.status_code in ({400, 404} if body.wrong else {200}), answer.text
    if body.wrong:
        assert answer.status_code == body.status or "model" in body.wrong, answer.text
        _check_refusal(answer)
        error = answer.json()["error"]
        assert error["param"] in body.wrong, error
        assert repr(error["param"])[1:-1] in error["message"], error
        counts["refused"] += 1
    elif body.path == "embeddings":
        _check_embeddings(body, answer.json())
        counts["embedded"] += 1
    else:
        await _check_generated(body, answer, client)
        counts["streamed" if body.fields.get("stream") else "whole"] += 1


def _check_refusal(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    long = error["code"] == "context_length_exceeded"
    numbers = {"n_prompt_tokens", "n_ctx"} if long else set()
    assert set(error) == {"message", "type", "param", "code"} | numbers, error
    kind = "exceed_context_size_error" if long else "invalid_request_error"
    assert error["type"] == kind, error
    assert error["message"], error


def _check_embeddings(body: Body, answer: Any) -> None:
    given = body.fields
    inputs = given["input"] if isinstance(given["input"], list) else [given["input"]]
    assert [x["index"] for x in answer["data"]] == list(range(len(inputs)))
    for x in answer["data"]:
        vector = x["embedding"]
        if given.get("encoding_format") == "base64":
            vector = np.frombuffer(base64.b64decode(vector), "<f4")
        assert len(vector) == (given.get("dimensions") or WIDTH)
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-3
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


async def _check_generated(body: Body, answer: httpx.Response, client: httpx.AsyncClient) -> None:
    given = body.fields
    streamed = bool(given.get("stream"))
    found = _joined(answer.text, given) if streamed else answer.json()
    _check_choices(body, found["choices"])
    if found["usage"] is not None:
        usage = found["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] <= _limit(given) * len(found["choices"])
    if given.get("seed") in (None, -1) and given.get("temperature") != 0:
        return
    # With a seed, or at temperature 0, the answer is determined: the other form (streamed or not)
    # must say the same.
    other = given | {"stream": not streamed}
    if streamed:
        other.pop("stream_options", None)
    answer = await client.post(f"/v1/{body.path}", json=other)
    assert answer.status_code == 200, answer.text
    again = answer.json() if streamed else _joined(answer.text, other)
    for one, same in zip(found["choices"], again["choices"], strict=True):
        for key in ("index", "finish_reason"):
            assert one.get(key) == same.get(key), (one, same)
        # The second request finds keys of the first one: its numbers differ in their last bits.
        assert _tokens(one) == _tokens(same), (one, same)
        assert _said(one) == _said(same), (one, same)


def _limit(given: dict[str, Any]) -> int:
    limit: int = given.get("max_completion_tokens") or given["max_tokens"]
    return limit


def _said(choice: Any) -> str:
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def _tokens(choice: Any) -> list[str] | None:
    """The tokens whose probabilities are told."""
    told = choice["logprobs"]
    if told is None:
        return None
    return [x["token"] for x in told["content"]] if "content" in told else list(told["tokens"])


def _joined(text: str, given: dict[str, Any]) -> Any:
    """The whole answer, put together from the events of a stream."""
    lines = [line for line in text.split("\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert not any("error" in event for event in events), events[-1]
    options = given.get("stream_options") or {}
    usage = events.pop()["usage"] if options.get("include_usage") else None
    choices: dict[int, Any] = {}
    for event in events:
        (piece,) = event["choices"]
        chat = "delta" in piece
        made = choices.setdefault(
            piece["index"],
            {"index": piece["index"], "finish_reason": None, "logprobs": None}
            | ({"message": {"content": ""}} if chat else {"text": ""}),
        )
        assert made["finish_reason"] is None, "goes on after its end"
        if chat:
            made["message"]["content"] += piece["delta"].get("content") or ""  # null in the first
        else:
            made["text"] += piece["text"]
        made["finish_reason"] = piece["finish_reason"]
        if piece["logprobs"] is not None:
            _add(made, piece["logprobs"])
    return {"choices": [choices[i] for i in sorted(choices)], "usage": usage}


def _add(made: Any, logprobs: Any) -> None:
    if made["logprobs"] is None:
        made["logprobs"] = logprobs
        return
    for key, values in logprobs.items():
        if values is not None:
            made["logprobs"][key] += values


def _check_choices(body: Body, choices: list[Any]) -> None:
    given = body.fields
    prompts = 1
    if body.path == "completions" and isinstance(given["prompt"], list):
        prompts = 1 if isinstance(given["prompt"][0], int) else len(given["prompt"])
    assert [x["index"] for x in choices] == list(range(prompts * (given.get("n") or 1)))
    stops = given.get("stop") or []
    stops = [x for x in ([stops] if isinstance(stops, str) else stops) if x]
    for choice in choices:
        assert choice["finish_reason"] in ("stop", "length")
        if not given.get("min_tokens"):
            assert not any(stop in _said(choice) for stop in stops)
        told = choice["logprobs"]
        if body.path == "completions":
            best = given.get("logprobs")
            tokens = None if told is None else told["tokens"]
        else:
            best = (given.get("top_logprobs") or 0) if given.get("logprobs") else None
            tokens = None if told is None else told["content"]
        if best is None:
            assert told is None
        elif tokens is not None:
            assert len(tokens) <= _limit(given)
            _check_logprobs(told, best)


def _check_logprobs(told: Any, best: int) -> None:
    if "content" in told:
        found = [(x["logprob"], [y["logprob"] for y in x["top_logprobs"]]) for x in told["content"]]
        assert all(len(top) == best for _, top in found)
    else:
        lists = [told[key] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
        assert len({len(x) for x in lists}) == 1
        top = [sorted(x.values(), reverse=True) for x in told["top_logprobs"]]
        found = list(zip(told["token_logprobs"], top, strict=True))
    for logprob, others in found:
        assert logprob <= 1e-4
        assert others == sorted(others, reverse=True)
        assert not others or logprob <= others[0] + 1e-4
