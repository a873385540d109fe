"""A trained model that calls tools, through libraries: calls, their results, and answers.

A test skips if its library or the weights are missing, and names them. Not here: libraries beside a
model of random weights (test_libraries.py).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import jsonschema
import pytest
from models import weights
from serve.support import started

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
FILE: Final = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QUESTION: Final = "What is the weather in Paris? Use the tool."
LONG: Final = 600  # seconds: the machine may have other work
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The current weather of a city.", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"], "additionalProperties": False},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    file = weights.find(FILE)
    more = ["--ctx", "4096", "--alias", "qwen", "--default", "temperature=0", "--deadline", "600"]
    with started([file], "uvicorn", more=more) as (_, url):
        yield url


def test_openai_s_client_calls_a_tool_and_answers_with_its_result(address: str) -> None:
    openai = pytest.importorskip("openai")
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="-", timeout=LONG) as client:
        given = {"model": "qwen", "tools": [TOOL], "max_tokens": 100}
        whole = client.chat.completions.create(**given, messages=messages)
        (call,) = whole.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        pieces = list(client.chat.completions.create(**given, messages=messages, stream=True))
        deltas = [y for x in pieces for y in x.choices[0].delta.tool_calls or ()]
        assert "".join(x.function.arguments for x in deltas) == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "14 degrees, rain"}
        messages += [whole.choices[0].message, result]
        answer = client.chat.completions.create(**given, messages=messages, tool_choice="none")
        assert "14" in answer.choices[0].message.content


def test_anthropic_s_client_calls_a_tool_and_answers_with_its_result(address: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    function = TOOL["function"]
    tool = {"name": function["name"], "description": function["description"],
            "input_schema": function["parameters"]}  # fmt: skip
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with anthropic.Anthropic(base_url=address, api_key="-", timeout=LONG) as client:
        given = {"model": "qwen", "tools": [tool], "max_tokens": 100}
        whole = client.messages.create(**given, messages=messages)
        call = next(x for x in whole.content if x.type == "tool_use")
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "14 degrees, rain"}
        messages += [{"role": "assistant", "content": whole.content},
                     {"role": "user", "content": [result]}]  # fmt: skip
        given["tool_choice"] = {"type": "none"}
        with client.messages.stream(**given, messages=messages) as stream:
            assert "14" in "".join(stream.text_stream)


def test_ollama_s_client_calls_a_tool(address: str) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=address, timeout=LONG)
    answer = client.chat(
        model="qwen", messages=[{"role": "user", "content": QUESTION}], tools=[TOOL],
        options={"num_predict": 100},
    )  # fmt: skip
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    client._client.close()


def _text(most: int) -> dict[str, Any]:
    """A text that ends: at a high temperature this model writes on and on."""
    return {"type": "string", "maxLength": most}


#: Functions of which one must be called, and questions that fit one of them or none.
FUNCTIONS: Final[dict[str, dict[str, Any]]] = {
    "get_weather": {
        "type": "object", "properties": {"city": _text(20), "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"], "additionalProperties": False,
    },
    "save_book": {
        "type": "object",
        "properties": {
            "title": _text(30), "pages": {"type": "integer", "minimum": 1, "maximum": 999},
            "tags": {"type": "array", "items": _text(8), "maxItems": 3},
            "author": {"type": "object", "properties": {"name": _text(20)},
                       "required": ["name"], "additionalProperties": False},
        },
        "required": ["title", "pages", "author"], "additionalProperties": False,
    },
    "search": {
        "type": "object",
        "properties": {"query": _text(30),
                       "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "required": ["query"], "additionalProperties": False,
    },
}  # fmt: skip
QUESTIONS: Final = (
    "What is the weather in München? 🌧", "Save the book Dune by Frank Herbert, 612 pages.",
    'Write a poem with "quotes", {braces} and </tool_call>.', "Hello!",
)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "save_book"])
def test_calls_that_are_required_always_parse(address: str, choice: str, *, stream: bool) -> None:
    openai = pytest.importorskip("openai")
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in FUNCTIONS.items()
    ]
    given: dict[str, Any] = {
        "model": "qwen", "tools": tools, "parallel_tool_calls": False, "max_tokens": 300,
        "tool_choice": choice if choice == "required"
        else {"type": "function", "function": {"name": choice}},
    }  # fmt: skip
    with openai.OpenAI(base_url=f"{address}/v1", api_key="-", timeout=LONG) as client:
        for i, question in enumerate(QUESTIONS):
            for temperature in (0.0, 1.5):
                answer = client.chat.completions.create(
                    **given, messages=[{"role": "user", "content": question}], seed=i,
                    temperature=temperature, stream=stream,
                )  # fmt: skip
                name, arguments, reason = "", "", None
                if stream:
                    for piece in answer:
                        for call in piece.choices[0].delta.tool_calls or ():
                            name += call.function.name or ""
                            arguments += call.function.arguments or ""
                        reason = piece.choices[0].finish_reason or reason
                else:
                    reason = answer.choices[0].finish_reason
                    for call in answer.choices[0].message.tool_calls or ():
                        name, arguments = call.function.name, call.function.arguments
                assert choice in ("required", name)
                assert reason == "tool_calls"
                jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


def test_pydantic_ai_s_agent_uses_a_tool_and_answers_by_a_schema(address: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    pydantic = pytest.importorskip("pydantic")
    provider = providers.OpenAIProvider(base_url=f"{address}/v1", api_key="-")
    model = models.OpenAIChatModel("qwen", provider=provider)
    settings = {"temperature": 0, "max_tokens": 200, "timeout": LONG}
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """The current weather of a city."""
        asked.append(city)
        return "14 degrees, rain"

    agent = ai.Agent(model, tools=[get_weather], model_settings=settings)
    assert "14" in agent.run_sync(QUESTION).output
    assert asked[0] == "Paris"
    place = pydantic.create_model("place", city=(str, ...), country=(str, ...))
    agent = ai.Agent(model, output_type=place, model_settings=settings)
    found = agent.run_sync("Where is the Eiffel tower? City and country.").output
    assert (found.city, found.country) == ("Paris", "France")


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_s_agents_call_a_tool_that_is_required(address: str, kind: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)
    asked: list[str] = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """The current weather of a city."""
        asked.append(city)
        return "14 degrees, rain"

    async def ask() -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{address}/v1", api_key="-", timeout=LONG
        ) as client:
            settings = agents.ModelSettings(temperature=0, max_tokens=200, tool_choice="required")
            model = getattr(agents, kind)(model="qwen", openai_client=client)
            agent = agents.Agent(
                name="weather", tools=[get_weather], model=model, model_settings=settings
            )
            found: str = (await agents.Runner.run(agent, QUESTION, max_turns=4)).final_output
            return found

    assert "14" in asyncio.run(ask())
    assert asked[0] == "Paris"


@pytest.mark.slow
def test_langchain_s_standard_tests(address: str, tmp_path: Any) -> None:
    """All of its tests of chat models, in a process with their own configuration."""
    pytest.importorskip("langchain_tests")
    pytest.importorskip("langchain_openai")
    (tmp_path / "test_standard.py").write_text(STANDARD.format(address=address))
    (tmp_path / "pytest.ini").write_text(INI)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb", "short"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-8000:]


# The library keeps connections between tests, so these share an event loop.
INI: Final = """[pytest]
asyncio_mode = auto
asyncio_default_test_loop_scope = session
asyncio_default_fixture_loop_scope = session
"""
# A model of this size repeats itself in some answers, so a penalty keeps them from the limit.
STANDARD: Final = """
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestService(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    supports_json_mode = True
    has_tool_choice = True
    chat_model_params = {{
        "model": "qwen", "base_url": "{address}/v1", "api_key": "-", "timeout": 600,
        "max_retries": 0, "stream_usage": True, "max_tokens": 256, "temperature": 0,
        "extra_body": {{"repetition_penalty": 1.2}},
    }}
"""
