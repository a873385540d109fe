"""What a caller asks of an answer beside its text: tools, a format, thinking; checked by name.

Not here: messages (messages.py), how a model is told of it (tools/, thoughts.py, prompt.py).
"""
# ruff: noqa: ANN401 - arguments are whatever was given until they are checked

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import flag, integer, is_text, json_value, one_text, show
from aggml.models.engine.grammars import Grammar, schema_text

__all__ = ["Tool", "ToolOffer", "read_format", "read_think", "read_tools"]

EFFORTS: Final = ("low", "medium", "high")
THINK: Final = (
    f"True, False, a number of tokens from 0 on, or one of {', '.join(map(repr, EFFORTS))}"
)
TOOLS: Final = 512
NAME: Final = 128  # characters of a name
TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
FUNCTION: Final = ("name", "description", "parameters", "strict", "return")
FORMAT: Final = ("name", "description", "schema", "strict")
CHOICES: Final = ("none", "auto", "required")
ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name, description: of the function.
        parameters: the JSON schema of its arguments.
        strict: whether arguments are always restricted to that.
        given: the function as the caller gave it, for the template.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool
    given: dict[str, Any]


@dataclass(frozen=True)
class ToolOffer:
    """The functions that the model is told of, and whether it must call one.

    Attributes:
        tools: at least one.
        choice: "none", "auto", "required".
        only: the names of those that may be called; None: any.
        parallel: whether there may be several calls.
    """

    tools: tuple[Tool, ...]
    choice: Literal["none", "auto", "required"]
    only: frozenset[str] | None
    parallel: bool

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.choice == "none":
            return ()
        return tuple(x for x in self.tools if self.only is None or x.name in self.only)


def read_tools(place: str, tools: Any, choice: Any, *, parallel: bool = True) -> ToolOffer | None:
    """The functions that the model is told of; None: none.

    Raises:
        InvalidArgument: something is no function; ``tool_choice`` names one that is not there.
    """
    found: list[Tool] = []
    if tools is not None:
        if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
            raise InvalidArgument(f"[{place}] tools is {show(tools)}, expected a list of functions")
        if len(tools) > TOOLS:
            raise InvalidArgument(
                f"[{place}] tools has {len(tools)} functions, at most {TOOLS} are allowed"
            )
        found = [_read_tool(place, f"tools[{i}]", x) for i, x in enumerate(tools)]
    names = [x.name for x in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidArgument(f"[{place}] tools[{i}] has the name {name!r} of another one")
    only: str | None = None
    allowed: frozenset[str] | None = None
    if isinstance(choice, Mapping) and is_text(choice.get("type"), "allowed_tools"):
        choice, allowed = _read_allowed(place, choice)
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        if not is_text(choice.get("type", "function"), "function") or not isinstance(
            function, Mapping
        ):
            raise InvalidArgument(
                f"[{place}] tool_choice is {show(choice)}, expected "
                "{'type': 'function', 'function': {'name': name}}"
            )
        if function is choice:
            _check_keys(place, "tool_choice", choice, ("type", "name"))
        else:
            _check_keys(place, "tool_choice", choice, ("type", "function"))
            _check_keys(place, "tool_choice.function", function, ("name",))
        only = one_text(place, "tool_choice.function.name", function.get("name"))
    elif not isinstance(choice, str):
        raise InvalidArgument(
            f"[{place}] tool_choice is {show(choice)}, expected {', '.join(map(repr, CHOICES))} "
            "or the name of a function"
        )
    elif choice not in CHOICES:
        only = choice
    if only is not None:
        allowed = frozenset((only,))
    unknown = sorted((allowed or frozenset()).difference(names))
    if unknown:
        raise InvalidArgument(
            f"[{place}] tool_choice names the function {show(unknown[0])}, which is not one of "
            "tools"
        )
    if not found:
        if choice == "required":
            raise InvalidArgument(f"[{place}] tool_choice is 'required', but there are no tools")
        return None
    kind: Literal["none", "auto", "required"] = "auto"
    if only is not None or choice == "required":
        kind = "required"
    elif choice == "none":
        kind = "none"
    return ToolOffer(tuple(found), kind, allowed, parallel)


def _read_allowed(place: str, given: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """A choice among some of the functions: "auto" or "required", and their names."""
    inner = given.get("allowed_tools", given)
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    tools = inner.get("tools") if isinstance(inner, Mapping) else None
    if (
        not is_text(mode, "auto", "required")
        or not isinstance(tools, Sequence)
        or isinstance(tools, (str, bytes, bytearray, memoryview))
        or not tools
    ):
        raise InvalidArgument(
            f"[{place}] tool_choice is {show(given)}, expected {{'type': 'allowed_tools', 'mode': "
            "'auto' or 'required', 'tools': [{'name': name}, ...]}"
        )
    names = []
    for i, tool in enumerate(tools):
        about = tool.get("function", tool) if isinstance(tool, Mapping) else tool
        name = about.get("name") if isinstance(about, Mapping) else about
        names.append(one_text(place, f"tool_choice.tools[{i}].name", name))
    return str(mode), frozenset(names)


def _read_tool(place: str, name: str, given: Any) -> Tool:
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"[{place}] {name} is {show(given)}, expected "
            "{'type': 'function', 'function': {'name': ..., 'parameters': ...}}"
        )
    function = given
    if not is_text(given.get("type", "function"), "function"):
        raise InvalidArgument(
            f"[{place}] {name}.type is {show(given['type'])}, expected 'function'"
        )
    if "function" in given:
        _check_keys(place, name, given, ("type", "function"))
        function = given["function"]
        name = f"{name}.function"
    if not isinstance(function, Mapping):
        raise InvalidArgument(f"[{place}] {name} is {show(function)}, expected a function: a dict")
    _check_keys(place, name, function, (*FUNCTION, *(("type",) if function is given else ())))
    if "name" not in function:
        raise InvalidArgument(f"[{place}] {name}.name is missing")
    title = one_text(place, f"{name}.name", function["name"])
    if not 0 < len(title) <= NAME or any(x.isspace() or x in "<>\"'`" for x in title):
        raise InvalidArgument(
            f"[{place}] {name}.name is {show(title)}, expected 1 to {NAME} characters without "
            "blanks, quotes and angle brackets"
        )
    about = function.get("description")
    description = "" if about is None else one_text(place, f"{name}.description", about)
    parameters = function.get("parameters")
    if parameters is None:
        schema: dict[str, Any] = dict(ANY_OBJECT)
    else:
        if not isinstance(parameters, Mapping):
            raise InvalidArgument(
                f"[{place}] {name}.parameters is {show(parameters)}, expected a JSON schema: a dict"
            )
        schema = json.loads(schema_text(place, f"{name}.parameters", parameters))
        _check_parameters(place, f"{name}.parameters", schema)
        if not schema:
            schema = dict(ANY_OBJECT)
    strict = function.get("strict")
    strict = strict is not None and flag(place, f"{name}.strict", strict)
    plain = {"name": title, "description": description, "parameters": schema}
    if function.get("return") is not None:  # transformers makes it of a function's docstring
        plain["return"] = json_value(place, f"{name}.return", function["return"])
    return Tool(title, description, schema, strict, plain)


def _check_parameters(place: str, name: str, schema: dict[str, Any]) -> None:
    """Check the keywords of which a model is told what arguments there are."""
    kind = schema.get("type", "object")
    if not is_text(kind, "object") and not (isinstance(kind, list) and "object" in kind):
        raise InvalidArgument(f"[{place}] {name}.type is {show(kind)}, expected 'object'")
    properties = schema.get("properties")
    properties = {} if properties is None else properties  # clients in Go write null
    if not isinstance(properties, dict):
        raise InvalidArgument(
            f"[{place}] {name}.properties is {show(properties)}, expected a JSON schema for each "
            "argument: a dict"
        )
    for key, one in properties.items():
        if not isinstance(one, (dict, bool)):
            raise InvalidArgument(
                f"[{place}] {name}.properties[{show(key)}] is {show(one)}, expected a JSON "
                "schema: a dict"
            )
    required = schema.get("required")
    required = [] if required is None else required
    if not isinstance(required, list) or not all(isinstance(x, str) for x in required):
        raise InvalidArgument(
            f"[{place}] {name}.required is {show(required)}, expected a list of names"
        )


def _check_keys(place: str, name: str, given: Mapping[Any, Any], keys: Sequence[str]) -> None:
    """Check that a dict has no other keys: they would be left out without a word."""
    for key in given:
        if not is_text(key, *keys):
            raise InvalidArgument(
                f"[{place}] {name} has the key {show(key)}, expected {', '.join(keys)}"
            )


def read_format(place: str, given: Any) -> Grammar | None:
    """The form of the content; None: free text.

    Raises:
        InvalidArgument: it is none of the forms that there are.
    """
    if given is None:
        return None
    name = "response_format"
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"[{place}] {name} is {show(given)}, expected {{'type': 'json_object'}}, "
            "{'type': 'json_schema', 'json_schema': {'schema': ...}} or a JSON schema"
        )
    kind = given.get("type")
    if is_text(kind, "text"):
        _check_keys(place, name, given, ("type",))
        return None
    if is_text(kind, "json_object"):
        _check_keys(place, name, given, ("type", "schema"))
        if given.get("schema") is not None:  # llama.cpp's form
            return Grammar("schema", schema_text(place, f"{name}.schema", given["schema"]))
        return Grammar("schema", '{"type": "object"}')
    if is_text(kind, "json_schema"):
        inner = given.get("json_schema", given)
        if not isinstance(inner, Mapping):
            raise InvalidArgument(
                f"[{place}] {name}.json_schema is {show(inner)}, expected {{'schema': ...}}"
            )
        if inner is not given:
            _check_keys(place, name, given, ("type", "json_schema"))
        at = name if inner is given else f"{name}.json_schema"
        _check_keys(place, at, inner, (*FORMAT, *(("type",) if inner is given else ())))
        for key in ("name", "description"):
            if inner.get(key) is not None:
                one_text(place, f"{at}.{key}", inner[key])
        if inner.get("strict") is not None:
            flag(place, f"{at}.strict", inner["strict"])
        if inner.get("schema") is None:
            raise InvalidArgument(f"[{place}] {name}.json_schema.schema is missing")
        return Grammar("schema", schema_text(place, f"{name}.json_schema.schema", inner["schema"]))
    if "type" in given and not all(
        is_text(x, *TYPES) for x in (kind if isinstance(kind, (list, tuple)) else [kind])
    ):
        raise InvalidArgument(
            f"[{place}] {name}.type is {show(kind)}, expected 'text', 'json_object', "
            f"'json_schema', or of a JSON schema one of {', '.join(map(repr, TYPES))}"
        )
    return Grammar("schema", schema_text(place, name, given))


def read_think(place: str, given: Any) -> bool | int | str | None:
    """Whether the model thinks, how much, or for how many tokens.

    Raises:
        InvalidArgument: it is none of these.
    """
    if given is None:
        return None
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    if isinstance(given, str):
        if given not in EFFORTS:
            raise InvalidArgument(f"[{place}] think is {show(given)}, expected {THINK}")
        return given
    try:
        return integer(place, "think", given, 0)
    except InvalidArgument:
        raise InvalidArgument(f"[{place}] think is {show(given)}, expected {THINK}") from None
