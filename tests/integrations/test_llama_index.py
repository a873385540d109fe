"""LlamaIndex: chats, texts, functions and forms with random weights; embeddings; nodes by score.

The project publishes no tests for others; these go the ways of its own: its programs for forms, its
calls with functions, its retrievers' batches. Not here: LlamaIndex beside the service
(tests/serve/test_libraries.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
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

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("llama_index.core", reason="aggml[llama-index] is not installed")
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool

from aggml.integrations.llama_index import AggmlEmbedding, AggmlLLM, AggmlRerank

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
GIVEN = [ChatMessage(role="user", content="Hello!")]


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    close_all()


def test_an_answer_is_the_model_s_also_in_pieces_and_awaited() -> None:
    wanted = small().chat(HELLO, max_tokens=6, logprobs=1)
    llm = AggmlLLM(model=small(), max_tokens=6, logprobs=1)
    whole = llm.chat(GIVEN)
    assert whole.message.content == wanted.content
    assert whole.raw["usage"]["completion_tokens"] == 6
    assert [x[0].logprob for x in whole.logprobs or ()] == near([x.logprob for x in wanted.tokens])
    pieces = list(llm.stream_chat(GIVEN))
    assert "".join(x.delta or "" for x in pieces) == wanted.content
    assert pieces[-1].message.content == wanted.content
    assert pieces[-1].raw["finish_reason"] == "length"

    async def awaited() -> tuple[str | None, str]:
        first = await llm.achat(GIVEN)
        return first.message.content, "".join(
            [x.delta or "" async for x in await llm.astream_chat(GIVEN)]
        )

    assert asyncio.run(awaited()) == (wanted.content, wanted.content)


def test_a_text_is_continued_as_it_is() -> None:
    with small().generate("Once", max_tokens=6) as stream:
        wanted = "".join(x.text for x in stream)
    llm = AggmlLLM(model=small(), max_tokens=6)
    assert llm.complete("Once").text == wanted
    assert [x.text for x in llm.stream_complete("Once")][-1] == wanted

    async def awaited() -> list[str]:
        pieces = [x.text async for x in await llm.astream_complete("Once")]
        return [(await llm.acomplete("Once")).text, pieces[-1]]

    assert asyncio.run(awaited()) == [wanted, wanted]


def test_a_function_that_must_be_called_is_called_and_forms_are_filled() -> None:
    llm = AggmlLLM(model=small(), max_tokens=200)
    calls: list[dict[str, Any]] = []

    def ask(city: str, days: int) -> str:
        """The weather."""
        calls.append({"city": city, "days": days})
        return "sunny"

    tool = FunctionTool.from_defaults(fn=ask, name="forecast", fn_schema=forecast())
    found = llm.predict_and_call([tool], "hi", tool_required=True)
    assert found.response == "sunny"
    check_forecast(calls[0])
    check_forecast(llm.structured_predict(forecast(), PromptTemplate("hi")))
    check_forecast(asyncio.run(llm.astructured_predict(forecast(), PromptTemplate("hi"))))


def test_messages_come_through_with_calls_and_results() -> None:
    face = small()
    given = [
        ChatMessage(role="user", blocks=[TextBlock(text="one"), TextBlock(text="two")]),
        ChatMessage(role="assistant", blocks=[
            TextBlock(text="x"),
            ToolCallBlock(tool_call_id="call_1", tool_name="f", tool_kwargs={"a": 1}),
        ]),
        ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "call_1"}),
    ]  # fmt: skip
    wanted = face.chat(
        [
            {"role": "user", "content": "onetwo"},
            {"role": "assistant", "content": "x", "tool_calls": [
                {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        ],
        max_tokens=4,
    )  # fmt: skip
    llm = AggmlLLM(model=face, max_tokens=4)
    assert llm.chat(given).message.content == wanted.content
    picture = ChatMessage(role="user", blocks=[ImageBlock(image=b"no picture")])
    with pytest.raises(InvalidArgument, match="type is 'image'"):
        llm.chat([picture])
    with pytest.raises(InvalidArgument, match="calls no function"):
        llm.get_tool_calls_from_response(llm.chat(GIVEN))


def test_vectors_are_the_model_s_in_batches_and_awaited() -> None:
    face = bert()
    embedding = AggmlEmbedding(model=face, embed_batch_size=2)
    texts = ["one", "two", "three"]
    wanted = face.embed(texts).tolist()
    np.testing.assert_allclose(embedding.get_text_embedding_batch(texts), wanted, atol=1e-6)
    np.testing.assert_allclose(embedding.get_query_embedding("one"), wanted[0], atol=1e-6)
    found = asyncio.run(embedding.aget_text_embedding_batch(texts))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("awaited", [False, True])
def test_nodes_come_back_by_their_scores(awaited: bool) -> None:
    face = reranker()
    texts = ["one", "two", "three", "four"]
    scores = face.rerank("a query", texts)
    nodes = [NodeWithScore(node=TextNode(text=x, id_=x), score=0.5) for x in texts]
    rerank = AggmlRerank(model=face, top_n=3)
    if awaited:
        found = asyncio.run(rerank.apostprocess_nodes(nodes, query_str="a query"))
    else:
        found = rerank.postprocess_nodes(nodes, query_str="a query")
    order = sorted(range(4), key=lambda i: -scores[i])[:3]
    assert [x.node.node_id for x in found] == [texts[i] for i in order]
    assert [x.score for x in found] == [float(scores[i]) for i in order]
    with pytest.raises(InvalidArgument, match="query_bundle is None"):
        rerank.postprocess_nodes(nodes)
