"""Calls in answers: read in every family's format, in every division of the text; asked of models.

Not here: schemas and grammars alone (test_constraints.py), messages (test_chat.py).
"""

from __future__ import annotations

import json
import random
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from models.tool_writers import WRITERS
from models.transcripts import TOOLS, TRANSCRIPTS, Transcript, long_ones

from aggml.models.chat.asking import read_tools
from aggml.models.chat.reading import AnswerReader
from aggml.models.chat.thoughts import FAMILIES
from aggml.models.chat.tools import FORMATS, format_called

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml.models import ChatDelta

EVERY = TRANSCRIPTS | long_ones()


def reader_of(one: Transcript, *, several: bool = True) -> AnswerReader:
    offer = read_tools("test", TOOLS, "auto")
    assert offer is not None
    thoughts = next((x for x in FAMILIES if x.name == one.thoughts), None)
    return AnswerReader(
        thoughts, format_called(one.form), {x.name: x for x in offer.tools}, is_open=one.is_open,
        several=several,
    )  # fmt: skip


def read(one: Transcript, pieces: Iterable[str]) -> tuple[list[ChatDelta], AnswerReader]:
    reader = reader_of(one)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    return deltas + reader.end(), reader


def meaning(
    deltas: list[ChatDelta],
) -> tuple[str, str, list[tuple[str, str]], list[tuple[int, str]]]:
    """Content, thoughts, and names with joined arguments by index; what the first pieces had."""
    calls: dict[int, list[str]] = {}
    first = []
    for delta in deltas:
        for piece in delta.tool_calls:
            if piece.index not in calls:
                assert piece.id is not None
                assert len(piece.id) == len("call_") + 24
                assert piece.name
                assert piece.index == len(calls)
                calls[piece.index] = [piece.name, piece.arguments]
                first.append((piece.index, piece.name))
            else:
                assert piece.id is None
                assert piece.name is None
                calls[piece.index][1] += piece.arguments
    return (
        "".join(x.content for x in deltas), "".join(x.reasoning or "" for x in deltas),
        [(a, b) for a, b in calls.values()], first,
    )  # fmt: skip


def check(one: Transcript, pieces: Iterable[str]) -> None:
    deltas, reader = read(one, pieces)
    content, reasoning, calls, _ = meaning(deltas)
    assert [(name, json.loads(text)) for name, text in calls] == one.calls
    assert [(x.name, x.arguments) for x in reader.calls] == one.calls
    assert [x.text for x in reader.calls] == [text for _, text in calls]
    assert content == one.content
    assert (reasoning or None) == one.reasoning


@pytest.mark.long(cases=11)
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY)
def test_an_answer_means_the_same_in_every_division(name: str, step: int) -> None:
    """Of two pieces, or of a twelfth of them, which depends on the answer."""
    one = EVERY[name]
    text = one.text
    check(one, [text])
    check(one, text)  # character by character
    first = 1 + zlib.crc32(name.encode()) % step
    for at in range(first, len(text), step) if len(text) < 600 else range(1, len(text), 97):
        check(one, [text[:at], text[at:]])
    chosen = random.Random(name)
    for _ in range(10):
        cuts = sorted(chosen.sample(range(len(text) + 1), min(len(text), 5)))
        check(one, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


@pytest.mark.parametrize("name", EVERY)
def test_pieces_do_not_depend_on_the_division(name: str) -> None:
    one = EVERY[name]
    wanted = meaning(read(one, [one.text])[0])
    assert meaning(read(one, one.text)[0]) == wanted


@pytest.mark.long(cases=19)
@pytest.mark.parametrize("name", EVERY)
def test_an_answer_that_is_cut_anywhere_raises_nothing_and_loses_nothing(name: str) -> None:
    one = EVERY[name]
    step = 5 if len(one.text) < 600 else 97
    for at in range(0, len(one.text), step):
        deltas, reader = read(one, [one.text[:at]])
        content, reasoning, calls, _ = meaning(deltas)
        for call in reader.calls:
            assert (call.name, call.arguments) in one.calls
        if not calls and "<|channel|>" not in one.text:  # what is no call is told as it is
            told = "".join((reasoning + content).split())
            given = "".join(one.text[:at].split())
            for mark in (
                "<think>",
                "</think>",
                "[THINK]",
                "[/THINK]",
                ">>>all",
                ">>>",
                "<|assistant|>",
            ):
                given, told = given.replace(mark, ""), told.replace(mark, "")
            if one.thoughts in (None, "think"):
                assert told == given


def test_long_arguments_come_in_pieces_and_the_name_first() -> None:
    for one in long_ones().values():
        reader = reader_of(one)
        names = pieces = 0
        for sign in one.text:
            for delta in reader.feed(sign):
                for piece in delta.tool_calls:
                    if piece.name:
                        assert not pieces
                        names += 1
                    pieces += bool(piece.arguments)
        assert names == 1
        assert pieces > (10 if one.form != "qwen_coder" else 0)


@pytest.mark.parametrize("name", [x for x, one in EVERY.items() if len(one.calls) > 1])
def test_without_parallel_calls_the_first_one_is_given(name: str) -> None:
    one = EVERY[name]
    reader = reader_of(one, several=False)
    deltas = [x for sign in one.text for x in reader.feed(sign)] + reader.end()
    assert [(x.name, x.arguments) for x in reader.calls] == one.calls[:1]
    assert len(meaning(deltas)[2]) == 1


@pytest.mark.long
def test_random_texts_full_of_marks_raise_nothing_and_mean_the_same_in_any_division() -> None:
    chosen = random.Random(7)
    for form in FORMATS:
        marks = [*form.names, '{"name": "now", "arguments": {}}', "[", "]", "now()", "weather",
                 '{"name": "weather", "arguments": {"city": "', '"}}', "\n", " ", "x", "<", "{",
                 *[x.text for x in EVERY.values() if x.form == form.name]]  # fmt: skip
        for _ in range(12):
            text = "".join(chosen.choices(marks, k=chosen.randint(1, 6)))
            one = Transcript(form.name, text)
            wanted = meaning(read(one, [text])[0])
            assert meaning(read(one, text)[0]) == wanted, (form.name, text)
            at = chosen.randint(0, len(text))
            assert meaning(read(one, [text[:at], text[at:]])[0]) == wanted, (form.name, text)


def several_calls(form: str) -> Transcript:
    """Calls with texts that contain marks, quotes and other letters, and a text around them."""
    arguments = {"city": 'Zürich "a\\b" 日本 😀', "days": -3, "exact": False,
                 "parts": ["x, y", "{}"], "where": {"x": 1.5}}  # fmt: skip
    calls: list[tuple[str, dict[str, Any]]]
    calls = [("weather", arguments), ("now", {}), ("weather", {"city": "</b> {x"})]
    before = "" if form == "xlam" else "Ich sehe nach 😀:"
    opened = {
        "functionary": f">>>all\n{before}",
        "glm4": f"<|assistant|>\n{before}",
        "harmony": f"<|channel|>commentary<|message|>{before}<|end|><|start|>assistant",
    }.get(form, before)
    return Transcript(form, opened + WRITERS[form](calls), calls, before)


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("form", WRITERS)
def test_several_calls_of_a_family_are_read_with_all_that_values_may_have(form: str) -> None:
    one = several_calls(form)
    check(one, [one.text])
    check(one, one.text)
    for at in range(1, len(one.text), 37):
        check(one, [one.text[:at], one.text[at:]])
    deltas, reader = read(one, [one.text + " Danach."])
    assert [(x.name, x.arguments) for x in reader.calls] == one.calls
    assert "Danach." in meaning(deltas)[0]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # a test of two minutes is ended
@pytest.mark.parametrize("form", WRITERS)
def test_several_calls_of_a_family_are_read_in_every_division(form: str, part: int) -> None:
    one = several_calls(form)
    for at in range(1 + part, len(one.text), 4):
        check(one, [one.text[:at], one.text[at:]])


def test_a_long_call_is_not_read_again_at_each_character(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("hermes", "harmony"):
        known = format_called(form)
        assert known is not None
        kind = type(known)
        times, read_once = 0, kind.read

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal times
            times += 1
            return read_once(*args, **options)  # noqa: B023 called within this turn

        call = ("write_file", {"path": "a", "text": 'line \\ "é"\n' * 1000})
        one = Transcript(form, WRITERS[form]([call]), [call])
        with monkeypatch.context() as patched:
            patched.setattr(kind, "read", counted)
            check(one, one.text)
        assert times < 1000


def test_every_format_has_a_transcript_and_a_name_of_its_own() -> None:
    names = [x.name for x in FORMATS]
    assert len(set(names)) == len(names)
    assert {x.form for x in TRANSCRIPTS.values()} == set(names) == set(WRITERS)
