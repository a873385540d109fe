"""LangChain: the tests that its project publishes, options, tools and forms with random weights.

A test skips if its package or the trained weights are missing, and names them. Not here: LangChain
beside the service (tests/serve/test_libraries.py).
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from integrations.support import (
    HELLO,
    LETTER,
    answer_of,
    bert,
    check_forecast,
    close_all,
    forecast,
    near,
    qwen,
    reranker,
    small,
)

from aggml import InvalidArgument
from aggml.models import TooLongError, blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("langchain_core", reason="aggml[langchain] is not installed")
standard = pytest.importorskip("langchain_tests.integration_tests")
units = pytest.importorskip("langchain_tests.unit_tests")
from langchain_core.documents import Document  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402

from aggml.integrations.langchain import (  # noqa: E402
    AggmlCompressor,
    AggmlEmbeddings,
    ChatAggml,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    close_all()


class OnAsyncio:
    """LangChain runs on asyncio alone."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


# -- the tests of its project


class TestChatUnits(OnAsyncio, units.ChatModelUnitTests):  # type: ignore[misc, name-defined]
    @property
    def chat_model_class(self) -> type[ChatAggml]:
        return ChatAggml

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": small()}


class TestChatOfNoise(OnAsyncio, standard.ChatModelIntegrationTests):  # type: ignore[misc, name-defined]
    """With random weights: all that does not depend on what the answer says."""

    @property
    def chat_model_class(self) -> type[ChatAggml]:
        return ChatAggml

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": small(), "max_tokens": 6}

    @property
    def has_tool_calling(self) -> bool:
        return False  # arguments are asserted; tests below call tools

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatAggml(**self.chat_model_params)
        model.invoke("The same question.")
        return answer_of(model, "The same question.", stream=stream)


@pytest.mark.slow
class TestTrainedChat(OnAsyncio, standard.ChatModelIntegrationTests):  # type: ignore[misc, name-defined]
    """With trained weights: tools and forms, too."""

    @property
    def chat_model_class(self) -> type[ChatAggml]:
        return ChatAggml

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": qwen(), "max_tokens": 256, "temperature": 0.0}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestEmbeddings(OnAsyncio, standard.EmbeddingsIntegrationTests):  # type: ignore[misc, name-defined]
    @property
    def embeddings_class(self) -> type[AggmlEmbeddings]:
        return AggmlEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": bert()}


class TestEmbeddingsUnits(OnAsyncio, units.EmbeddingsUnitTests):  # type: ignore[misc, name-defined]
    @property
    def embeddings_class(self) -> type[AggmlEmbeddings]:
        return AggmlEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": bert()}


# -- what they leave open


def test_an_answer_is_the_model_s_also_in_pieces_awaited_and_in_a_task_beside() -> None:
    wanted = small().chat(HELLO, max_tokens=6, logprobs=2)
    llm = ChatAggml(model=small(), max_tokens=6, logprobs=2)
    whole = llm.invoke("Hello!")
    assert whole.content == wanted.content
    assert whole.usage_metadata["output_tokens"] == 6
    assert whole.response_metadata["finish_reason"] == "length"
    told = whole.response_metadata["logprobs"]["content"]
    assert [x["logprob"] for x in told] == near([x.logprob for x in wanted.tokens])
    assert [len(x["top_logprobs"]) for x in told] == [2] * 6
    joined = answer_of(llm, "Hello!", stream=True)
    assert (joined.content, joined.response_metadata["logprobs"]["content"]) == (
        whole.content, told,
    )  # fmt: skip

    async def together() -> list[AIMessage]:
        return await asyncio.gather(*(llm.ainvoke("Hello!") for _ in range(3)))

    assert {x.content for x in asyncio.run(together())} == {wanted.content}


def test_a_model_given_awaitable_or_blocking_is_the_same_and_threads_may_share_it() -> None:
    face = small()
    found: list[Any] = []
    llm = ChatAggml(model=blocking.unwrap(face), max_tokens=4)
    threads = [
        threading.Thread(target=lambda: found.append(llm.invoke("Hello!").content))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ChatAggml(model=face, max_tokens=4).invoke("Hello!").content] * 3
    llm.close()  # it has not loaded the model, so it stays open
    assert not face.closed


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_form_binds_also_random_weights(method: Any) -> None:
    llm = ChatAggml(model=small(), max_tokens=200)
    check_forecast(llm.with_structured_output(forecast(), method=method).invoke("hi"))
    raw = llm.with_structured_output(forecast(), method=method, include_raw=True).invoke("hi")
    check_forecast(raw["parsed"])
    assert raw["parsing_error"] is None


def test_a_tool_that_must_be_called_is_called_whole_and_in_pieces() -> None:
    llm = ChatAggml(model=small(), max_tokens=200)
    for choice in ("any", "forecast", True):
        bound = llm.bind_tools([forecast()], tool_choice=choice, parallel_tool_calls=False)
        (call,) = bound.invoke("hi").tool_calls
        check_forecast(call["args"])
        (piece,) = answer_of(bound, "hi", stream=True).tool_calls
        assert (piece["name"], piece["args"]) == ("forecast", call["args"])


def test_messages_come_through_with_calls_results_thoughts_and_parts() -> None:
    face = small()
    llm = ChatAggml(model=face, max_tokens=4)
    call = {"name": "f", "args": {"a": 1}, "id": "call_1", "type": "tool_call"}
    given = [
        HumanMessage([{"type": "text", "text": "one"}, "two"]),
        AIMessage([{"type": "text", "text": "x"}, {"type": "tool_use", "id": "call_1"}],
                  tool_calls=[call]),
        ToolMessage("3", tool_call_id="call_1"),
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
    assert llm.invoke(given).content == wanted.content
    with pytest.raises(InvalidArgument, match=r"messages\[0\].content\[0\].type is 'image'"):
        llm.invoke([HumanMessage([{"type": "image", "base64": LETTER, "mime_type": "image/png"}])])


def test_errors_are_the_model_s_and_a_wrong_option_is_named() -> None:
    llm = ChatAggml(model=small(), max_tokens=4)
    with pytest.raises(TooLongError):
        llm.invoke("a " * 4000)
    with pytest.raises(InvalidArgument, match="temperature"):
        ChatAggml(model=small(), temperature=-1.0).invoke("hi")
    with pytest.raises(ValueError, match="temprature"):
        ChatAggml(model=small(), temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="expected a model of"):
        ChatAggml(model=3)
    with pytest.raises(ValueError, match=r"load_options are \['ctx'\]"):
        ChatAggml(model=small(), load_options={"ctx": 4})


@pytest.mark.parametrize("awaited", [False, True])
def test_a_compressor_orders_documents_by_their_scores(awaited: bool) -> None:
    face = reranker()
    texts = ["one", "two", "three", "four"]
    scores = face.rerank("a query", texts)
    compressor = AggmlCompressor(model=face, top_n=3)
    given = [Document(x, metadata={"n": i}) for i, x in enumerate(texts)]
    if awaited:
        found = asyncio.run(compressor.acompress_documents(given, "a query"))
    else:
        found = compressor.compress_documents(given, "a query")
    order = sorted(range(4), key=lambda i: -scores[i])[:3]
    assert [x.metadata["n"] for x in found] == order
    assert [x.metadata["relevance_score"] for x in found] == [float(scores[i]) for i in order]
    assert all("relevance_score" not in x.metadata for x in given)


def test_vectors_are_the_model_s_with_its_prompts() -> None:
    face = bert()
    found = AggmlEmbeddings(face, normalize=True)
    assert found.embed_documents(["a", "b"]) == face.embed(["a", "b"]).tolist()
    both = asyncio.run(asyncio.wait_for(found.aembed_query("a"), 60))
    assert both == found.embed_query("a") == face.embed(["a"])[0].tolist()
