"""AnswerReader: the text of an answer, while it comes, becomes thoughts, content and calls.

What it gives depends on the text alone, not on how it is divided into pieces. A text that may be
the beginning of a mark is held back. Not here: the marks of a family (tools/, thoughts.py).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aggml.models.chat.messages import ChatDelta, ToolCall, ToolCallDelta
from aggml.models.chat.tools.harmony import CHANNEL, ENDS, MESSAGE, START, Harmony

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.chat.asking import Tool
    from aggml.models.chat.thoughts import Thoughts
    from aggml.models.chat.tools.format import ToolFormat
    from aggml.models.chat.tools.json_text import Section

__all__ = ["AnswerReader"]

#: Characters of arguments from which on they are given as they come. Calls that are shorter are
#: given when they are complete; so a call that cannot be read seldom was given in part.
LONG: Final = 100
#: Calls that are longer are not read at each character, but each time that they have grown by this
#: share: else a call of 28,000 characters takes half a minute.
OFTEN: Final = 512
GROWTH: Final = 64


def _next_read(length: int) -> int:
    """The length at which a call is read again; it depends on the text alone."""
    return length + 1 if length < OFTEN else length + length // GROWTH


@dataclass(slots=True)
class _Pieces:
    """Pieces of an answer in order; neighbours of one kind are one."""

    found: list[ChatDelta] = field(default_factory=list)

    def add(
        self, content: str = "", reasoning: str = "", calls: Sequence[ToolCallDelta] = ()
    ) -> None:
        """Add one of the three."""
        if content and self.found and self.found[-1].content:
            self.found[-1] = ChatDelta(self.found[-1].content + content)
        elif content:
            self.found.append(ChatDelta(content))
        if reasoning and self.found and self.found[-1].reasoning:
            self.found[-1] = ChatDelta(reasoning=self.found[-1].reasoning + reasoning)
        elif reasoning:
            self.found.append(ChatDelta(reasoning=reasoning))
        if calls:
            if self.found and self.found[-1].tool_calls:
                calls = [*self.found.pop().tool_calls, *calls]
            self.found.append(ChatDelta(tool_calls=list(calls)))


class _Calls:
    """The calls of an answer: which of their characters were given.

    Attributes:
        complete: the calls that are.
    """

    def __init__(self, tools: Mapping[str, Tool], *, several: bool) -> None:
        self.tools = tools
        self._several = several
        self._begun: list[tuple[str, int]] = []  # of this section: id, characters given
        self._ended = 0  # of this section
        self._index = 0  # of the first call of this section
        self.complete: list[ToolCall] = []

    def take(self, section: Section, to: _Pieces) -> bool:
        """Give what is new of a section; whether it has calls of known functions alone."""
        for i, call in enumerate(section.calls):
            name = call.name if call.name in self.tools else call.name.removeprefix("functions.")
            if name not in self.tools:
                return False
            if i < self._ended or (not self._several and (self.complete or i)):
                continue
            if not call.complete and len(call.text) < LONG:
                return True
            index = self._index + i
            if i == len(self._begun):
                self._begun.append(("call_" + secrets.token_hex(12), 0))
                to.add(calls=[ToolCallDelta(index, self._begun[i][0], name, "")])
            known, given = self._begun[i]
            text = call.text if call.complete else call.text[: len(call.text) - 1]
            if len(text) > given:
                to.add(calls=[ToolCallDelta(index, None, None, text[given:])])
                self._begun[i] = known, len(text)
            if call.complete:
                try:
                    arguments = json.loads(call.text)
                except ValueError:  # a number of thousands of digits
                    return False
                self._ended += 1
                self.complete.append(ToolCall(known, name, arguments, call.text))
        return True

    @property
    def has_given(self) -> bool:
        """Whether something of this section was given."""
        return bool(self._begun)

    def close(self) -> None:
        """Note the end of a section."""
        self._index += len(self._begun)
        self._begun, self._ended = [], 0


class _ToolReader:
    """Content and calls.

    Args:
        form: how calls are written.
        calls: what becomes of them.
    """

    def __init__(self, form: ToolFormat, calls: _Calls) -> None:
        self._form = form
        self._calls = calls
        self._held = ""
        self._inside = False
        self._at_begin = True  # only white space has come
        self._after_call = False
        self._mark = 0  # characters of the mark with which calls began
        self._next = 0  # the length at which they are read again
        self._blanks = ""  # before that mark: no part of the content, unless these are no calls

    def feed(self, text: str, to: _Pieces, *, final: bool = False) -> None:
        """Read more text; with ``final`` nothing comes after it."""
        at = 0
        while True:
            if self._inside:
                # At lengths of its own, so that it is noted at the same place in any division.
                over = final and at >= len(text)
                if over or len(self._held) >= self._next:
                    if self._read(to, final=over):
                        continue
                    self._next = _next_read(len(self._held))
                if at >= len(text):
                    return
                more = self._next - len(self._held)
                self._held += text[at : at + more]
                at += more
                continue
            self._held += text[at:]
            at = len(text)
            if not self._look(to, final=final):
                return
            if self._inside:  # go on after the mark
                mark = self._mark
                self._next = 0
                text, self._held, at = self._held[mark:], self._held[:mark], 0

    def _look(self, to: _Pieces, *, final: bool) -> bool:
        """Outside calls: give the text before the first mark; whether there is one."""
        held = self._held.lstrip() if self._after_call else self._held
        if self._at_begin and self._form.bare:
            stripped = held.lstrip()
            for mark in self._form.bare:
                if stripped.startswith(mark):
                    self._blanks = held[: len(held) - len(stripped)]
                    self._held, self._inside, self._mark = stripped, True, len(mark)
                    return True
            if not final and any(x.startswith(stripped) for x in self._form.bare):
                return False
        first, mark = _first_of(held, self._form.begins)
        if first >= 0:
            before = held[:first].rstrip()
            self._blanks = held[len(before) : first]
            self._give(before, to)
            self._held, self._inside, self._mark = held[first:], True, len(mark)
            return True
        keep = 0 if final else _may_begin(held, self._form.begins)
        certain = held[: len(held) - keep]
        if not final:  # blanks before a mark do not belong to the content
            certain = certain.rstrip()
        self._give(certain, to)
        self._held = held[len(certain) :]
        return False

    def _give(self, text: str, to: _Pieces) -> None:
        if text:
            self._after_call = False
            self._at_begin = self._at_begin and not text.strip()
            to.add(text)

    def _read(self, to: _Pieces, *, final: bool) -> bool:
        """Inside calls: read on; whether they have ended."""
        section = self._form.read(self._held, self._calls.tools, final=final)
        good = not section.is_bad and self._calls.take(section, to)
        if good and section.end is None and not (final and section.calls):
            return False
        if good and section.end is None:
            good = False
        if good:
            end = section.end or 0
            rest = self._held[end:]
            self._after_call = bool(section.calls)
        elif self._calls.has_given:
            self._give(self._blanks + self._held, to)
            rest = ""
        else:
            self._give(self._blanks + self._held[: self._mark], to)
            rest = self._held[self._mark :]
        self._at_begin = False
        self._calls.close()
        self._held, self._inside = rest, False
        return True


def _first_of(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of some marks stands, and which; -1: none does."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return -1, ""
    at, _, mark = min(found)
    return at, mark


def _may_begin(text: str, marks: Sequence[str]) -> int:
    """How many last characters may be the beginning of a mark."""
    most = max(map(len, marks), default=1) - 1
    for n in range(min(most, len(text)), 0, -1):
        end = text[len(text) - n :]
        if any(mark.startswith(end) for mark in marks):
            return n
    return 0


class _HarmonyReader:
    """The messages of gpt-oss: analysis is thought, calls have a recipient, the rest is content."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._form = Harmony()
        self._header: str | None = ""  # None: within a message
        self._kind = "content"
        self._held = ""
        self._head = ""
        self._next = 0  # the length at which a call is read again

    def feed(self, text: str, to: _Pieces, *, final: bool = False) -> None:
        """Read more text."""
        if self._kind == "call" and self._header is None and len(text) > 1:
            for sign in text[:-1]:
                self.feed(sign, to)
            text = text[-1:]
        self._held += text
        while self._step(to, final=final):
            pass

    def _step(self, to: _Pieces, *, final: bool) -> bool:
        if self._header is not None:
            if self._held and not _looks_like_header(self._held):
                self._kind, self._header = "content", None
                return True
            at = self._held.find(MESSAGE)
            if at < 0:
                if final and self._held:
                    plain = self._held
                    for mark in (START, CHANNEL, *ENDS):
                        plain = plain.replace(mark, "")
                    if plain == self._held:  # no header at all
                        to.add(plain)
                    self._held = ""
                return False
            header, self._held = self._held[:at], self._held[at + len(MESSAGE) :]
            self._head = header + MESSAGE
            self._kind = "content"
            if "to=" in header and self._calls.tools:
                self._kind, self._next = "call", 0
            elif f"{CHANNEL}analysis" in header:
                self._kind = "reasoning"
            self._header = None
            if self._kind == "call" and len(self._held) > 1:
                rest, self._held = self._held, ""
                self.feed(rest, to, final=final)
                return False
            return True
        at, mark = _first_of(self._held, (*ENDS, START))
        if self._kind == "call":
            return self._read_call(to, at, mark, final=final)
        if at >= 0:
            self._give(self._held[:at], to)
            self._held = self._held[at + len(mark) :]
            self._header = ""
            return True
        keep = 0 if final else _may_begin(self._held, (*ENDS, START))
        certain = self._held[: len(self._held) - keep]
        self._give(certain, to)
        self._held = self._held[len(certain) :]
        return False

    def _give(self, text: str, to: _Pieces) -> None:
        if self._kind == "reasoning":
            to.add(reasoning=text)
        else:
            to.add(text)

    def _read_call(self, to: _Pieces, at: int, mark: str, *, final: bool) -> bool:
        over = final or at >= 0
        if not over and len(self._held) < self._next:
            return False
        self._next = _next_read(len(self._held))
        body = self._held if at < 0 else self._held[:at]
        section = self._form.read(self._head + body, self._calls.tools, final=over)
        good = not section.is_bad and self._calls.take(section, to)
        if good and section.end is None and not over:
            return False
        if not good or section.end is None:
            if not over:
                return False  # the whole of it is told when the message ends
            to.add(body)
        elif not over:
            return False
        self._calls.close()
        self._held = "" if at < 0 else self._held[at + len(mark) :]
        self._header, self._kind = "", "content"
        return bool(self._held)


def _looks_like_header(text: str) -> bool:
    """Whether a text may be the beginning of a message's header."""
    marks = (CHANNEL, START, MESSAGE, " to=", "assistant", *ENDS)
    return any(text.startswith(x) or x.startswith(text) for x in marks)


class _ThoughtReader:
    """Thoughts at the beginning of an answer, between two marks."""

    def __init__(self, about: Thoughts, *, is_open: bool) -> None:
        self._about = about
        self._state = "thinking" if is_open else "begin"
        self._held = ""
        self._first = True

    def feed(self, text: str, to: _Pieces, *, final: bool = False) -> str:
        """Read more text; returns what comes after the thoughts."""
        if self._state == "over":
            return text
        self._held += text
        if self._state == "begin":
            stripped = self._held.lstrip()
            opener = self._about.opener
            if stripped.startswith(opener):
                self._state, self._held = "thinking", stripped[len(opener) :]
            elif opener.startswith(stripped) and not final:
                return ""
            else:
                self._state = "over"
                rest, self._held = self._held, ""
                return rest
        if self._state == "after":
            rest = self._held.lstrip()
            self._held = ""
            if rest:
                self._state = "over"
            return rest
        closer = self._about.closer
        at = self._held.find(closer)
        if at >= 0:
            self._think(self._held[:at].rstrip(), to)
            self._state, self._held = "after", self._held[at + len(closer) :]
            return self.feed("", to, final=final)
        keep = 0 if final else _may_begin(self._held, (closer,))
        certain = self._held[: len(self._held) - keep].rstrip()
        self._think(certain, to)
        self._held = "" if final else self._held[len(certain) :]
        return ""

    def _think(self, text: str, to: _Pieces) -> None:
        if self._first:
            left = text.lstrip()
            if not left:
                return
            text, self._first = left, False
        to.add(reasoning=text)


class AnswerReader:
    """Divides the text of an answer.

    Args:
        thoughts: how the model shows that it thinks; None: it does not.
        is_open: the prompt ends within thoughts.
        form: how it writes calls; None: it was told of no tools.
        tools: that it may call, by name.
        several: whether there may be several calls.
        lead: text of the answer that the prompt has already.

    Attributes:
        calls: those that are complete.
    """

    def __init__(
        self,
        thoughts: Thoughts | None,
        form: ToolFormat | None,
        tools: Mapping[str, Tool],
        *,
        is_open: bool = False,
        several: bool = True,
        lead: str = "",
    ) -> None:
        self._calls = _Calls(tools, several=several)
        self._harmony = None
        self._thoughts = None
        self._tools = None
        if isinstance(form, Harmony) or (thoughts is not None and thoughts.name == "harmony"):
            self._harmony = _HarmonyReader(self._calls)
        else:
            if thoughts is not None:
                self._thoughts = _ThoughtReader(thoughts, is_open=is_open)
            if form is not None and tools:
                self._tools = _ToolReader(form, self._calls)
        if lead:
            self._read(lead, _Pieces(), final=False)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        return self._calls.complete

    def feed(self, text: str) -> list[ChatDelta]:
        """Read more text; returns what is certain now."""
        found = _Pieces()
        self._read(text, found, final=False)
        return found.found

    def end(self) -> list[ChatDelta]:
        """The rest: no more text comes."""
        found = _Pieces()
        self._read("", found, final=True)
        return found.found

    def _read(self, text: str, to: _Pieces, *, final: bool) -> None:
        if self._harmony is not None:
            self._harmony.feed(text, to, final=final)
            return
        if self._thoughts is not None:
            text = self._thoughts.feed(text, to, final=final)
        if self._tools is not None:
            self._tools.feed(text, to, final=final)
        else:
            to.add(text)
