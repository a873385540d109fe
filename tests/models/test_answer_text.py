"""The text of an answer does not depend on how tokens divide it, nor do its stop texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggml.models.engine.text import AnswerText

if TYPE_CHECKING:
    from collections.abc import Iterable

# Few characters, so that stop texts are found, overlap and repeat; of one to four bytes.
LETTERS = "ab\né€🦔\N{REPLACEMENT CHARACTER}"
TEXTS = st.text(LETTERS, max_size=24)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)
BYTES = st.one_of(
    TEXTS.map(str.encode),
    st.lists(
        st.sampled_from([b"a", b"b", "é".encode(), b"\xe2\x82", b"\x82\xac", b"\xf0", b"\xff"]),
        max_size=16,
    ).map(b"".join),
)


@st.composite
def tokens(draw: st.DrawFn) -> list[bytes]:
    """Bytes, cut at random places; control tokens among them have no bytes."""
    whole = draw(BYTES)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def text_of(known: bytes, stops: Iterable[str]) -> str:
    """The certain text of one token with these bytes."""
    return AnswerText([known].__getitem__, stops).add(0)


def end_and_begin(text: str, stops: list[str], after: int) -> tuple[int, int, str] | None:
    """Where the first stop text ends and begins: every place of every stop text is tried."""
    found = [
        (i + len(stop), i, stop)
        for stop in stops
        for i in range(len(text))
        if text.startswith(stop, i) and i + len(stop) > after
    ]
    return min(found, default=None)


def characters_of(pieces: list[bytes]) -> int:
    """How many characters these bytes have, without one that is not complete at their end."""
    data = b"".join(pieces)
    for n in range(4):
        try:
            return len(data[: len(data) - n].decode("utf-8"))
        except UnicodeDecodeError:
            pass
    raise AssertionError(data)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 96), max_size=12), STOPS, st.integers(0, 4))
def test_an_answer_ends_where_a_search_of_the_whole_text_finds_the_first_stop_text(
    text: str, places: list[int], stops: list[str], min_tokens: int
) -> None:
    whole = text.encode()
    cuts = sorted(min(x, len(whole)) for x in places)
    pieces = [whole[i:j] for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    after = characters_of(pieces[:min_tokens])
    expected = end_and_begin(text, stops, after) if len(pieces) > min_tokens else None
    answer = AnswerText(pieces.__getitem__, stops, min_tokens)
    given = "".join([answer.add(i) for i in range(len(pieces))]) + answer.end()
    if expected is None:
        assert (given, answer.stopped, answer.stop) == (text, False, None)
    else:
        assert (given, answer.stopped, answer.stop) == (text[: expected[1]], True, expected[2])
    assert answer.given == len(given)


@settings(max_examples=150, deadline=None)
@given(tokens(), STOPS)
def test_bytes_that_are_no_utf8_are_replaced_as_in_the_whole_text(
    pieces: list[bytes], stops: list[str]
) -> None:
    # Bytes at the end that are no whole character are left out.
    text = text_of(b"".join(pieces), ())
    expected = end_and_begin(text, stops, 0)
    answer = AnswerText(pieces.__getitem__, stops)
    given = "".join([answer.add(i) for i in range(len(pieces))]) + answer.end()
    assert given == (text if expected is None else text[: expected[1]])
    assert answer.stopped == (expected is not None)


@settings(max_examples=150, deadline=None)
@given(tokens(), STOPS)
def test_only_text_that_may_begin_a_stop_text_is_held_back(
    pieces: list[bytes], stops: list[str]
) -> None:
    answer = AnswerText(pieces.__getitem__, stops)
    so_far = ""
    for i in range(len(pieces)):
        so_far += answer.add(i)
        if answer.stopped:
            break
        text = text_of(b"".join(pieces[: i + 1]), ())
        assert text.startswith(so_far)
        held = text[len(so_far) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        for n in range(len(held) + 1, len(text) + 1):  # and nothing longer may begin one
            assert not any(stop.startswith(text[-n:]) for stop in stops)


@settings(max_examples=150, deadline=None)
@given(tokens(), STOPS)
def test_each_token_begins_behind_the_characters_of_those_before_it(
    pieces: list[bytes], stops: list[str]
) -> None:
    answer = AnswerText(pieces.__getitem__, stops)
    for i in range(len(pieces)):
        answer.add(i)
        if answer.stopped:
            break
    for i, begin in enumerate(answer.begins):
        assert begin == len(text_of(b"".join(pieces[:i]), ()))


@pytest.mark.parametrize("character", ["é", "€", "🦔"])
def test_an_answer_never_ends_within_a_character(character: str) -> None:
    data = character.encode()
    for n in range(1, len(data)):
        answer = AnswerText([b"a", data[:n]].__getitem__, ["stop"])
        assert [answer.add(0), answer.add(1), answer.end()] == ["a", "", ""]
        assert (answer.given, answer.holds) == (1, False)
    broken = AnswerText([data[:-1], b"a"].__getitem__)  # one within the answer is told
    assert broken.add(0) + broken.add(1) + broken.end() == "\N{REPLACEMENT CHARACTER}a"


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_stop_text_is_found_across_every_boundary_of_tokens(cut: int) -> None:
    pieces = [b"so ", b"<stop>"[:cut], b"<stop>"[cut:], b" more"]
    answer = AnswerText(pieces.__getitem__, ["<stop>"])
    assert [answer.add(i) for i in range(4)] == ["so ", "", "", ""]
    assert answer.stopped
    assert answer.end() == ""


def test_the_stop_text_that_is_complete_first_ends_the_answer_whatever_the_tokens() -> None:
    for pieces in ([b"xabc"], [b"xab", b"c"], [b"x", b"a", b"b", b"c"]):
        answer = AnswerText(pieces.__getitem__, ["abc", "b"])
        assert "".join([answer.add(i) for i in range(len(pieces))]) + answer.end() == "xa"


def test_of_stop_texts_that_end_together_the_longest_counts() -> None:
    answer = AnswerText([b"xabc"].__getitem__, ["c", "abc", "bc"])
    assert answer.add(0) == "x"
    assert answer.stop == "abc"


def test_a_stop_text_within_the_first_tokens_does_not_count_but_the_next_one_does() -> None:
    pieces = [b"a.", b"b.", b"c.", b"d."]
    answer = AnswerText(pieces.__getitem__, ["."], min_tokens=2)
    assert "".join([answer.add(i) for i in range(4)]) == "a.b.c"


def test_a_stop_text_that_is_long_and_repeats_is_found_at_its_end() -> None:
    pieces = [b"a" * 8] * 1000 + [b"b"]
    answer = AnswerText(pieces.__getitem__, ["a" * 4000 + "b"])
    assert sum(len(answer.add(i)) for i in range(1000)) == 4000
    assert answer.add(1000) == ""
    assert answer.stopped
