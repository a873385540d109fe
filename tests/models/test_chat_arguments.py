"""Every part of the arguments of `chat` is checked at the call, and refused by its place.

Not here: options that `generate` has, too (test_arguments.py), fields over HTTP
(tests/serve/test_wrong_types.py), what the model is told (test_chat.py, test_tools.py).
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models.test_arguments import ODD, RIGHT

import aggml
from aggml.models import Model, TextModel
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FUNCTION: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
    },
    "strict": False,
}
CALL: dict[str, Any] = {
    "id": "1",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "it"}},
}
WHOLE: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "a", "name": "n", "tool_calls": None, "reasoning": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
        {"role": "tool", "content": [{"type": "text", "text": "t"}], "tool_call_id": "1"},
        {"role": "assistant", "content": "b", "reasoning_content": "r", "refusal": None},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": None,
    "think": None,
    "template_args": {"enable_thinking": False},
    "max_tokens": None,
    "continue_final": False,
    "parallel_tool_calls": True,
}
#: A form of an answer that WHOLE cannot have beside its tool_choice.
FORM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "n", "description": "d", "strict": True, "schema": {"type": "object"},
        },
    },
}  # fmt: skip
SHORT_FORM: dict[str, Any] = {**FORM, "response_format": {"type": "json_object", "schema": {}}}
NO_CHOICE: dict[str, Any] = {**WHOLE, "tool_choice": "auto"}
ALLOWED: dict[str, Any] = {
    **WHOLE, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look"}]},
}  # fmt: skip

TEXTS = {"text"}
FLAGS = {"True", "np.bool"}
PARAMETERS = ("tools", 0, "function", "parameters")
#: A part of a call, and what is right there among ODD.
PARTS: list[tuple[dict[str, Any], tuple[str | int, ...], set[str]]] = [
    (WHOLE, ("messages",), set()),
    (WHOLE, ("messages", 0), set()),
    (WHOLE, ("messages", 0, "role"), set()),
    (WHOLE, ("messages", 0, "content"), TEXTS),
    (WHOLE, ("messages", 0, "name"), TEXTS | {"None"}),
    (WHOLE, ("messages", 0, "tool_calls"), {"None"}),
    (WHOLE, ("messages", 0, "reasoning"), {"None"}),
    (WHOLE, ("messages", 0, "colour"), set()),
    (WHOLE, ("messages", 1, "content"), TEXTS | {"None"}),
    (WHOLE, ("messages", 1, "reasoning"), TEXTS | {"None"}),
    (WHOLE, ("messages", 1, "tool_calls"), {"None"}),
    (WHOLE, ("messages", 1, "tool_calls", 0), set()),
    (WHOLE, ("messages", 1, "tool_calls", 0, "id"), TEXTS | {"None"}),
    (WHOLE, ("messages", 1, "tool_calls", 0, "type"), set()),
    (WHOLE, ("messages", 1, "tool_calls", 0, "function"), set()),
    (WHOLE, ("messages", 1, "tool_calls", 0, "function", "name"), TEXTS),
    (WHOLE, ("messages", 1, "tool_calls", 0, "function", "arguments"), {"None", "dict"}),
    (WHOLE, ("messages", 1, "tool_calls", 0, "function", "arguments", "at"),
     {"None", "text", "list", "dict", "-1", "-0.5", "2.5", "True", "huge"}),
    (WHOLE, ("messages", 2, "tool_call_id"), TEXTS | {"None"}),
    (WHOLE, ("messages", 2, "content"), TEXTS),
    (WHOLE, ("messages", 2, "content", 0), TEXTS),
    (WHOLE, ("messages", 2, "content", 0, "type"), set()),
    (WHOLE, ("messages", 2, "content", 0, "text"), TEXTS),
    (WHOLE, ("messages", 3, "reasoning_content"), TEXTS | {"None"}),
    (WHOLE, ("messages", 3, "refusal"), {"None"}),
    (WHOLE, ("tools", 0), set()),
    (WHOLE, ("tools", 0, "type"), set()),
    (WHOLE, ("tools", 0, "colour"), set()),
    (WHOLE, ("tools", 0, "function"), set()),
    (NO_CHOICE, ("tools", 0, "function", "name"), TEXTS),
    (WHOLE, ("tools", 0, "function", "description"), TEXTS | {"None"}),
    (WHOLE, ("tools", 0, "function", "strict"), FLAGS | {"None"}),
    (WHOLE, ("tools", 0, "function", "colour"), set()),
    (WHOLE, PARAMETERS, {"None", "dict"}),
    (WHOLE, (*PARAMETERS, "type"), set()),
    (WHOLE, (*PARAMETERS, "properties"), {"None"}),
    (WHOLE, (*PARAMETERS, "properties", "at"), {"dict", "True"}),
    (WHOLE, (*PARAMETERS, "required"), {"None"}),
    (WHOLE, ("tool_choice",), set()),
    (WHOLE, ("tool_choice", "type"), set()),
    (WHOLE, ("tool_choice", "colour"), set()),
    (WHOLE, ("tool_choice", "function"), set()),
    (WHOLE, ("tool_choice", "function", "name"), set()),
    (WHOLE, ("tool_choice", "function", "colour"), set()),
    (ALLOWED, ("tool_choice", "mode"), set()),
    (ALLOWED, ("tool_choice", "tools"), set()),
    (ALLOWED, ("tool_choice", "tools", 0), set()),
    (ALLOWED, ("tool_choice", "tools", 0, "name"), set()),
    (FORM, ("response_format",), {"None", "dict"}),
    (FORM, ("response_format", "type"), set()),
    (FORM, ("response_format", "colour"), set()),
    (FORM, ("response_format", "json_schema"), set()),
    (FORM, ("response_format", "json_schema", "name"), TEXTS | {"None"}),
    (FORM, ("response_format", "json_schema", "description"), TEXTS | {"None"}),
    (FORM, ("response_format", "json_schema", "strict"), FLAGS | {"None"}),
    (FORM, ("response_format", "json_schema", "schema"), {"dict", "True"}),
    (FORM, ("response_format", "json_schema", "colour"), set()),
    (SHORT_FORM, ("response_format", "schema"), {"None", "dict", "True"}),
    (SHORT_FORM, ("response_format", "colour"), set()),
    (WHOLE, ("think",), {"None", "True", "np.bool", "huge"}),
    (WHOLE, ("template_args",), {"None", "dict"}),
    (WHOLE, ("max_tokens",), {"None", "huge"}),
    (WHOLE, ("continue_final",), FLAGS),
    (WHOLE, ("parallel_tool_calls",), FLAGS),
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def model(path: Path) -> AsyncIterator[Model]:
    async with aggml.models.load(path, ctx=512) as loaded:
        yield loaded


def changed(whole: dict[str, Any], part: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The arguments of a call, with another value in one place."""
    made = copy.deepcopy(whole)
    inner: Any = made
    for key in part[:-1]:
        inner = inner[key]
    inner[part[-1]] = value
    return made


def test_the_table_has_every_argument_of_chat() -> None:
    known = set(inspect.signature(TextModel.chat).parameters) - {"self", "options"}
    assert {part[0] for _, part, _ in PARTS} | {"tools"} == known
    assert "max_tokens" in RIGHT  # the others are those of `generate`


async def test_the_whole_calls_are_right(model: Model) -> None:
    for whole in (WHOLE, FORM, SHORT_FORM, ALLOWED):
        await model.chat_stream(**whole).aclose()
    for name, given in (("tools", []), ("tools", None), ("tools", [FUNCTION])):
        await model.chat_stream(**changed(FORM, (name,), given)).aclose()


@pytest.mark.long(cases=16)
@pytest.mark.parametrize(
    ("whole", "part", "fine"), PARTS, ids=[".".join(map(str, part)) for _, part, _ in PARTS]
)
async def test_an_odd_value_is_refused_by_its_place(
    model: Model, whole: dict[str, Any], part: tuple[str | int, ...], fine: set[str]
) -> None:
    """The message has the key, or the value that has it, and the argument of the call."""
    key = next(x for x in reversed(part) if isinstance(x, str))
    for what, value in ODD.items():
        call = changed(whole, part, value)
        if what in fine:
            await model.chat_stream(**call).aclose()
            continue
        with pytest.raises(aggml.InvalidArgument) as caught:
            model.chat_stream(**call)
        text = str(caught.value)
        assert text.startswith(f"[chat_stream] {part[0]}"), (what, text)
        assert key in text or part[:-1] in (PARAMETERS, (*PARAMETERS, "properties")) or (
            part[0] == "response_format" and part[-1] == "colour"
        ), (what, text)  # fmt: skip
        assert "\n" not in text


async def test_options_of_generate_are_refused_in_the_name_of_chat(model: Model) -> None:
    for name, fine in RIGHT.items():
        for what in ("object", "array", "nan"):
            if what not in fine and name != "max_tokens":
                with pytest.raises(aggml.InvalidArgument, match=rf"^\[chat\] {name}\W"):
                    await model.chat(FORM["messages"], **{name: ODD[what]})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("temprature", "such as temperature"),
        ("prompt", "expected those of chat and of generate"),
        ("max_new_tokens", "such as max_tokens"),
    ],
)
async def test_an_option_that_there_is_not_is_named(model: Model, name: str, said: str) -> None:
    """The error is a TypeError, as Python's own."""
    options: dict[str, Any] = {name: 5}
    for call in (model.chat, model.chat_stream):

        async def ask(call: Any = call) -> None:
            await call(FORM["messages"], **options)

        with pytest.raises(aggml.InvalidHandle, match=rf"\] {name} is 5 \(int\), .*{said}") as got:
            await ask()
        assert isinstance(got.value, TypeError)


async def test_what_a_function_returns_is_told_to_the_template(model: Model) -> None:
    """transformers makes it of a function's docstring; other keys are refused."""
    from aggml.models.chat.asking import read_tools

    given = {**FUNCTION, "return": {"type": "string"}}
    offer = read_tools("chat", [given], "auto")
    assert offer is not None
    assert offer.tools[0].given["return"] == {"type": "string"}
    with pytest.raises(aggml.InvalidArgument, match=r"tools\[0\]\.return cannot be written as JS"):
        read_tools("chat", [{**given, "return": np.ones(2)}], "auto")
