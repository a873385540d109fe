"""Libraries on top of the protocols: a chat, its stream, a required tool, an answer by a schema.

Each library that is installed talks to a server of its own process; a test without its library
skips and names it. The model is of random weights, so calls and answers are valid because the
service makes them so, and their text is noise. Not here: the clients of the protocols themselves
(test_clients.py), a trained model (test_trained_libraries.py).
"""

from __future__ import annotations

import asyncio
import enum
import json
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from serve.support import PATIENCE, SMALL, started

from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
KEY: Final = "s3cret"
HELLO: Final[Any] = [{"role": "user", "content": "hi"}]
CITIES: Final = ("Paris", "Rome")
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": [*CITIES]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "forecast", "description": "The weather.", "parameters": SCHEMA},
}


class City(enum.StrEnum):
    """A city."""

    PARIS = "Paris"
    ROME = "Rome"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = write_small(tmp_path_factory.mktemp("models") / "small.gguf")
    with started([file], "uvicorn", more=["--ctx", "2048", "--api-key", KEY]) as (_, url):
        yield url


@pytest.fixture(scope="module")
def forecast() -> Any:
    """The schema as a model of pydantic, which all these libraries bring along."""
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model(
        "forecast", __doc__="The weather.", city=(Literal[CITIES], ...),
        days=(int, pydantic.Field(ge=1, le=9)),
    )  # fmt: skip


def check(given: Any) -> None:
    """Whether arguments or an answer are of the schema."""
    found = given if isinstance(given, dict) else given.model_dump()
    assert found.keys() == SCHEMA["properties"].keys()
    assert found["city"] in CITIES
    assert found["days"] in range(1, 10)


def test_langchain(address: str, forecast: Any) -> None:
    of = pytest.importorskip("langchain_openai")
    model = of.ChatOpenAI(model=SMALL, base_url=f"{address}/v1", api_key=KEY, timeout=PATIENCE,
                          temperature=0, max_tokens=8)  # fmt: skip
    whole = model.invoke("hi")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(x.content for x in model.stream("hi")) == whole.content
    long = model.model_copy(update={"max_tokens": 128})
    called = long.bind_tools([forecast], tool_choice="any").invoke("hi")
    check(called.tool_calls[0]["args"])
    for method in ("json_schema", "function_calling"):
        check(long.with_structured_output(forecast, method=method).invoke("hi"))
    pieces = [*long.bind_tools([forecast], tool_choice="forecast").stream("hi")]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert [x["name"] for x in joined.tool_calls] == ["forecast"]
    check(joined.tool_calls[0]["args"])


def test_instructor(address: str, forecast: Any) -> None:
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    for mode in ("TOOLS", "JSON_SCHEMA"):
        with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, timeout=PATIENCE) as plain:
            client = instructor.from_openai(plain, mode=instructor.Mode[mode])
            given = {"model": SMALL, "messages": HELLO, "max_tokens": 128, "temperature": 0,
                     "max_retries": 0}  # fmt: skip
            check(client.chat.completions.create(response_model=forecast, **given))
            *_, last = client.chat.completions.create_partial(response_model=forecast, **given)
            check(last)


def test_pydantic_ai(address: str, forecast: Any) -> None:
    ai = pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(
        SMALL, provider=OpenAIProvider(base_url=f"{address}/v1", api_key=KEY)
    )  # fmt: skip
    few = {"max_tokens": 8, "temperature": 0}
    many = {"max_tokens": 128, "temperature": 0}

    async def talk() -> None:
        whole = await ai.Agent(model).run("hi", model_settings=few)
        assert whole.output
        async with ai.Agent(model).run_stream("hi", model_settings=few) as stream:
            text = "".join([x async for x in stream.stream_text(delta=True)])
        assert text == whole.output
        for kind in (ai.ToolOutput(forecast), ai.NativeOutput(forecast)):
            check((await ai.Agent(model, output_type=kind).run("hi", model_settings=many)).output)

    asyncio.run(talk())


def test_litellm(address: str) -> None:
    litellm = pytest.importorskip("litellm")
    given = {"api_base": f"{address}/v1", "api_key": KEY, "messages": HELLO, "temperature": 0,
             "model": f"openai/{SMALL}", "timeout": PATIENCE}  # fmt: skip
    whole = litellm.completion(**given, max_tokens=8)
    text = whole.choices[0].message.content
    assert text
    pieces = litellm.completion(**given, max_tokens=8, stream=True)
    assert "".join(x.choices[0].delta.content or "" for x in pieces) == text
    called = litellm.completion(**given, max_tokens=128, tools=[TOOL], tool_choice="required")
    check(json.loads(called.choices[0].message.tool_calls[0].function.arguments))
    form = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA}}
    told = litellm.completion(**given, max_tokens=128, response_format=form)
    check(json.loads(told.choices[0].message.content))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**given | {"messages": [{"role": "user", "content": "a " * 4000}]})
    anthropic = given | {"model": f"anthropic/{SMALL}", "api_base": address}
    assert litellm.completion(**anthropic, max_tokens=8).choices[0].message.content == text


def test_llama_index(address: str, forecast: Any) -> None:
    of = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    model = of.OpenAILike(
        model=SMALL, api_base=f"{address}/v1", api_key=KEY, is_chat_model=True, temperature=0,
        is_function_calling_model=True, max_tokens=128, timeout=PATIENCE, context_window=2048,
    )  # fmt: skip
    hello = [ChatMessage(role="user", content="hi")]
    whole = model.chat(hello, max_tokens=8).message.content
    assert whole
    assert "".join(x.delta for x in model.stream_chat(hello, max_tokens=8)) == whole
    assert model.complete("hi", max_tokens=8).text
    check(model.structured_predict(forecast, of_template("hi")))


def of_template(text: str) -> Any:
    """A prompt as llama-index has them."""
    from llama_index.core.prompts import PromptTemplate

    return PromptTemplate(text)


def test_openai_s_agents(address: str, forecast: Any) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(disabled=True)
    calls: list[dict[str, Any]] = []

    def ask(city: City) -> str:
        """The weather."""
        calls.append({"city": city.value})
        return "sunny"

    tool = agents.function_tool(ask, name_override="forecast")

    async def talk() -> None:
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            async with openai.AsyncOpenAI(
                base_url=f"{address}/v1", api_key=KEY, timeout=PATIENCE
            ) as client:
                model = kind(model=SMALL, openai_client=client)
                few = agents.ModelSettings(max_tokens=8, temperature=0)
                plain = agents.Agent("a", model=model, model_settings=few)
                whole = await agents.Runner.run(plain, "hi")
                assert whole.final_output
                if kind is agents.OpenAIChatCompletionsModel:
                    # Of the other one a stream that ends by its limit is an error of the library.
                    stream = agents.Runner.run_streamed(plain, "hi")
                    async for _ in stream.stream_events():
                        pass
                    assert stream.final_output == whole.final_output
                many = agents.ModelSettings(
                    max_tokens=128, temperature=0, tool_choice="required"
                )  # fmt: skip
                caller = agents.Agent(
                    "b", model=model, model_settings=many, tools=[tool],
                    tool_use_behavior="stop_on_first_tool",
                )  # fmt: skip
                before = len(calls)
                assert (await agents.Runner.run(caller, "hi")).final_output == "sunny"
                assert len(calls) > before
                many = agents.ModelSettings(max_tokens=128, temperature=0)
                told = agents.Agent("c", model=model, model_settings=many, output_type=forecast)
                check((await agents.Runner.run(told, "hi")).final_output)

    asyncio.run(talk())
    assert {x["city"] for x in calls} <= {*CITIES}


@pytest.mark.long
def test_anthropic_s_tools(address: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    tool = {"name": "forecast", "description": "The weather.", "input_schema": SCHEMA}
    given = {"model": SMALL, "messages": HELLO, "max_tokens": 128, "tools": [tool],
             "extra_body": {"temperature": 0}, "tool_choice": {"type": "any"}}  # fmt: skip
    with anthropic.Anthropic(base_url=address, api_key=KEY, timeout=PATIENCE) as client:
        whole = client.messages.create(**given)
        with client.messages.stream(**given) as stream:
            last = stream.get_final_message()
    for message in (whole, last):
        assert message.stop_reason == "tool_use"
        call = next(x for x in message.content if x.type == "tool_use")
        check(call.input)


@pytest.mark.long
def test_ollama_s_tools_and_schemas(address: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=address, headers={"Authorization": f"Bearer {KEY}"})
    options = {"num_predict": 128, "temperature": 0}
    told = client.chat(model=SMALL, messages=HELLO, options=options, format=SCHEMA)
    check(json.loads(told.message.content))
    pieces = client.generate(model=SMALL, prompt="hi", options=options, format=SCHEMA, stream=True)
    check(json.loads("".join(x.response for x in pieces)))
    offered = client.chat(model=SMALL, messages=HELLO, options=options, tools=[TOOL])
    assert offered.done
    client._client.close()


@pytest.mark.long
def test_openai_s_parsed_answers_and_calls(address: str, forecast: Any) -> None:
    openai = pytest.importorskip("openai")
    given = {"model": SMALL, "messages": HELLO, "max_tokens": 128, "temperature": 0}
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, timeout=PATIENCE) as client:
        told = client.chat.completions.parse(response_format=forecast, **given)
        check(told.choices[0].message.parsed)
        tools = [openai.pydantic_function_tool(forecast)]
        called = client.chat.completions.parse(tools=tools, tool_choice="required", **given)
        check(called.choices[0].message.tool_calls[0].function.parsed_arguments)
        with client.chat.completions.stream(
            tools=tools, tool_choice="required", **given
        ) as stream:  # fmt: skip
            last = stream.get_final_completion()
        check(last.choices[0].message.tool_calls[0].function.parsed_arguments)
        response = client.responses.parse(
            model=SMALL, input="hi", text_format=forecast, max_output_tokens=128, temperature=0
        )
        check(response.output_parsed)
