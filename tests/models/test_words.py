"""Times of words: the path through attention, tokens to words, whole recordings.

Not here: what the segments say (test_speech.py, test_trained_speech.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import speech_file, weights

import aggml
from aggml import InvalidArgument
from aggml.models import SpeechModel, read_wav
from aggml.models.speech import words as module
from aggml.models.speech.aligning import alignment_heads
from aggml.models.speech.words import token_times, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def cheapest(cost: Any) -> float:
    """The cost of the cheapest path, cell by cell."""
    total = np.full(cost.shape, np.inf)
    for i in range(cost.shape[0]):
        for j in range(cost.shape[1]):
            before = [
                total[a, b] for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if min(a, b) >= 0
            ]
            total[i, j] = cost[i, j] + (min(before) if before else 0)
    return float(total[-1, -1])


@given(n=st.integers(1, 8), m=st.integers(1, 12), seed=st.integers(0, 1000))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_the_path_is_the_cheapest_and_goes_forward(n: int, m: int, seed: int) -> None:
    cost = np.random.default_rng(seed).standard_normal((n, m))
    rows, columns = module._path(cost)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (n - 1, m - 1)
    for steps in (np.diff(rows), np.diff(columns)):
        assert set(steps.tolist()) <= {0, 1}
    assert np.isclose(cost[rows, columns].sum(), cheapest(cost))


def test_tokens_begin_where_their_heads_look() -> None:
    looks = [0, 10, 25, 26, 60, 80]
    attention = np.full((3, len(looks), 100), 1e-4, np.float32)
    for row, frame in enumerate(looks):
        until = [*looks, 100][row + 1]
        attention[:, row, frame:until] = 1.0
    times = token_times(attention, 90)
    assert np.abs(times - np.array(looks) * 0.02).max() <= 0.06
    assert (np.diff(times) >= 0).all()
    assert token_times(attention, 0).shape == (6,)  # a window without a frame of the recording


def spoken(pieces: list[str], language: str = "en") -> list[str]:
    def decode(tokens: Any) -> str:
        return b"".join(pieces[x].encode("utf-8", "surrogateescape") for x in tokens).decode(
            errors="replace"
        )

    times = [0.1 * i for i in range(len(pieces) + 1)]
    found = words_of(range(len(pieces)), times, decode, language)
    assert all(x.start <= x.end for x in found)
    return [x.text for x in found]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([" Good", " morn", "ing", ",", " Jo", "."], [" Good", " morning,", " Jo."]),
        ([" He", " said", ' "', "yes", '"', "."], [" He", " said", ' "yes".']),
        (["Well", " -", " no"], ["Well", " -", " no"]),
        ([" don", "'t"], [" don't"]),
        ([" caf", "\udcc3", "\udca9", " now"], [" café", " now"]),
        ([], []),
        ([" ("], []),
    ],
)
def test_tokens_become_words_with_their_punctuation(pieces: list[str], expected: list[str]) -> None:
    found = spoken(pieces)
    if pieces == ["Well", " -", " no"]:
        assert "".join(found).replace(" ", "") == "Well-no"
    else:
        assert found == expected


def test_languages_without_spaces_have_a_word_for_each_character() -> None:
    assert spoken(["你", "好", "。"], "zh") == ["你", "好。"]


@given(
    st.lists(st.sampled_from([" a", "b", ",", ".", ' "', '"', " (", ")", "-", " c"]), max_size=9)
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_no_letter_is_lost(pieces: list[str]) -> None:
    letters = re.sub(r"[^a-c]", "", "".join(pieces))
    assert re.sub(r"[^a-c]", "", "".join(spoken(pieces))) == letters


def test_a_pause_is_taken_off_the_words_beside_it() -> None:
    pieces = [" One", " two", " three", ".", " Four", " five", " six"]
    starts = [0.0, 0.3, 0.6, 0.9, 5.0, 9.0, 9.3, 9.6]
    found = words_of(range(7), starts, lambda x: "".join(pieces[i] for i in x), "en")
    assert [x.text for x in found] == [" One", " two", " three.", " Four", " five", " six"]
    assert found[2].end - found[2].start < 1
    assert found[3].end == 9.0
    assert found[3].start > 8


def test_heads_of_unknown_models_are_in_the_upper_layers() -> None:
    found = alignment_heads(32, 20, multilingual=True)
    assert len(found) <= 24
    assert len(set(found)) == len(found)
    assert all(16 <= layer < 32 and 0 <= head < 20 for layer, head in found)
    assert len(alignment_heads(4, 6, multilingual=True)) == 6


@pytest.fixture
async def model(tmp_path: Path) -> AsyncIterator[SpeechModel]:
    path = tmp_path / "random.bin"
    speech_file.write_bin(path)
    async with aggml.models.load(path, slots=2) as loaded:
        assert isinstance(loaded, SpeechModel)
        yield loaded


@pytest.mark.long
async def test_weights_of_attention_are_shares_and_leave_the_text_as_it_is(
    model: SpeechModel,
) -> None:
    """Random weights: words have no meaning, but each text is that without words."""
    options: dict[str, Any] = {"temperature": 0.0, "language": "en"}
    plain = [x async for x in model.transcribe(speech_file.sound(40), **options)]
    timed = [x async for x in model.transcribe(speech_file.sound(40), words=True, **options)]
    assert [(x.start, x.end, x.tokens) for x in timed] == [
        (x.start, x.end, x.tokens) for x in plain
    ]
    assert all(x.words == [] for x in plain)
    assert any(x.words for x in timed)
    aligner = model._ready()._aligner
    found = await aligner.attention(1, [50258, 50259, 50359, 5, 6, 7])
    assert found.shape[1:] == (6, 1500)
    assert np.allclose(found.sum(axis=-1), 1, atol=1e-4)
    assert (found >= 0).all()


@pytest.mark.parametrize("name", ["ggml-tiny.bin", "tiny.en.pt"])
async def test_words_are_said_when_they_are_said(name: str) -> None:
    """Beside pauses of the recording, and two seconds later if it begins two seconds later."""
    samples, _ = read_wav(weights.find("a13.wav").read_bytes())
    if name == "tiny.en.pt":
        weights.find("gpt2.tiktoken")
    part = samples[16 * 4400 : 16 * 8600]
    later = np.concatenate([np.zeros(32000, np.float32), part])
    starts = []
    async with aggml.models.load(weights.find(name)) as model:
        for heard in (part, later):
            found = [
                word
                async for segment in model.transcribe(heard, words=True, language="en")
                for word in segment.words
            ]
            starts.append({x.text.strip(" ,.").lower(): x.start for x in found})
    first, second = starts
    common = first.keys() & second.keys() & {"is", "houston", "say", "again", "please"}
    assert len(common) >= 3  # where the first word begins in the pause before it is open
    for word in common:
        assert abs(second[word] - first[word] - 2) <= 0.12, word
    assert abs(first["houston"] - 0.84) < 0.3  # 5.24 s of the whole recording


@pytest.mark.long
async def test_a_path_is_read_and_has_its_own_rate(model: SpeechModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "language": "en"}
    path = tmp_path / "a.wav"
    samples = (speech_file.sound(2) * 32767).astype("<i2")
    head = b"RIFF" + (36 + samples.nbytes).to_bytes(4, "little") + b"WAVEfmt "
    head += (16).to_bytes(4, "little") + bytes.fromhex("01000100803e0000007d000002001000")
    path.write_bytes(head + b"data" + samples.nbytes.to_bytes(4, "little") + samples.tobytes())
    for given_path in (path, str(path)):
        found = [x async for x in model.transcribe(given_path, **options)]
        expected = [x async for x in model.transcribe(samples, **options)]
        assert [x.tokens for x in found] == [x.tokens for x in expected]
    with pytest.raises(InvalidArgument, match="its own rate"):
        model.transcribe(path, 16000)
    with pytest.raises(InvalidArgument, match="words is 1"):
        model.transcribe(path, words=1)  # type: ignore[arg-type]
    with pytest.raises(aggml.models.ModelError, match="cannot open the sound file"):
        await anext(model.transcribe(tmp_path / "none.mp3"))
