"""Trained Whisper on Apollo 13 and a speech: texts of whisper.cpp, faster-whisper, OpenAI's file.

whisper.cpp (pywhispercpp 1.5.1, greedy) gave the first text; its logits are in speech.npz
(benchmarks/make_speech.py). faster-whisper 1.2.1 gave the second one (tiny.en.pt in CTranslate2's
f32 with OpenAI's `alignment_heads` in its config.json, temperature 0). A test without its files
skips and names them. Not here: random weights (test_speech.py), which files there are (weights.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from models import weights
from models.test_speech import FIRST, THEN, nmse

import aggml
from aggml import ops
from aggml.models import read_wav
from aggml.models.blocks.feed_forward import ALONE
from aggml.models.speech.features import spectrogram

RECORDED: Final = np.load(Path(__file__).with_name("speech.npz"))
#: The text of ggml-tiny.bin, from 0 to 26 s; after that whisper.cpp transcribes the silence.
SAID: Final = [
    (0, 4, " Okay, we've had a problem here."),
    (4, 7, " This is Houston, say again please."),
    (7, 9, " Oh, here's what we've had about."),
    (9, 12, " We've had a baby, but vulnerable."),
    (12, 15, " Roger, may you be in the boat."),
    (15, 19, " So, okay, stand by our team. We're looking at us."),
    (19, 26, " Okay, right now, you have to be a bullet just to look at that."),
]

#: Of jfk.wav by the number of beams: the segments, and the mean logarithm of the probabilities.
ASKED: Final = {
    1: (
        " And so my fellow Americans ask not what your country can do for you",
        " ask what you can do for your country", -0.3775,
    ),
    5: (
        " And so, my fellow Americans ask not what your country can do for you",
        " ask what you can do for your country.", -0.2900,
    ),
}  # fmt: skip
#: When its words begin, by the heads that follow the speech (`alignment_heads`).
BEGINS: Final = [
    0.0, 0.76, 1.06, 1.46, 1.76, 2.26, 3.88, 4.52, 5.7, 6.02, 6.36, 6.76, 7.02, 7.26, 8.06, 8.66,
    8.94, 9.28, 9.5, 9.72, 9.92, 10.22,
]  # fmt: skip


def recording() -> Any:
    samples, rate = read_wav(weights.find("a13.wav").read_bytes())
    assert rate == 16000
    return samples


async def test_logits_of_tiny_are_those_of_whisper_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """With whisper.cpp's GELU, an approximation by tanh. OpenAI's gives errors up to 1.3e-3."""
    monkeypatch.setattr(ops, "gelu_erf", ops.gelu)
    monkeypatch.setitem(ALONE, "gelu_erf", ops.gelu)
    async with await aggml.models.load(weights.find("ggml-tiny.bin")) as model:
        assert isinstance(model, aggml.models.SpeechModel)
        mel = spectrogram(recording(), 80, 480000)[:, :3000]
        await model._listener.listen([mel])
        found = [await model._decoder.prefill(0, FIRST)]
        for i, token in enumerate(THEN):
            found.append((await model._decoder.decode([token], [len(FIRST) + i]))[0])
        for row, expected in zip(found, RECORDED["tiny"], strict=True):
            assert nmse(row[::29], expected) < 2e-5


async def test_tiny_says_what_whisper_cpp_says_and_finds_the_language() -> None:
    async with await aggml.models.load(weights.find("ggml-tiny.bin")) as model:
        found = [x async for x in model.transcribe(recording())]
    assert [(x.start, x.end, x.text) for x in found[: len(SAID)]] == SAID
    assert {x.language for x in found} == {"en"}
    assert {x.temperature for x in found} == {0.0}
    assert found[-1].end == 30.0


async def test_openais_file_of_english_is_read() -> None:
    path = weights.find("tiny.en.pt")
    weights.find("gpt2.tiktoken")
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.SpeechModel)
        assert model.languages == ("en",)
        found = [x async for x in model.transcribe(recording())]
        assert found[0].text.startswith(" Okay, right here. We've had a problem here.")
        assert " ".join(x.text for x in found).count("Houston") == 1
        words = "Houston, we've had a problem \u2014 caf\u00e9"
        assert model.tokenizer.decode(model.tokenizer.encode(words)) == words
        # The tokens of tiktoken's gpt2, from OpenAI's own package.
        assert model.tokenizer.encode("Hello world, 1969!") == [15496, 995, 11, 16450, 0]


@pytest.mark.parametrize("beam", [1, 5])
async def test_a_speech_is_written_word_for_word_as_by_faster_whisper(beam: int) -> None:
    path = weights.find("tiny.en.pt")
    weights.find("gpt2.tiktoken")
    samples, rate = read_wav(weights.find("jfk.wav").read_bytes())
    *texts, logprob = ASKED[beam]
    async with aggml.models.load(path, slots=5) as model:
        assert isinstance(model, aggml.models.SpeechModel)
        options: Any = {"temperature": 0.0, "beam_size": beam, "words": True}
        found = [x async for x in model.transcribe(samples, rate, **options)]
    assert [x.text for x in found] == texts
    assert all(abs(x.logprob - logprob) < 2e-4 for x in found)
    words = [word for x in found for word in x.words]
    assert [x.text.strip() for x in words] == "".join(texts).split()
    apart = np.abs(np.array([x.start for x in words]) - BEGINS)
    if beam == 1:
        assert apart.max() < 0.061
