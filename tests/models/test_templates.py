"""Chat templates give the texts of transformers, and cannot run anything else.

Its texts were recorded (templates.json, made by benchmarks/make_templates.py). Not here: the
templates of trained models (test_trained.py).
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from models import templates
from models.transcripts import TOOLS

from aggml.models import ModelError
from aggml.models.chat.asking import read_tools
from aggml.models.chat.reading import AnswerReader
from aggml.models.chat.template import ChatTemplate
from aggml.models.chat.thoughts import thoughts_of, wishes
from aggml.models.chat.tools import format_of

RECORDED: Final[dict[str, str | None]] = json.loads(
    Path(__file__).with_name("templates.json").read_text(encoding="ascii")
)


@pytest.mark.long(cases=20)
@pytest.mark.parametrize("name", templates.TEMPLATES)
@pytest.mark.parametrize("case", templates.CONVERSATIONS)
def test_texts_are_those_of_transformers(name: str, case: str) -> None:
    template = ChatTemplate(templates.TEMPLATES[name], templates.TOKENS)
    wanted = RECORDED[f"{name} {case}"]
    given = dict(templates.CONVERSATIONS[case])
    messages = given.pop("messages")
    if wanted is None:
        with pytest.raises(ModelError, match="refuses the messages"):
            template.render(messages, **given)
    else:
        assert template.render(messages, **given) == wanted


def test_every_text_was_recorded_and_some_are_refused() -> None:
    assert len(RECORDED) == len(templates.TEMPLATES) * len(templates.CONVERSATIONS)
    assert 2 <= sum(text is None for text in RECORDED.values()) < len(RECORDED) // 4


def test_the_time_is_that_of_the_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {})
    before = datetime.now().astimezone()
    text = template.render([])
    days = (before, datetime.now().astimezone())  # the test may run across midnight
    assert text in {day.strftime("%d %b %Y") for day in days}


@pytest.mark.parametrize("name", templates.FAMILIES)
def test_a_template_tells_how_its_family_calls_and_thinks(name: str) -> None:
    form, thoughts = format_of(templates.TEMPLATES[name]), thoughts_of(templates.TEMPLATES[name])
    wanted = templates.FAMILIES[name][:2]
    assert (form and form.name, thoughts and thoughts.name) == wanted


@pytest.mark.parametrize("name", [x for x, (form, *_) in templates.FAMILIES.items() if form])
def test_what_a_template_writes_of_an_answer_is_read_as_that_answer(name: str) -> None:
    """The answer as the model would have written it: behind its prompt, up to its end."""
    template = ChatTemplate(templates.TEMPLATES[name], templates.TOKENS)
    offer = read_tools("test", TOOLS, "auto")
    assert offer is not None
    question = {"role": "user", "content": "How is it in Zürich?"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("weather", {"city": 'Zürich "a\\b" 日本', "days": 3, "exact": True}), ("now", {}),
    ]  # fmt: skip
    answer = {"role": "assistant", "content": "I look: 2 < 3.", "tool_calls": [
        {"type": "function", "id": f"c{i}", "function": {"name": called, "arguments": given}}
        for i, (called, given) in enumerate(calls)
    ]}  # fmt: skip
    given = {"tools": TOOLS, "enable_thinking": False}
    prompt = template.render([question], add_generation_prompt=True, **given)
    whole = template.render([question, answer], add_generation_prompt=False, **given)
    _, _, end = templates.FAMILIES[name]
    assert whole.startswith(prompt)
    assert whole.endswith(end)
    text = whole[len(prompt) :].removesuffix(end)
    form = format_of(template.source)
    lead = getattr(form, "leads", "")
    for pieces in ([text], text):
        reader = AnswerReader(
            thoughts_of(template.source), form, {x.name: x for x in offer.tools}, is_open=False,
            several=True, lead=lead if lead and prompt.endswith(lead) else "",
        )  # fmt: skip
        deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.end()
        assert "".join(x.content for x in deltas).strip() == answer["content"]
        assert [(x.name, x.arguments) for x in reader.calls] == calls


@pytest.mark.parametrize(
    ("name", "think", "ends"),
    [
        ("laguna", True, "<assistant>\n<think>"), ("laguna", False, "<assistant>\n</think>"),
        ("mistral4", "high", '{"reasoning_effort": "high"}[/MODEL_SETTINGS][INST]Hi[/INST]'),
        ("mistral4", False, '{"reasoning_effort": "none"}[/MODEL_SETTINGS][INST]Hi[/INST]'),
    ],
)  # fmt: skip
def test_a_template_is_told_whether_the_model_thinks(
    name: str, think: bool | str, ends: str
) -> None:
    template = ChatTemplate(templates.TEMPLATES[name], templates.TOKENS)
    told = wishes(template.source, think)
    messages = [{"role": "user", "content": "Hi"}]
    text = template.render(messages, add_generation_prompt=True, **told)
    assert text.endswith(ends)
    thoughts = thoughts_of(template.source)
    assert thoughts is not None
    assert thoughts.is_open(text) is ends.endswith("<think>")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(ModelError, match="refuses the messages"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
