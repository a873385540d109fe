"""Conversations with tools, formats, thoughts and prefilled answers, with models.

Random weights take any template: what is forced must come, whatever they prefer. Not here: reading
recorded answers (test_tools.py), grammars (test_constraints.py).
"""

# ruff: noqa: E501 templates are written as families write them

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import pytest
from models.transcripts import TOOLS
from models.weights import find

import aggml
from aggml import InvalidArgument
from aggml.models import ChatMessage, ModelError, TextModel, ToolCall
from aggml.models.chat.asking import read_tools
from aggml.models.chat.messages import read_messages
from aggml.models.chat.prompt import encode_messages
from aggml.models.chat.tools import FORMATS, format_of
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hi!"}]
#: Arguments that a random model ends soon.
SMALL: list[dict[str, Any]] = [
    {"name": "pick", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9},
                                         "of": {"enum": ["a", "b"]}},
        "required": ["n", "of"], "additionalProperties": False}},
    {"name": "now"},
]  # fmt: skip
#: Templates as families have them, as short as can be.
HERMES = """{%- if tools %}<tools>{% for t in tools %}{{ t | tojson }}
{% endfor %}</tools> <tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}
{%- for c in m.tool_calls %}<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments}
 | tojson }}</tool_call>{% endfor %}{% endif %}{{ m.content }}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
AS_TEXT = """{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}<tool_call>{"name": \
"{{ c.function.name }}", "arguments": {{ c.function.arguments }}}</tool_call>{% endfor %}{{ m.content \
}}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"""
MISTRAL = """{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}\
{% if c.id | length != 9 %}{{ raise_exception("ids must be nine letters") }}{% endif %}\
[TOOL_CALLS][{{ c.function | tojson }}]{% endfor %}{% elif m.role == "tool" %}\
{% if m.tool_call_id | length != 9 %}{{ raise_exception("ids") }}{% endif %}[R]{{ m.tool_call_id }}\
{{ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}"""
THINKING = """{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}{{ m.content }}
{% endfor %}{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and \
not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


async def load(file: Path, template: str | None = HERMES, **options: Any) -> TextModel:
    model = await aggml.models.load(file, ctx=2048, slots=4, chat_template=template, **options)
    assert isinstance(model, TextModel)
    return model


@pytest.fixture
async def model(file: Path) -> AsyncIterator[TextModel]:
    async with await load(file) as loaded:
        yield loaded


async def text_for(model: TextModel, messages: list[Any], **options: Any) -> str:
    offer = read_tools("test", options.pop("tools", None), "auto")
    known = read_messages("test", messages)
    return (await encode_messages(model, known, {}, offer, **options)).text


# -- calls that must come


@pytest.mark.long
async def test_a_call_that_is_required_comes_with_valid_arguments(model: TextModel) -> None:
    assert model.tool_format == "hermes"
    for seed in range(6):
        answer = await model.chat(
            HELLO, tools=SMALL, tool_choice="required", parallel_tool_calls=False, seed=seed,
            temperature=2.0, top_k=0, max_tokens=300,
        )  # fmt: skip
        assert answer.finish_reason == "tool_calls"
        assert answer.content == ""
        (call,) = answer.tool_calls
        assert isinstance(call, ToolCall)
        assert json.loads(call.text) == call.arguments
        if call.name == "pick":
            jsonschema.validate(call.arguments, SMALL[0]["parameters"])


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("name", ["pick", "now"])
async def test_the_function_that_is_named_is_called(model: TextModel, name: str) -> None:
    for choice in (name, {"type": "function", "function": {"name": name}}):
        answer = await model.chat(
            HELLO, tools=SMALL, tool_choice=choice, parallel_tool_calls=False, temperature=1.0,
            seed=1, max_tokens=400, logit_bias={model.tokenizer.ids["}"]: 5.0},
        )  # fmt: skip
        assert [x.name for x in answer.tool_calls] == [name]


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("form", [x.name for x in FORMATS])
async def test_a_required_call_can_be_read_in_the_format_of_every_family(
    file: Path, form: str
) -> None:
    template = "{{ tools }}" + HERMES + ("<|channel|>" if form == "harmony" else "")
    async with await load(file, template, tool_format=form) as model:
        assert model.tool_format == form
        answer = await model.chat(
            HELLO, tools=SMALL[:1], tool_choice="required", parallel_tool_calls=False,
            temperature=1.0, seed=2, max_tokens=300, logit_bias={model.tokenizer.ids["}"]: 5.0},
            think=False,
        )  # fmt: skip
        assert answer.finish_reason == "tool_calls", answer
        jsonschema.validate(answer.tool_calls[0].arguments, SMALL[0]["parameters"])


async def test_calls_behind_the_mark_with_which_a_prompt_ends_are_read(file: Path) -> None:
    """GLM-4 writes the function where the title of its message stands."""
    template = (
        "[gMASK]<sop>{{ tools }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{# <|observation|> #}"
    )
    async with await load(file, template) as model:
        assert model.tool_format == "glm4"
        answer = await model.chat(
            HELLO, tools=SMALL[:1], tool_choice="required", parallel_tool_calls=False,
            temperature=1.0, seed=2, max_tokens=300, logit_bias={model.tokenizer.ids["}"]: 5.0},
        )  # fmt: skip
        assert [x.name for x in answer.tool_calls] == [SMALL[0]["name"]]
        assert answer.content == ""
        jsonschema.validate(answer.tool_calls[0].arguments, SMALL[0]["parameters"])
        free = await model.chat(HELLO, tools=SMALL[:1], max_tokens=12)
        plain = await model.chat(HELLO, max_tokens=12)
        assert "<|assistant|>" not in free.content + plain.content


async def test_an_answer_that_is_cut_within_a_call_says_length_and_has_no_call(
    model: TextModel,
) -> None:
    answer = await model.chat(HELLO, tools=SMALL, tool_choice="pick", max_tokens=15)
    assert answer.finish_reason == "length"
    assert answer.tool_calls == []
    assert answer.content.startswith("<tool_call>")


async def test_tools_that_may_not_be_called_are_not_told(model: TextModel) -> None:
    with_none = await model.chat(HELLO, tools=SMALL, tool_choice="none", max_tokens=8)
    without = await model.chat(HELLO, max_tokens=8)
    assert with_none.content == without.content
    assert with_none.usage.prompt_tokens == without.usage.prompt_tokens


async def test_parameters_that_cannot_be_served_are_named(model: TextModel) -> None:
    tools = [SMALL[1], {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "array", "uniqueItems": True}}}}]  # fmt: skip
    said = r"^\[chat\] tools\[1\]\.function\.parameters\.properties\.a\.uniqueItems "
    with pytest.raises(InvalidArgument, match=said):
        await model.chat(HELLO, tools=tools, tool_choice="required")
    assert (await model.chat(HELLO, tools=tools, max_tokens=3)).usage.completion_tokens == 3


async def test_pieces_of_a_call_add_up_to_the_call(model: TextModel) -> None:
    options: dict[str, Any] = {"tools": SMALL, "tool_choice": "pick", "max_tokens": 300,
                               "parallel_tool_calls": False}  # fmt: skip
    whole = await model.chat(HELLO, **options)
    deltas = [x async for x in model.chat_stream(HELLO, **options)]
    pieces = [y for x in deltas for y in x.tool_calls]
    assert (pieces[0].index, pieces[0].name, pieces[0].arguments) == (0, "pick", "")
    assert pieces[0].id is not None
    assert "".join(x.arguments for x in pieces) == whole.tool_calls[0].text
    assert deltas[-1].finish_reason == "tool_calls"


async def test_a_call_is_a_tuple_of_id_name_and_arguments(model: TextModel) -> None:
    answer = await model.chat(HELLO, tools=SMALL, tool_choice="pick", max_tokens=300)
    for number, name, arguments in answer.tool_calls:
        assert number.startswith("call_")
        assert name == "pick"
        jsonschema.validate(arguments, SMALL[0]["parameters"])
    (first, *_) = answer.tool_calls
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert json.loads(again.text) == first.arguments
    assert json.loads(ToolCall("1", "pick", {"of": "ä"}).text) == {"of": "ä"}


# -- formats


async def test_the_content_is_json_of_the_format(model: TextModel) -> None:
    schema = SMALL[0]["parameters"]
    bias = {model.tokenizer.ids[x]: 6.0 for x in '}"'}
    for form in (
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        {"type": "json_schema", "schema": schema}, schema,
    ):  # fmt: skip
        answer = await model.chat(HELLO, response_format=form, max_tokens=300, logit_bias=bias)
        jsonschema.validate(json.loads(answer.content), schema)
    answer = await model.chat(
        HELLO, response_format={"type": "json_object"}, max_tokens=300, logit_bias=bias
    )
    assert isinstance(json.loads(answer.content), dict)
    plain = await model.chat(HELLO, response_format={"type": "text"}, max_tokens=5)
    assert plain == await model.chat(HELLO, max_tokens=5)


@pytest.mark.long
async def test_with_tools_the_content_is_of_the_format_or_it_is_a_call(model: TextModel) -> None:
    schema = {"enum": ["yes", "no"]}
    kinds = set()
    for seed in range(12):
        answer = await model.chat(
            HELLO, tools=SMALL[:1], response_format={"type": "json_schema", "json_schema": {
                "schema": schema}}, temperature=3.0, top_k=0, seed=seed, max_tokens=200,
            parallel_tool_calls=False,
        )  # fmt: skip
        if answer.tool_calls:
            jsonschema.validate(answer.tool_calls[0].arguments, SMALL[0]["parameters"])
        else:
            assert json.loads(answer.content) in ("yes", "no")
        kinds.add(bool(answer.tool_calls))
    assert kinds == {True, False}


# -- arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": "x"}, r"tools is 'x', expected a list of functions"),
        ({"tools": [5]}, r"tools\[0\] is 5"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].name is missing"),
        ({"tools": [{"type": "web"}]}, r"tools\[0\]"),
        ({"tools": [{"name": "a b"}]}, r"tools\[0\].name is 'a b'"),
        ({"tools": [{"name": "a", "parameters": 5}]}, r"tools\[0\].parameters is 5"),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, r"tools\[1\] has the name 'a'"),
        ({"tool_choice": "required"}, "tool_choice is 'required', but there are no tools"),
        ({"tools": SMALL, "tool_choice": "no"}, "tool_choice names the function 'no'"),
        ({"tools": SMALL, "tool_choice": 5}, "tool_choice is 5"),
        ({"response_format": "json"}, "response_format is 'json'"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is missing"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"think": "very"}, "think is 'very'"),
        ({"think": -1}, r"think is -1 .*a number of tokens from 0 on"),
        ({"continue_final": True}, "continue_final needs a last message of the assistant"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls is 1"),
        ({"schema": {}, "response_format": {"type": "json_object"}}, "one of them"),
    ],
)
async def test_what_is_asked_is_checked_by_name(
    model: TextModel, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"^\[chat\] .*{said}"):
        await model.chat(HELLO, **options)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
            "only the assistant has that",
        ),
        ({"role": "user", "content": "x", "tool_calls": [1]}, r"tool_calls\[0\] is 1"),
        ({"role": "assistant", "tool_calls": 5}, r"tool_calls is 5"),
        ({"role": "assistant", "tool_calls": [5]}, r"tool_calls\[0\] is 5"),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            r"\[0\].function.name is missing",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            r"function.arguments is '\{', expected JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            r"function.arguments is \[1\]",
        ),
        ({"role": "assistant"}, "content is missing"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id is 5"),
    ],
)
async def test_messages_with_calls_are_checked_by_name(
    model: TextModel, message: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"messages\[1\].*{said}"):
        await model.chat([*HELLO, message])


# -- what the model is told

CALLED: list[Any] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1234567890", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "größe \\"x\\""}'}}]},
    {"role": "tool", "tool_call_id": "call_1234567890", "content": "sunny"},
]  # fmt: skip


async def test_tools_calls_and_results_are_written_by_the_template(file: Path) -> None:
    async with await load(file) as model:
        text = await text_for(model, CALLED, tools=TOOLS)
    assert '"name": "weather"' in text.split("</tools>")[0]
    assert (
        '<tool_call>{"name": "weather", "arguments": {"city": "größe \\"x\\""}}</tool_call>' in text
    )
    assert "[tool]sunny" in text


async def test_arguments_are_given_in_the_form_that_a_template_takes(file: Path) -> None:
    async with await load(file, AS_TEXT) as model:
        text = await text_for(model, CALLED)
    assert '"arguments": {"city": "größe \\"x\\""}}</tool_call>' in text


async def test_ids_of_mistral_have_nine_letters(file: Path) -> None:
    async with await load(file, MISTRAL) as model:
        assert model.tool_format == "mistral"
        text = await text_for(model, CALLED)
    assert "[R]" in text


async def test_an_answer_with_calls_can_be_put_behind_its_conversation(file: Path) -> None:
    call = ToolCall("call_1234567890", "weather", {"city": 'größe "x"'}, "")
    answer = ChatMessage("", tool_calls=[call])
    async with await load(file) as model:
        assert await text_for(model, [CALLED[0], answer, CALLED[2]]) == await text_for(
            model, CALLED
        )


async def test_a_template_without_tools_is_told_of_them_in_its_system_message(file: Path) -> None:
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    async with await load(file, plain) as model:
        assert model.tool_format is None
        text = await text_for(model, CALLED, tools=TOOLS)
        assert text.startswith("[system]")
        for part in ('"name": "weather"', "<tool_call>", "<tool_response>\nsunny"):
            assert part in text
        with_own = await text_for(model, [{"role": "system", "content": "Be kind."}, *CALLED],
                                  tools=TOOLS)  # fmt: skip
        assert with_own.startswith("[system]Be kind.\n\n")
        answer = await model.chat(HELLO, tools=SMALL, tool_choice="pick", max_tokens=300,
                                  parallel_tool_calls=False)  # fmt: skip
        assert answer.finish_reason == "tool_calls"


async def test_names_of_control_tokens_in_tools_and_results_stay_text(model: TextModel) -> None:
    messages = [*CALLED[:2], CALLED[2] | {"content": "</s> sunny"}]
    tools = [{"name": "f", "description": "ends with </s>"}]
    known = read_messages("test", messages)
    offer = read_tools("test", tools, "auto")
    ids = (await encode_messages(model, known, {}, offer)).ids
    assert model.tokenizer.ids["</s>"] not in ids
    assert "</s> sunny" in model.tokenizer.decode(ids)


# -- thoughts


async def test_what_comes_before_the_end_of_thoughts_is_apart(file: Path) -> None:
    async with await load(file, THINKING) as model:
        assert model.think_format == "think"
        answer = await model.chat(HELLO, max_tokens=12, ignore_eos=True)
        assert answer.content == ""
        assert answer.reasoning
        off = await model.chat(HELLO, think=False, max_tokens=12, ignore_eos=True)
        assert off.reasoning is None
        assert off.content


async def test_thoughts_end_after_as_many_tokens_as_they_may_have(file: Path) -> None:
    async with await load(file, THINKING) as model:
        closing = len(model.tokenizer.encode("\n</think>\n\n", special=False))
        for budget in (0, 1, 7):
            several: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 3}]
            for more in several:
                answer = await model.chat(
                    HELLO, think=budget, max_tokens=budget + closing + 5, ignore_eos=True, **more
                )
                assert len(answer.reasoning or "") <= 4 * budget
                assert answer.usage.completion_tokens == budget + closing + 5
                assert "think>" not in answer.content


async def test_a_schema_binds_after_thoughts_alone(file: Path) -> None:
    schema = {"enum": ["yes", "no"]}
    async with await load(file, THINKING) as model:
        answer = await model.chat(HELLO, think=6, response_format={
            "type": "json_schema", "json_schema": {"schema": schema}}, max_tokens=60)  # fmt: skip
        assert answer.reasoning
        assert json.loads(answer.content) in ("yes", "no")
        assert answer.finish_reason == "stop"
        cut = await model.chat(HELLO, response_format={"type": "json_object"}, max_tokens=6)
        assert (cut.content, cut.finish_reason) == ("", "length")
        forced = await model.chat(HELLO, tools=SMALL, tool_choice="pick", think=4, max_tokens=300,
                                  parallel_tool_calls=False)  # fmt: skip
        assert [x.name for x in forced.tool_calls] == ["pick"]
        assert forced.reasoning


async def test_a_call_and_thoughts_may_begin_with_the_same_character(file: Path) -> None:
    template = HERMES + "{# <think> #}"
    async with await load(file, template) as model:
        assert model.think_format == "think"
        answer = await model.chat(
            HELLO, tools=SMALL, tool_choice="pick", max_tokens=300, parallel_tool_calls=False,
            logit_bias={model.tokenizer.ids["<"]: 9.0},
        )  # fmt: skip
        assert [x.name for x in answer.tool_calls] == ["pick"]
        plain = await model.chat(HELLO, response_format={"enum": ["<thin", "<x"]}, max_tokens=60)
        assert json.loads(plain.content) in ("<thin", "<x")


async def test_thoughts_of_earlier_answers_reach_the_template(file: Path) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
                *HELLO]  # fmt: skip
    async with await load(file, THINKING) as model:
        assert "[assistant]Hm.Yes." in await text_for(model, messages)


# -- answers that are continued


async def test_the_last_message_is_continued(file: Path) -> None:
    asked: list[Any] = [*HELLO, {"role": "assistant", "content": "One, two, "}]
    async with await load(file) as model:
        text = await text_for(model, asked, continue_final=True)
        assert text.endswith("[assistant]One, two, ")
        answer = await model.chat(asked, continue_final=True, max_tokens=6, ignore_eos=True)
        wanted = [x.text async for x in model.generate(text, max_tokens=6, ignore_eos=True)]
        assert answer.content == "".join(wanted)
        parts = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two, "}]
        asked[-1]["content"] = parts
        again = await model.chat(asked, continue_final=True, max_tokens=6, ignore_eos=True)
        assert again.content == answer.content


# -- options of load


async def test_a_template_may_come_from_a_text_or_from_a_file(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }}!")
    for given in ("{{ messages[0].content }}!", path, str(path)):
        async with await aggml.models.load(file, ctx=256, chat_template=given) as model:
            assert model.template.render(HELLO) == "Hi!!"
    with pytest.raises(ModelError, match=r"the chat template .* cannot be read"):
        await aggml.models.load(file, ctx=256, chat_template=tmp_path / "none")
    with pytest.raises(InvalidArgument, match=r"tool_format is 'x', not one of .*hermes"):
        aggml.models.load(file, tool_format="x")


@pytest.mark.parametrize("form", FORMATS, ids=lambda x: x.name)
def test_a_template_with_the_signs_of_a_family_is_recognized(form: Any) -> None:
    for row in form.signs:
        found = format_of(" ".join(row))
        assert found is not None
        assert form.name == found.name or set(row) >= {"<tool_call>["}


# -- beside others


@pytest.mark.long
async def test_free_and_forced_answers_share_steps_and_each_gets_what_it_gets_alone(
    model: TextModel,
) -> None:
    asked: list[dict[str, Any]] = [
        {}, {"tools": SMALL, "tool_choice": "pick", "parallel_tool_calls": False},
        {"response_format": {"enum": ["yes", "no"]}}, {"frequency_penalty": 0.5},
    ]  # fmt: skip
    every = [{"max_tokens": 60, "ignore_eos": True, **x} for x in asked]
    alone = [await model.chat(HELLO, **x) for x in every]
    found: dict[int, ChatMessage] = {}

    async def one(i: int) -> None:
        found[i] = await model.chat(HELLO, **every[i])

    async with anyio.create_task_group() as tasks:
        for i in range(len(every)):
            tasks.start_soon(one, i)
    for i, wanted in enumerate(alone):
        assert found[i].content == wanted.content
        assert [x.text for x in found[i].tool_calls] == [x.text for x in wanted.tool_calls]


# -- a trained model that calls tools


async def test_a_trained_model_calls_a_tool_and_answers_with_its_result() -> None:
    path = find("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    async with aggml.models.load(path, ctx=2048, slots=2) as model:
        assert isinstance(model, TextModel)
        assert model.tool_format == "hermes"
        answer = await model.chat(asked, tools=TOOLS[:1], max_tokens=100)
        assert answer.finish_reason == "tool_calls"
        assert answer.tool_calls[0].name == "weather"
        assert answer.tool_calls[0].arguments["city"] == "Paris"
        forced = await model.chat(asked, tools=TOOLS[:1], tool_choice="required", max_tokens=100)
        jsonschema.validate(forced.tool_calls[0].arguments, TOOLS[0]["function"]["parameters"])
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "21 degrees"}
        last = await model.chat([*asked, answer, result], max_tokens=60)
        assert "21" in last.content
