"""Chat templates give the texts of transformers, and cannot run anything else.

Its texts were recorded (templates.json, made by benchmarks/make_templates.py). Not here: the
templates of trained models (test_trained.py).
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest
from models import templates

from aggml.models import ModelError
from aggml.models.chat.template import ChatTemplate

RECORDED: Final[dict[str, str | None]] = json.loads(
    Path(__file__).with_name("templates.json").read_text(encoding="ascii")
)


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
