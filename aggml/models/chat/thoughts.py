"""Thoughts: how models of a family show that they think before they answer.

Not here: dividing an answer (reading.py), ending thoughts after some tokens (../engine).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Thoughts", "thoughts_of", "wishes"]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The texts around thoughts.

    Attributes:
        name: as `TextModel.think_format` tells it.
        opener, closer: the texts.
        sign: the template has it.
    """

    name: str
    opener: str
    closer: str
    sign: str

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends within thoughts."""
        return prompt.rstrip().endswith(self.opener.rstrip())


#: Of gpt-oss thoughts are messages of their own (tools/harmony.py).
HARMONY: Final = Thoughts(
    "harmony", "<|channel|>analysis<|message|>", "<|end|>", "<|channel|>"
)  # fmt: skip
FAMILIES: Final = (
    HARMONY,
    Thoughts("mistral", "[THINK]", "[/THINK]", "[THINK]"),
    Thoughts("command", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_THINKING|>"),
    Thoughts("seed_oss", "<seed:think>", "</seed:think>", "<seed:think>"),
    Thoughts("gemma4", "<|channel>thought\n", "<channel|>", "<|channel>"),
    Thoughts("exaone", "<thought>", "</thought>", "<thought>"),
    Thoughts("think", "<think>", "</think>", "think>"),
    Thoughts(
        "granite", "Here is my thought process:", "Here is my response:",
        "Here is my thought process:",
    ),
)  # fmt: skip
_THINKING: Final = re.compile(r"\bthinking\b")


def thoughts_of(template: str) -> Thoughts | None:
    """How the model of a template shows its thoughts; None: it has none, as far as is known."""
    return next((x for x in FAMILIES if x.sign in template), None)


def wishes(template: str, think: bool | int | str | None) -> Mapping[str, Any]:
    """The names by which a template is told whether and how much the model thinks."""
    if think is None:
        return {}
    found: dict[str, Any] = {}
    on = think is not False
    if "enable_thinking" in template:
        found["enable_thinking"] = on
    elif _THINKING.search(template):
        found["thinking"] = on
    if "reasoning_effort" in template:
        if isinstance(think, str):
            found["reasoning_effort"] = think
        elif not on:
            quoted = re.search("""["']none["']""", template)
            found["reasoning_effort"] = "none" if quoted else "low"
    if "thinking_budget" in template and not isinstance(think, (bool, str)):
        found["thinking_budget"] = think
    return found
