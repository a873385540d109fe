"""Beam search of Whisper: the best texts of a search over all, and with trained weights OpenAI's.

Not here: greedy decoding (test_windows.py).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
import pytest
from models import speech_file, weights

import aggml
from aggml import InvalidArgument
from aggml.models import SpeechModel, read_wav
from aggml.models.speech.beams import Beams

if TYPE_CHECKING:
    from pathlib import Path

END: Final = 4


class _Any:
    """Rules by which any token may come."""

    class special:
        begin, end = 0, END

    @staticmethod
    def apply(logits: Any, made: Any) -> None:
        """Nothing is forbidden."""


def tables(seed: int, depth: int) -> dict[tuple[int, ...], Any]:
    """Logits after each text of a vocabulary of 5."""
    rng = np.random.default_rng(seed)
    return {
        text: (2 * rng.standard_normal(5)).astype(np.float32)
        for n in range(depth + 1)
        for text in product(range(END), repeat=n)
    }


def mean(table: dict[tuple[int, ...], Any], text: tuple[int, ...], *, ends: bool) -> float:
    total = 0.0
    for i, token in enumerate([*text, END] if ends else text):
        logits = table[text[:i]].astype(np.float64)
        total += logits[token] - np.log(np.exp(logits).sum())
    return total / max(len(text), 1)


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_as_wide_as_the_tree_finds_the_best_text(seed: int) -> None:
    depth = 3
    table = tables(seed, depth)
    beams = Beams(2, 4**depth * 2, _Any(), 10, depth, [table[()]])  # type: ignore[arg-type]
    while not beams.done:
        beams.step()
        beams.rows = [table[tuple(x.tokens)] for x in beams._texts if len(x.tokens) <= depth]
    text, score = beams.best
    texts = [x for n in range(depth) for x in product(range(END), repeat=n)]
    wanted = max(mean(table, x, ends=True) for x in texts)
    full = max(mean(table, x, ends=False) for x in product(range(END), repeat=depth))
    assert np.isclose(score / max(len(text), 1), max(wanted, full))


def test_moves_tell_where_each_text_comes_from() -> None:
    rows = [np.array(x, np.float32) for x in ([0, 9, 0, 0, -9], [0, 0, 8, 7, -9])]
    beams = Beams(3, 2, _Any(), 10, 9, [np.array([5, 4, 0, 0, -9], np.float32)])  # type: ignore[arg-type]
    beams.step()
    assert [x.tokens for x in beams._texts] == [[0], [1]]
    assert beams.moves == [(3, 4)]  # both come from the first sequence
    beams.rows = rows[::-1]
    beams.step()
    assert beams.last == [x.tokens[-1] for x in beams._texts]
    for source, target in beams.moves:
        assert beams._texts[target - 3].tokens[:1] == [source - 3]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    speech_file.shorten(monkeypatch, 10)


@pytest.mark.long(cases=1)
@pytest.mark.usefixtures("short")
async def test_searches_beside_others_find_what_they_find_alone(tmp_path: Path) -> None:
    path = tmp_path / "random.bin"
    speech_file.write_short(path)
    sounds = [speech_file.sound(1.0 + 0.3 * i) for i in range(3)]
    async with aggml.models.load(path, slots=7) as model:
        assert isinstance(model, SpeechModel)

        async def said(i: int, beam: int) -> tuple[list[int], float]:
            options: Any = {"language": "en", "temperature": 0.0, "beam_size": beam}
            found = [x async for x in model.transcribe(sounds[i], **options)]
            return [t for x in found for t in x.tokens], found[0].logprob if found else 0.0

        asked = [(0, 3), (1, 1), (2, 3), (1, 7), (0, 1)]
        alone = [await said(*x) for x in asked]
        together: dict[int, Any] = {}

        async def one(k: int) -> None:
            together[k] = await said(*asked[k])

        async with anyio.create_task_group() as tasks:
            for k in range(len(asked)):
                tasks.start_soon(one, k)
        assert [together[k][0] for k in range(len(asked))] == [x[0] for x in alone]
        again: list[Any] = [x async for x in model.listen([sounds[0]], beam_size=2)]
        assert all(x.final for x in again[-1:])
        for call in (model.transcribe, model.listen):
            with pytest.raises(InvalidArgument, match=r"beam_size is 8.*slots=8"):
                call(sounds[0], beam_size=8)
            with pytest.raises(InvalidArgument, match="beam_size"):
                call(sounds[0], beam_size=0)


#: OpenAI's package 20250625 with the same weights, float32, beam_size=5, temperature 0, English:
#: the text of the first window, and the mean logarithm of its tokens' probabilities.
OPENAI: Final = (
    " Okay, right, we've had a problem here. This is Houston Sagin, please. Oh, here's what we've "
    "had a problem. We've had a meeting, but I thought I'd vote. Roger me, me and your vote."
)
LOGPROB: Final = -0.5004


async def test_trained_weights_find_the_text_of_openai() -> None:
    for name in ("tiny.en.pt", "gpt2.tiktoken", "a13.wav"):
        weights.find(name)
    samples, rate = read_wav(weights.find("a13.wav").read_bytes())
    async with aggml.models.load(weights.find("tiny.en.pt"), slots=5) as model:
        assert isinstance(model, SpeechModel)
        said = model.transcribe(samples, rate, temperature=0.0, beam_size=5)
        found = [x async for x in said]
    text = "".join(x.text for x in found)
    assert text.startswith(OPENAI)
    assert abs(found[0].logprob - LOGPROB) < 5e-4
