"""Templates whose code fails or takes too much: one error with the reason, and the next one works.

Not here: what right templates write (test_templates.py), the service (tests/serve).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from models import templates

from aggml.models import ModelError
from aggml.models.chat import sandbox
from aggml.models.chat.template import ChatTemplate, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": "x " * 20},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {"a": [1]}}}]},
]
MANY = "range(100000)"

FAILS: Final = {
    "{{ messages + 1 }}": "TypeError",
    "{{ 'a' + 1 }}": "TypeError",
    "{{ messages[0].content / 2 }}": "TypeError",
    "{{ 1 / 0 }}": "ZeroDivisionError: division by zero",
    "{{ 1 // 0 }}": "ZeroDivisionError",
    "{{ 1 % 0 }}": "ZeroDivisionError",
    "{% for x in 5 %}{% endfor %}": "TypeError",
    "{{ messages[0].content.nothing() }}": "no attribute 'nothing'",
    "{{ nothing.at.all }}": "'nothing' is undefined",
    "{{ messages[5].content }}": "no element 5",
    "{{ 'x'.index('y') }}": "ValueError: substring not found",
    "{{ messages | sum }}": "TypeError",
    "{{ messages | sort }}": "TypeError",
    "{{ [1, 'a'] | sort }}": "TypeError",
    "{{ 'a' | center('b') }}": "TypeError",
    "{{ strftime_now(5) }}": "TypeError",
    "{{ '{} {}'.format(1) }}": "IndexError",
    "{{ '%d' % 'a' }}": "TypeError",
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ raise_exception() }}": "TypeError",
    "{{ raise_exception('a' * 100000) }}": "aaa",
    "{{ messages | tojson(indent='a', separators=1) }}": "TypeError",
    "{{ strftime_now | tojson }}": "TypeError",
    "{{ 10.0 ** 400 }}": "OverflowError",
    "{{ '\\ud800' }}": "no Unicode text",
    "{% include 'other' %}": "",
    "{{ range(1000000000) }}": "OverflowError",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "calls itself too often",
    "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}": "calls itself too often",
}
ENDLESS: Final = {
    f"{{% for i in {MANY} %}}{{% for j in {MANY} %}}{{% endfor %}}{{% endfor %}}": "0.05 seconds",
    f"{{% for i in {MANY} %}}{{% for j in {MANY} %}}x{{% endfor %}}{{% endfor %}}": "",
    f"{{% for i in {MANY} %}}{{{{ {MANY} | list | length }}}}{{% endfor %}}": "",
    f"{{% for i in {MANY} if {MANY} | sum < 0 %}}{{% endfor %}}": "",
    f"{{% for i in {MANY} %}}{{{{ {MANY} | map('string') | join }}}}{{% endfor %}}": "",
    f"{{% for i in {MANY} %}}{{% if 'a' in ({MANY} | list) %}}{{% endif %}}{{% endfor %}}": "",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}":
        "0.05 seconds",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}x{% endif %}{% endmacro %}"
    "{{ m(60) }}": "",
}  # fmt: skip
LOOP = "{% set ns = namespace(x=START) %}{% for i in range(99) %}{% set ns.x = NEXT %}{% endfor %}"


def grows(start: str, following: str, end: str = "{{ ns.x }}") -> str:
    """A template whose value becomes larger 99 times."""
    return LOOP.replace("START", start).replace("NEXT", following) + end


LARGE: Final = {
    "{{ 'x' * 1000000000 }}": "at most",
    "{{ 1000000000 * 'x' }}": "at most",
    "{{ [0] * 1000000000 }}": "at most",
    "{{ 'x' | center(1000000000) }}": "at most",
    "{{ 'x'.center(1000000000) }}": "at most",
    "{{ 'x'.ljust(width) }}": "",
    "{{ 'x'.rjust(1000000000) }}": "at most",
    "{{ 'x'.zfill(1000000000) }}": "at most",
    "{{ '\\t\\t'.expandtabs(1000000000) }}": "at most",
    "{{ 'x\\nx' | indent(1000000000) }}": "at most",
    "{{ 'x\\nx' | indent('xx' * 8000000) }}": "at most",
    "{{ '%1000000000d' % 1 }}": "at most",
    "{{ '%*d' % (1000000000, 1) }}": "at most",
    "{{ '{:1000000000}'.format(1) }}": "at most",
    "{{ '{:{}}'.format(1, 1000000000) }}": "at most",
    "{{ '%1000000000d' | format(1) }}": "at most",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}": "at most",
    "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}": "at most",
    "{{ ('x' * 1000000).join(['a'] * 1000000) }}": "",
    "{{ (['a'] * 1000000) | join('x' * 1000000) }}": "",
    "{{ (['a' * 1000000] * 1000000) | join }}": "",
    "{{ ('x' * 1000000).join(['a'] * 1000) }}": "at most",
    "{{ (['a'] * 1000) | join('x' * 1000000) }}": "at most",
    "{{ ('x' * 1000000).translate({120: 'y' * 1000000}) }}": "at most",
    "{{ [1] | batch(1000000000, 0) | list }}": "at most",
    "{{ messages | tojson(indent=1000000000) }}": "at most",
    "{{ messages | tojson(indent=10000000) }}": "at most",
    "{{ (1).to_bytes(1000000000, 'big') }}": "at most",
    "{{ 2 ** 1000000000 }}": "bits",
    "{{ 9 ** (9 ** 9) }}": "bits",
    "{{ lipsum(n=1000000) }}": "undefined",
    grows("'x'", "ns.x ~ ns.x"): "at most",
    grows("'x'", "ns.x + ns.x"): "at most",
    grows("'x'", "ns.x * 2"): "at most",
    grows("'x'", "[ns.x, ns.x] | join"): "at most",
    grows("'x'", "ns.x.join([ns.x, ns.x])"): "at most",
    grows("'x'", "ns.x.replace('x', 'xx')"): "at most",
    grows("[0]", "ns.x + ns.x"): "at most",
    grows("[0]", "[ns.x, ns.x]"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ ns.x | string }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ ns.x | pprint }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ ns.x ~ '' }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ '%s' % (ns.x,) }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ '{}'.format(ns.x) }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{{ [ns.x] | join }}"): "",
    grows("[0]", "[ns.x, ns.x]", "{% if ns.x == [] %}{% endif %}"): "",
    grows("[0]", "{'a': ns.x, 'b': ns.x}"): "",
    grows("3", "ns.x * ns.x"): "bits",
    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}": "too deeply",
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% set ns.x = y %}{% endfor %}{{ ns.x }}": "at most",
}  # fmt: skip


@pytest.fixture(autouse=True)
def impatience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less time for templates than users have, so that the tests need less.

    What is refused for its size gets a minute: a slow machine must not run into the time first.
    What never ends runs into any time.
    """
    spec = getattr(request.node, "callspec", None)
    source = spec.params.get("source") if spec is not None else None
    seconds = 60.0 if source in LARGE else 0.05 if source in ENDLESS else 0.2
    monkeypatch.setattr(sandbox, "SECONDS", seconds)


def error_of(template: ChatTemplate) -> str:
    with pytest.raises(ModelError) as caught:
        template.render(MESSAGES)
    return str(caught.value)


@pytest.mark.long(cases=14)
@pytest.mark.parametrize("source", [*FAILS, *ENDLESS, *LARGE])
def test_a_template_that_fails_is_one_error_with_the_reason(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(source, {})
    text = error_of(template)
    if source not in LARGE:  # these take 0.1 to 0.3 s each
        assert error_of(template) == text
    assert text.startswith("the chat template refuses the messages: ")
    assert (FAILS | ENDLESS | LARGE)[source] in text
    assert len(text) < 600
    assert "\n" not in text
    monkeypatch.setattr(sandbox, "SECONDS", 60.0)
    again = ChatTemplate("{{ messages[0].content | trim }}", {}).render(MESSAGES)
    assert again == MESSAGES[0]["content"].strip()


@pytest.mark.parametrize(
    "source",
    ["{{", "{% for %}", "{% if x %}", "{{ 'a' | nothing }}", "{{ " + "(" * 2000 + ")" * 2000 + "}}",
     "{{ " + "-" * 5000 + "1 }}", "{% " + "if x %}{% " * 3000, "{{ 1__ }}", "{% macro %}",
     "{{ x is nothing }}", "{% break %}"],
)  # fmt: skip
def test_a_template_that_cannot_be_read_says_so(source: str) -> None:
    with pytest.raises(ModelError, match=r"the chat template (cannot be read|refuses)"):
        ChatTemplate(source, {}).render(MESSAGES)


PARTS: Final = (
    "messages", "messages[0]", "messages[0].content", "'x'", "3", "0", "1000000000", "none",
    "[1, 'a', none]", "{'a': [1]}", "ns", "ns.x", "nothing", "range(100000)", "2.5", "true",
)  # fmt: skip


def expression(source: random.Random, filters: list[str], depth: int = 0) -> str:
    """A random expression: any operator, filter, method or test on any values."""

    def more() -> str:
        return expression(source, filters, depth + 1)

    kinds: list[Callable[[], str]] = [
        lambda: source.choice(PARTS),
        lambda: f"({more()} {source.choice(['+', '-', '*', '**', '%', '/', '//', '~'])} {more()})",
        lambda: f"({more()} {source.choice(['==', '<', 'in', '!=', 'and', 'or'])} {more()})",
        lambda: f"({more()} | {source.choice(filters)})",
        lambda: f"({more()} | {source.choice(filters)}({more()}))",
        lambda: f"({more()} | {source.choice(filters)}({more()}, {more()}))",
        lambda: f"({more()} | map('{source.choice(filters)}') | list)",
        lambda: f"{more()}.{source.choice(METHODS)}({more()})",
        lambda: f"{more()}.{source.choice(METHODS)}({more()}, {more()})",
        lambda: f"{more()}[{more()}]",
        lambda: f"[{more()}, {more()}]",
    ]
    return source.choice(kinds if depth < 3 else kinds[:1])()


VALUES: Final[tuple[object, ...]] = ("", 1, [], {}, ())
METHODS: Final = sorted({name for x in VALUES for name in dir(x) if not name.startswith("_")})


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(i, marks=pytest.mark.slow) for i in range(12, 40))]
)
def test_a_random_template_writes_a_text_or_is_one_error(seed: int) -> None:
    source = random.Random(seed)
    filters = sorted(ChatTemplate("", {}).environment.filters)
    for _ in range(25):
        inner = f"{{% set ns.x = {expression(source, filters)} %}}{{{{ ns.x }}}}"
        text = "{% set ns = namespace(x=1) %}{% for i in range(" + source.choice("139") + ") %}"
        text += inner + "{% endfor %}"
        try:
            found = ChatTemplate(text, {}).render(MESSAGES)
        except ModelError as error:
            found = str(error)
            assert found.startswith("the chat template "), text
        assert len(found.encode()) <= 4 * sandbox.LARGEST


@pytest.mark.parametrize("name", templates.TEMPLATES)
def test_long_conversations_are_no_more_than_allowed(name: str) -> None:
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": f"{i} " * 200} for i in range(1001)
    ]
    text = ChatTemplate(templates.TEMPLATES[name], templates.TOKENS).render(messages)
    assert all(f"{i} {i}" in text for i in (0, 500, 1000)) or name == "filters"


# -- several templates

NAMED: Final = {"default": "d", "tool_use": "t", "rag": "r"}


def test_conversations_with_tools_take_the_template_for_tools() -> None:
    template = ChatTemplate(NAMED, {})
    assert template.names == ("default", "tool_use", "rag")
    assert template.source == "d"
    assert template.render([]) == "d"
    assert template.render([], tools=[]) == "t"
    assert template.render([], tools=None) == "d"
    del (one := dict(NAMED))["tool_use"]
    assert ChatTemplate(one, {}).render([], tools=[{}]) == "d"


def test_a_model_without_a_default_template_has_one_template_or_an_error() -> None:
    assert ChatTemplate({"rag": "r"}, {}).render([]) == "r"
    with pytest.raises(ModelError, match="'rag', 'other', and none of them is called 'default'"):
        ChatTemplate({"rag": "r", "other": "o"}, {}).render([])
    with pytest.raises(ModelError, match="the chat template 'rag' cannot be read"):
        ChatTemplate({"default": "d", "rag": "{{"}, {})


def test_templates_are_found_by_the_keys_of_gguf() -> None:
    key = "tokenizer.chat_template"
    assert sources_of({}) is None
    assert sources_of({key: "d", f"{key}.rag": "r", "tokenizer.chat_templates": ["rag"]}) == {
        "default": "d",
        "rag": "r",
    }
    assert sources_of({f"{key}.tool_use": "t"}) == {"tool_use": "t"}
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template is int 5, must be a text"):
        sources_of({key: 5})
