"""Random schemas, each with answers of a model of random weights: every complete one is valid.

A program is one schema. It is asked for by `generate`, by `chat` and over HTTP, some at the same
time, beside a text that is free. An answer that ends by itself is valid by jsonschema; one that is
cut has all its tokens, and says so. Not here: the schemas (answer_schemas.py).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpx
import jsonschema
from fuzz.answer_schemas import drawn_schema, validate
from fuzz.rounds import Failure, Report, draw

import aggml
from aggml.models import TextModel
from aggml.models.small import write_small
from aggml.serve import Limits
from aggml.serve.http import Options, application

if TYPE_CHECKING:
    import random

SHORT: Final = 4
PATIENCE: Final = 120  # seconds for one program: longer is a hang, even on a slow machine
ANSWERS: Final = 10
MOST: Final = 160  # tokens of an answer
#: Of llguidance, for large patterns without ^ that have a maxLength beside them (docs/answers.md).
BEYOND: Final = "Unable to determine if regex is empty"


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """As `fuzz.rounds.Fuzzer`."""
    return anyio.run(_round, seed, programs, loop, first, backend=loop)


async def _round(seed: int, programs: int, loop: str, first: int) -> Report:
    counts: Counter[str] = Counter()
    failure: Failure | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = write_small(Path(folder) / "small.gguf")
        app = application(Options(models=[path], threads=1, limits=Limits(slots=4, ctx=1024)))
        async with (
            aggml.models.load(path, ctx=1024, slots=8) as model,
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
        ):
            assert isinstance(model, TextModel)
            for k in range(first, first + programs):
                schema = drawn_schema(draw(seed, k))
                try:
                    with anyio.fail_after(PATIENCE):
                        await _program(draw(seed, k), schema, model, client, counts)
                except Exception as error:
                    failure = Failure(seed, k, loop, f"{json.dumps(schema)}\n{_inner(error)!r}")
                    failure.__cause__ = error
                    break
    # not raised inside: the service's task groups would wrap it in an exception group
    if failure is not None:
        raise failure
    return Report(programs, dict(sorted(counts.items())))


def _inner(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _program(
    r: random.Random,
    schema: dict[str, Any],
    model: TextModel,
    client: httpx.AsyncClient,
    counts: Counter[str],
) -> None:
    ids = model.tokenizer.ids
    free: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 1, "ignore_eos": True}
    wanted = "".join([x.text async for x in model.generate("free", **free)])
    try:
        assert [x async for x in model.generate("x", schema=schema, max_tokens=1)]
    except aggml.InvalidArgument as error:
        if BEYOND not in str(error):
            raise
        counts["beyond the library"] += 1
        return
    # A model of random weights would write a text for hundreds of tokens.
    bias = {ids[x]: r.choice([2.0, 5.0]) for x in ('"', "}", "]")}

    async def alone() -> None:
        found = "".join([x.text async for x in model.generate("free", **free)])
        assert found == wanted, "a free answer beside the others differs"

    async def one(way: str, seed: int, temperature: float) -> None:
        options: dict[str, Any] = {"max_tokens": MOST, "temperature": temperature, "seed": seed,
                                   "top_k": 0, "logit_bias": bias}  # fmt: skip
        reason: str | None
        if way == "generate":
            stream = model.generate("x", schema=schema, **options)
            pieces = [x async for x in stream]
            text, reason, made = "".join(x.text for x in pieces), stream.finish_reason, len(pieces)
        elif way == "chat":
            messages = [{"role": "user", "content": "x"}]
            answer = await model.chat(messages, response_format=schema, **options)
            text, reason, made = (
                answer.content,
                answer.finish_reason,
                answer.usage.completion_tokens,
            )
        else:
            text, reason, made = await _over_http(client, schema, options, stream=way == "stream")
        if reason == "length":
            assert made == MOST, f"cut after {made} of {MOST} tokens: {text!r}"
            counts["cut"] += 1
            return
        assert reason == "stop", f"{reason}: {text!r}"
        try:
            validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{way}: {text!r}: {error}") from error
        counts[f"valid by {way}"] += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alone)
        for i in range(ANSWERS):
            way = ("generate", "generate", "chat", "http", "stream")[i % 5]
            tasks.start_soon(one, way, r.randrange(1 << 30), r.choice([0.7, 1.0, 1.5]))


async def _over_http(
    client: httpx.AsyncClient, schema: dict[str, Any], options: dict[str, Any], *, stream: bool
) -> tuple[str, str | None, int]:
    """The text, the reason of its end and the number of its tokens."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {
        "messages": [{"role": "user", "content": "x"}], "response_format": form, "stream": stream,
        **options, "logit_bias": {str(k): v for k, v in options["logit_bias"].items()},
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }  # fmt: skip
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not stream:
        found = answer.json()
        (choice,) = found["choices"]
        made: int = found["usage"]["completion_tokens"]
        return choice["message"]["content"], choice["finish_reason"], made
    lines = [x.removeprefix("data: ") for x in answer.text.split("\n") if x.startswith("data: ")]
    assert lines.pop() == "[DONE]", answer.text[-300:]
    events = [json.loads(x) for x in lines]
    made = events[-1]["usage"]["completion_tokens"]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(x["delta"].get("content") or "" for x in choices)
    return text, choices[-1]["finish_reason"], made
