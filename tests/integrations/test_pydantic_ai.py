"""pydantic-ai: agents on random weights: texts, streams, forms in each mode, tools and results.

The project publishes no tests for models of others; these run its agents. Not here: pydantic-ai
beside the service (tests/serve/test_libraries.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from integrations.support import HELLO, check_forecast, close_all, forecast, near, small

from aggml.models import TooLongError

if TYPE_CHECKING:
    from collections.abc import Iterator

ai = pytest.importorskip("pydantic_ai", reason="aggml[pydantic-ai] is not installed")
from pydantic_ai import models  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition  # noqa: E402

from aggml.integrations.pydantic_ai import AggmlModel  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    yield
    close_all()


def run(agent: Any, *args: Any, **options: Any) -> Any:
    """`Agent.run_sync`, in a loop that is closed afterwards."""
    return asyncio.run(agent.run(*args, **options))


def test_an_answer_is_the_model_s_also_in_pieces() -> None:
    wanted = small().chat(HELLO, max_tokens=6, logprobs=1)
    model = AggmlModel(small(), settings={"max_tokens": 6})
    found = run(ai.Agent(model), "Hello!", model_settings={"aggml_logprobs": 1})
    assert found.output == wanted.content
    response = found.response
    assert (response.finish_reason, response.usage.output_tokens) == ("length", 6)
    told = response.provider_details["logprobs"]
    assert [x["logprob"] for x in told] == near([x.logprob for x in wanted.tokens])

    async def streamed() -> tuple[str, Any]:
        async with ai.Agent(model).run_stream("Hello!") as stream:
            pieces = [x async for x in stream.stream_text(delta=True, debounce_by=None)]
            return "".join(pieces), stream.response

    text, last = asyncio.run(streamed())
    assert text == wanted.content
    assert (last.finish_reason, last.usage.output_tokens) == ("length", 6)


def test_a_form_is_filled_in_each_mode_whole_and_in_pieces() -> None:
    model = AggmlModel(small(), settings={"max_tokens": 200})
    for kind in (forecast(), ai.ToolOutput(forecast()), ai.NativeOutput(forecast())):
        agent = ai.Agent(model, output_type=kind)
        check_forecast(run(agent, "hi").output)

        async def streamed(agent: Any = agent) -> Any:
            async with agent.run_stream("hi") as stream:
                return await stream.get_output()

        check_forecast(asyncio.run(streamed()))


def test_a_tool_that_must_be_called_is_called_with_arguments_of_its_schema() -> None:
    model = AggmlModel(small(), settings={"max_tokens": 200, "parallel_tool_calls": False})
    schema = forecast().model_json_schema()
    tool = ToolDefinition(
        name="forecast", parameters_json_schema=schema, description="The weather."
    )  # fmt: skip
    parameters = models.ModelRequestParameters(function_tools=[tool])
    given: list[Any] = [ModelRequest([UserPromptPart("hi")])]
    found = asyncio.run(model.request(given, {"tool_choice": "required"}, parameters))
    (call,) = found.tool_calls
    assert (call.tool_name, found.finish_reason) == ("forecast", "tool_call")
    check_forecast(call.args_as_dict())


def test_messages_come_through_with_calls_results_and_instructions() -> None:
    face = small()
    given = [
        ModelRequest([UserPromptPart("one")], instructions="Be brief."),
        ModelResponse([TextPart("x"), ToolCallPart("f", {"a": 1}, "call_1")]),
        ModelRequest([ToolReturnPart("f", "3", "call_1")], instructions="Be brief."),
    ]
    wanted = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "x", "tool_calls": [
            {"id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "f"},
    ]  # fmt: skip
    model = AggmlModel(face)
    settings = {"max_tokens": 4, "aggml_options": {"ignore_eos": True}}
    parameters = models.ModelRequestParameters()
    found = asyncio.run(model.request(given, settings, parameters))
    plain = face.chat(wanted, max_tokens=4, ignore_eos=True)
    assert found.text == plain.content
    counted = asyncio.run(model.count_tokens(given, None, parameters))
    assert counted.input_tokens == plain.usage.prompt_tokens


def test_requests_may_be_forbidden_and_errors_are_the_model_s() -> None:
    agent = ai.Agent(AggmlModel(small(), settings={"max_tokens": 4}))
    with models.override_allow_model_requests(False), pytest.raises(RuntimeError):
        run(agent, "hi")
    with pytest.raises(TooLongError):
        run(agent, "a " * 4000)
