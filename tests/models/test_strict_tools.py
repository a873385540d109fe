"""Arguments of functions: free text before a call, calls by their schemas, closed objects.

Not here: calls that must come (test_answers.py), reading calls (test_tools.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aggml.models.chat.asking import read_tools
from aggml.models.chat.tools import FORMATS
from aggml.models.chat.tools.format import JsonFormat
from aggml.models.engine.constraints import Grammars
from aggml.models.engine.grammars import Grammar, close_objects
from aggml.models.small import tokens
from aggml.models.tokenizers import open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

PICK: dict[str, Any] = {
    "name": "pick", "strict": True,
    "parameters": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
                   "required": ["n"]},
}  # fmt: skip
FREE: dict[str, Any] = {"name": "free", "parameters": PICK["parameters"]}
MARKED = [
    x for x in FORMATS if isinstance(x, JsonFormat) and x.begins and x.name != "mistral_args"
]  # of this one the name is no JSON


def spelt(form: JsonFormat, name: str, arguments: Any) -> str:
    """A call as the family writes it."""
    call = json.dumps({form.title: name, form.key: arguments})
    end = form.ends[0] if form.ends else ""
    if form.is_list:
        return f"{form.begins[0]}[{call}]{end}"
    return f"{form.begins[0]}{form.after[0]}{call}{form.after[1]}{end}"


@pytest.fixture(scope="module")
def accepts() -> Callable[[str, str], bool]:
    """Whether a text is a whole answer under a grammar of Lark."""
    pytest.importorskip("llguidance")
    names, kinds = tokens()
    words = open_vocabulary({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": [0.0] * len(names), "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    })  # fmt: skip
    assert words is not None
    grammars = Grammars(words, len(words.pieces))

    def ask(lark: str, text: str) -> bool:
        matcher = grammars._matcher("test", "grammar", Grammar("lark", lark)).deep_copy()
        ids = words.encode(text, special=False, literal=True)
        if words.decode(ids[:1]).strip() == "" and not text.startswith(" "):
            ids = ids[1:]  # the space that begins a text of SentencePiece
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    return ask


@pytest.mark.parametrize("form", MARKED, ids=lambda x: x.name)
def test_a_call_that_the_model_begins_has_the_arguments_of_its_strict_function(
    form: JsonFormat, accepts: Callable[[str, str], bool]
) -> None:
    offer = read_tools("test", [PICK, FREE], "auto")
    assert offer is not None
    lark = form.watching_grammar(offer.callable, json.dumps, several=True)
    assert lark is not None
    good, bad = spelt(form, "pick", {"n": 3}), spelt(form, "pick", {"n": "x"})
    for text in ("Hello!", f"I look.{good}", good, "a < b and <tool is a word", f"{good} done"):
        assert accepts(lark, text), text
    for text in (bad, f"I look.{bad}", spelt(form, "pick", {"n": 10}), spelt(form, "no", {})):
        assert not accepts(lark, text), text
    assert accepts(lark, spelt(form, "free", {"anything": "x"}))
    if not form.is_list:
        assert accepts(lark, f"{good}\n{good}")
        once = form.watching_grammar(offer.callable, json.dumps, several=False)
        assert once is not None
        assert accepts(once, good)


BARE = [x for x in FORMATS if isinstance(x, JsonFormat) and x.bare]


def bare_texts(form: JsonFormat, arguments: Any) -> list[str]:
    """Answers that are a call of `pick` without a mark, as models write them."""
    call = {form.title: "pick", form.key: arguments}
    turned = dict(reversed(call.items()))
    kind = {"type": "function"} | call
    given = json.dumps(arguments)  # the arguments have blanks as `json.dumps` writes them
    one = [
        json.dumps(call), json.dumps(turned), json.dumps(kind),
        f'{{\n  "name": "pick",\n  "{form.key}": {given}\n}}',
        f'{{"name":"pick","arguments":{given}}}',
    ]  # fmt: skip
    lists = [f"[{x}]" for x in one]
    return [*one, *lists, *(f"```json\n{x}\n```" for x in one + lists), f"{one[0]}\nDone.",
            f'{json.dumps({form.title: "free", form.key: {"x": 1}})}, {one[0]}',
            f"[{one[0]}, {one[1]}]", f"{one[0]}; {one[0]}"]  # fmt: skip


@pytest.mark.parametrize("form", BARE, ids=lambda x: x.name)
def test_a_call_without_a_mark_has_the_arguments_of_its_strict_function(
    form: JsonFormat, accepts: Callable[[str, str], bool]
) -> None:
    offer = read_tools("test", [PICK, FREE], "auto")
    assert offer is not None
    lark = form.watching_grammar(offer.callable, json.dumps, several=True)
    assert lark is not None
    for text in bare_texts(form, {"n": 3}):
        assert accepts(lark, text), text
    for text in bare_texts(form, {"n": "x"}) + bare_texts(form, {}):
        assert not accepts(lark, text), text
    for text in ("Hello!", '{"name": "Bob", "age": 3}', "[1, 2]", '```json\n{"a": 1}\n```\nDone.'):
        assert accepts(lark, text), text
    once = form.watching_grammar(offer.callable, json.dumps, several=False)
    assert once is not None
    good, *_, two = bare_texts(form, {"n": 3})
    assert accepts(once, good)
    assert not accepts(once, two)


def test_objects_of_arguments_have_the_properties_that_are_named() -> None:
    inner = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    shut = inner | {"additionalProperties": False}
    assert close_objects(inner) == shut
    assert close_objects({"type": "object", "properties": {}})["additionalProperties"] is False
    nested = {"type": "object", "properties": {"x": {"type": "array", "items": inner}},
              "$defs": {"D": inner}}  # fmt: skip
    found = close_objects(nested)
    assert found["properties"]["x"]["items"] == found["$defs"]["D"] == shut


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"$ref": "#/$defs/A", "properties": {"b": {}}, "$defs": {"A": {"properties": {"a": {}}}}},
        {"properties": {"properties": {"const": {"properties": {}}}}, "additionalProperties": True},
    ],
)
def test_schemas_that_say_what_else_there_may_be_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert close_objects(schema) == schema
