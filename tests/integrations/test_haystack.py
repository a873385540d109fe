"""Haystack: a chat generator, embedders and a ranker with random weights, alone and in pipelines.

The project publishes no tests for components of others; these do what its own components are tested
for: results, streams, tools, pipelines, files of pipelines. Not here: trained weights.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from integrations.support import (
    HELLO,
    bert,
    check_forecast,
    close_all,
    forecast,
    near,
    reranker,
    small,
)

from aggml import InvalidArgument
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("haystack", reason="aggml[haystack] is not installed")
from haystack import Document, Pipeline
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tools import Tool

from aggml.integrations.haystack import (
    AggmlChatGenerator,
    AggmlDocumentEmbedder,
    AggmlRanker,
    AggmlTextEmbedder,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
GIVEN = [ChatMessage.from_user("Hello!")]


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    close_all()


def ask(city: str, days: int) -> str:
    return f"{days} sunny days in {city}"


def tool() -> Tool:
    return Tool("forecast", "The weather.", forecast().model_json_schema(), ask)


def test_an_answer_is_the_model_s_also_in_pieces_and_awaited() -> None:
    wanted = small().chat(HELLO, max_tokens=6, logprobs=0)
    generator = AggmlChatGenerator(small(), generation_kwargs={"max_tokens": 6, "logprobs": 0})
    (whole,) = generator.run(GIVEN)["replies"]
    assert whole.text == wanted.content
    assert whole.meta["usage"]["completion_tokens"] == 6
    assert whole.meta["finish_reason"] == "length"
    told = whole.meta["logprobs"]["content"]
    assert [x["logprob"] for x in told] == near([x.logprob for x in wanted.tokens])
    chunks: list[StreamingChunk] = []
    (joined,) = generator.run("Hello!", streaming_callback=chunks.append)["replies"]
    assert joined.text == "".join(x.content for x in chunks) == wanted.content
    assert joined.meta["logprobs"] == whole.meta["logprobs"]
    assert [x.start for x in chunks if x.content] == [True, *[False] * (len(chunks) - 2)]
    assert chunks[-1].finish_reason == "length"
    later: list[StreamingChunk] = []

    async def callback(chunk: StreamingChunk) -> None:
        later.append(chunk)

    (found,) = asyncio.run(generator.run_async(GIVEN))["replies"]
    (pieces,) = asyncio.run(generator.run_async(GIVEN, callback))["replies"]
    assert found.text == pieces.text == "".join(x.content for x in later) == wanted.content
    assert generator.run([]) == {"replies": []}


def test_a_tool_that_must_be_called_is_called_whole_and_in_pieces() -> None:
    generator = AggmlChatGenerator(
        small(), tools=[tool()],
        generation_kwargs={"max_tokens": 200, "tool_choice": "required",
                           "parallel_tool_calls": False},
    )  # fmt: skip
    (whole,) = generator.run(GIVEN)["replies"]
    (call,) = whole.tool_calls
    assert call.tool_name == "forecast"
    check_forecast(call.arguments)
    chunks: list[StreamingChunk] = []
    (joined,) = generator.run(GIVEN, streaming_callback=chunks.append)["replies"]
    assert joined.tool_calls[0].arguments == call.arguments
    assert {x.index for x in chunks if x.tool_calls} == {0}
    form = {"type": "json_schema", "json_schema": {"schema": forecast().model_json_schema()}}
    options = {"response_format": form, "tool_choice": "none"}
    (told,) = generator.run(GIVEN, generation_kwargs=options)["replies"]
    check_forecast(forecast().model_validate_json(told.text))


def test_messages_come_through_with_calls_and_results() -> None:
    face = small()
    call = ToolCall("f", {"a": 1}, "call_1")
    given = [
        *GIVEN, ChatMessage.from_assistant("x", tool_calls=[call]),
        ChatMessage.from_tool("3", origin=call),
    ]  # fmt: skip
    wanted = face.chat(
        [
            *HELLO,
            {"role": "assistant", "content": "x", "tool_calls": [
                {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        ],
        max_tokens=4,
    )  # fmt: skip
    (found,) = AggmlChatGenerator(face).run(given, generation_kwargs={"max_tokens": 4})["replies"]
    assert found.text == wanted.content


def test_a_pipeline_in_a_file_loads_its_model_when_it_is_needed(tmp_path: Path) -> None:
    file = write_small(tmp_path / "small.gguf")
    pipeline = Pipeline()
    component = AggmlChatGenerator(str(file), {"ctx": 1024}, {"max_tokens": 4}, tools=[tool()])
    pipeline.add_component("chat", component)
    read = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["aggml.integrations.haystack", __name__]
    )  # fmt: skip
    again: Any = read.get_component("chat")
    assert again._model._opened is None
    (found,) = read.run({"chat": {"messages": GIVEN}})["chat"]["replies"]
    assert found.meta["model"] == "small"
    (wanted,) = component.run(GIVEN)["replies"]
    assert found.text == wanted.text
    again.close()
    component.close()
    with pytest.raises(InvalidArgument, match="cannot be saved"):
        AggmlChatGenerator(small()).to_dict()


@pytest.mark.parametrize("awaited", [False, True])
def test_vectors_and_ranks_are_the_model_s(awaited: bool) -> None:
    face = bert()
    texts = ["one", "two", "three"]
    wanted = face.embed(texts)
    documents = [Document(content=x, meta={"title": "four"}) for x in texts]
    embedder, query = AggmlDocumentEmbedder(face), AggmlTextEmbedder(face)
    ranker = AggmlRanker(reranker(), top_k=2)
    if awaited:
        found = asyncio.run(embedder.run_async(documents))["documents"]
        vector = asyncio.run(query.run_async("one"))["embedding"]
        best = asyncio.run(ranker.run_async("a query", documents))["documents"]
    else:
        found = embedder.run(documents)["documents"]
        vector = query.run("one")["embedding"]
        best = ranker.run("a query", documents)["documents"]
    assert [x.embedding for x in found] == wanted.tolist()
    assert all(x.embedding is None for x in documents)
    assert vector == wanted[0].tolist()
    scores = reranker().rerank("a query", texts)
    order = sorted(range(3), key=lambda i: -scores[i])[:2]
    assert [(x.content, x.score) for x in best] == [(texts[i], float(scores[i])) for i in order]
    titled = AggmlDocumentEmbedder(face, meta_fields_to_embed=["title"]).run(documents)
    assert titled["documents"][0].embedding == face.embed(["four\none"])[0].tolist()
