"""The client libraries of OpenAI, Anthropic and Ollama talk to a real server: whole and streamed.

Not here: tools and schemas (test_protocols.py), fields (test_fields.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from serve.support import LOOPS, PATIENCE, SMALL, started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Iterator

Closing = Callable[[Any], Any]
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module", params=LOOPS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    file = write_small(tmp_path_factory.mktemp("models") / "small.gguf")
    with started([file], request.param, more=["--ctx", "512", "--api-key", "s3cret"]) as (_, url):
        yield url


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends with the test."""
    with ExitStack() as found:
        yield found


@pytest.fixture
def closing(stack: ExitStack) -> Closing:
    """A function that has clients closed at the end of the test."""

    def add(client: Any) -> Any:
        stack.callback(client.close)
        return client

    return add


@pytest.mark.long
def test_openai_s_responses(address: str, closing: Closing) -> None:
    openai = pytest.importorskip("openai")
    client = closing(openai.OpenAI(base_url=f"{address}/v1", api_key="s3cret", timeout=PATIENCE))
    given = {"model": SMALL, "input": "hi", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(**given, instructions="Be short.")
    assert whole.status in ("completed", "incomplete")
    assert whole.usage.output_tokens == 6
    with client.responses.stream(**given, instructions="Be short.") as stream:
        events = list(stream)
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response.output[0].content[0].text == whole.output_text
    deltas = [x.delta for x in events if x.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    numbers = [x.sequence_number for x in events if hasattr(x, "sequence_number")]
    assert numbers == [*range(len(numbers))]
    # An answer that follows another one has its conversation, and counts its tokens.
    next_one = client.responses.create(**given, previous_response_id=whole.id)
    assert next_one.usage.input_tokens > whole.usage.input_tokens
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**given, previous_response_id=whole.id)
    assert caught.value.code == "previous_response_not_found"


@pytest.mark.long
def test_openai_s_streams_end_with_the_usage(address: str, closing: Closing) -> None:
    openai = pytest.importorskip("openai")
    client = closing(openai.OpenAI(base_url=f"{address}/v1", api_key="s3cret", timeout=PATIENCE))
    stream = client.chat.completions.create(
        model=SMALL, messages=HELLO, max_tokens=5, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert len({x.id for x in chunks}) == 1
    assert all(x.system_fingerprint.startswith("fp_") for x in chunks)
    many = client.embeddings.create(model=SMALL, input=["a"] * 300)
    assert len(many.data) == 300
    tokens = client.embeddings.create(model=SMALL, input=[[300, 301], [302]])
    assert len(tokens.data) == 2
    with pytest.raises(openai.AuthenticationError):
        closing(openai.OpenAI(base_url=f"{address}/v1", api_key="wrong")).models.list()


@pytest.mark.long(cases=1)
def test_anthropic_s_messages(address: str, closing: Closing) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = closing(anthropic.Anthropic(base_url=address, api_key="s3cret", timeout=PATIENCE))
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"},
        {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
    ]
    given = {"model": SMALL, "messages": HELLO, "max_tokens": 6,
             "extra_body": {"temperature": 0}}  # fmt: skip
    whole = client.messages.create(**given, system=system)
    assert whole.stop_reason == "max_tokens"
    (block,) = whole.content
    with client.messages.stream(**given, system=system) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == block.text == last.content[0].text
    usage = whole.usage
    assert usage.output_tokens == last.usage.output_tokens == 6
    told = usage.input_tokens + usage.cache_read_input_tokens
    assert told == last.usage.input_tokens + last.usage.cache_read_input_tokens
    counted = client.messages.count_tokens(model=SMALL, messages=HELLO, system=system)
    assert counted.input_tokens == told
    stop = block.text[1:3]
    stopped = client.messages.create(**given, system=system, stop_sequences=[stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**(given | {"model": "claude"}))
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* > 512 maximum"):
        client.messages.create(**(given | {"messages": [{"role": "user", "content": "a " * 900}]}))
    wrong = closing(anthropic.Anthropic(base_url=address, api_key="wrong"))
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**given)


def test_ollama_s_client(address: str, stack: ExitStack) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=address, headers={"Authorization": "Bearer s3cret"})
    stack.callback(client._client.close)
    options = {"num_predict": 5, "temperature": 0}
    whole = client.chat(model="small:latest", messages=HELLO, options=options)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 5)
    pieces = list(client.chat(model=SMALL, messages=HELLO, options=options, stream=True))
    assert "".join(x.message.content for x in pieces) == whole.message.content
    assert [x.done for x in pieces] == [False] * (len(pieces) - 1) + [True]
    text = client.generate(model=SMALL, prompt="hi", options=options)
    assert text.response == whole.message.content  # the same message through the same template
    raw = client.generate(model=SMALL, prompt="hi", options=options, raw=True)
    assert raw.prompt_eval_count < text.prompt_eval_count
    found = client.embed(model=SMALL, input=["a", "b"])
    assert [len(x) for x in found.embeddings] == [256, 256]
    assert [x.model for x in client.list().models] == [SMALL]
    assert [x.model for x in client.ps().models] == [SMALL]
    assert client.show(SMALL).details.family == "llama"
    with pytest.raises(ollama.ResponseError, match="'nothing' is not served here"):
        client.chat(model="nothing", messages=HELLO)
