"""Windows of live speech: shorter ones, drafts, words that are certain, the pace of a listener.

Not here: what `listen` gives (test_live.py), windows of 30 s (test_speech.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import speech_file
from models.test_speech import FIRST, THEN, nmse

import aggml
from aggml.models import SpeechModel, Word, speech_model
from aggml.models.speech.beams import SequenceMover
from aggml.models.speech.features import spectrogram
from aggml.models.speech.listening import frames_for
from aggml.models.speech.live import (
    CUT,
    LONGEST,
    Agreement,
    Draft,
    LiveSound,
    Pace,
    draft_of,
    once,
)
from aggml.models.speech.prompts import prompts
from aggml.models.speech.segments import Recording, segments
from aggml.models.speech.special import Special
from aggml.models.speech.windows import SpeechOptions, Window, WindowText

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SPECIAL = Special.of(speech_file.VOCABULARY)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechModel]:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_bin(path)
    with speech_file.loaded(path, slots=3) as model:
        yield model


def test_the_shortest_window_that_is_long_enough_is_taken() -> None:
    assert [frames_for(n, 3000) for n in (1, 600, 601, 1000, 1400, 1501, 2851, 3000, 3001)] == [
        600, 600, 750, 1050, 1500, 1650, 3000, 3000, 3000,
    ]  # fmt: skip
    assert frames_for(1, 14) == 14  # of 7 rows there are no such parts


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("frames", [600, 750, 1050, 2850])
async def test_a_shorter_window_is_heard_as_by_a_model_whose_windows_are_not_longer(
    model: SpeechModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    mel = spectrogram(speech_file.sound(frames / 100), 80)
    whole = spectrogram(speech_file.sound(30), 80)
    slots = [2, 0]  # a window of 30 s beside it, with which it is decoded
    await model._listener.listen([mel, whole], slots)
    found = [await model._decoder.prefill(2, FIRST)]
    beside = [await model._decoder.prefill(0, FIRST)]
    for i, token in enumerate(THEN):
        rows = await model._decoder.decode([token] * 3, [len(FIRST) + i] * 3)
        found.append(rows[2])
        beside.append(rows[0])
    text = [*FIRST, *THEN, SPECIAL.end]
    looked = (await model._ready()._aligner.attention_of(2, [text], frames // 2))[0]
    longer = (await model._ready()._aligner.attention_of(2, [text], 1500))[0]
    assert np.array_equal(longer[:, :, frames // 2 :], np.zeros_like(longer[:, :, frames // 2 :]))
    assert nmse(longer[:, :, : frames // 2], looked) < 1e-9
    made = dict(speech_file.weights())
    table = made["encoder.positional_embedding"]
    made["encoder.positional_embedding"] = table[: frames // 2]
    monkeypatch.setattr(speech_file, "HEARD", frames // 2)
    path = tmp_path / "short.bin"
    speech_file.write_bin(path, made)
    async with aggml.models.load(path, slots=1) as short:
        assert isinstance(short, SpeechModel)
        await short._listener.listen([mel])
        expected = [await short._decoder.prefill(0, FIRST)]
        for i, token in enumerate(THEN):
            expected.append((await short._decoder.decode([token], [len(FIRST) + i]))[0])
        shares = await short._ready()._aligner.attention(0, text)
    assert nmse(np.stack(found), np.stack(expected)) < 1e-6
    assert nmse(looked, shares) < 1e-6
    await model._listener.listen([mel], [1])  # the next window has all rows again
    await model._listener.listen([whole], [1])
    alone = [await model._decoder.prefill(1, FIRST)]
    for i, token in enumerate(THEN):
        alone.append((await model._decoder.decode([token], [len(FIRST) + i], 1))[0])
    assert nmse(np.stack(beside), np.stack(alone)) < 1e-6


async def test_rows_that_a_window_does_not_have_are_not_read(tmp_path: Path) -> None:
    """NaN in these rows is in no result: of a prompt, of a step, of the times of tokens."""
    path = tmp_path / "random.bin"
    speech_file.write_bin(path)
    on = aggml.get_device("CPU").backend(n_threads=2)
    async with on, await aggml.models.load(path, on, slots=3) as model:
        assert isinstance(model, SpeechModel)
        decoder, aligner = model._decoder, model._ready()._aligner
        mels = [spectrogram(speech_file.sound(n), 80) for n in (6, 10, 30)]
        await model._listener.listen(mels)
        texts: list[Sequence[int]] = [[*FIRST, *range(7 + i, 40)] for i in range(3)]
        batch = prompts(decoder, 0, [(x, 0) for x in texts], [[0, len(x) - 1] for x in texts])

        async def results() -> list[Any]:
            (logits,) = await (await decoder.queue(batch))
            after = await decoder.decode([5, 6, 7], [len(x) for x in texts])
            times = await aligner.attention_of(0, texts[:1], 300)
            return [np.array(logits), np.array(after), times[0]]

        expected = await results()
        for layer in decoder.caches.layers:
            for name in ("cross_k", "cross_v"):
                rows = await on.get(layer[name])
                assert rows.shape == (3 * 1500, speech_file.WIDTH)
                for slot, n in enumerate((300, 500)):
                    rows[1500 * slot + n : 1500 * (slot + 1)] = np.nan
                await on.set(layer[name], rows)
        for found, wanted in zip(await results(), expected, strict=True):
            assert nmse(found, wanted) < 1e-8  # lanes compute what tiles with NaN could not


async def test_a_copy_of_a_sequence_hears_a_window_of_the_same_length(model: SpeechModel) -> None:
    mels = [spectrogram(speech_file.sound(n), 80) for n in (6, 10, 30)]
    await model._listener.listen(mels)
    await model._decoder.prefill(0, FIRST)
    await SequenceMover(model._decoder).spread(0, 3, len(FIRST))
    rows = await model._decoder.decode([THEN[0]] * 3, [len(FIRST)] * 3)
    assert nmse(rows[1], rows[0]) < 1e-9
    assert nmse(rows[2], rows[0]) < 1e-9
    await model._listener.listen([mels[2]], [2])
    await model._decoder.prefill(2, FIRST)
    other = (await model._decoder.decode([THEN[0]], [len(FIRST)], 2))[0]
    assert nmse(other, rows[0]) > 1e-4


async def test_prompts_of_several_windows_give_the_logits_of_each_alone(
    model: SpeechModel,
) -> None:
    mel = spectrogram(speech_file.sound(6), 80)
    await model._listener.listen([mel, mel[:, ::-1].copy(), -mel])
    texts: list[Sequence[int]] = [[SPECIAL.begin, 5, 6], [SPECIAL.begin, *range(7, 40)], [9]]
    ends = [[0, 2], [33], [0]]
    batch = prompts(model._decoder, 0, [(x, 0) for x in texts], ends)
    assert batch.shape(0).parts[0].tokens % 32 == 0
    (logits,) = await (await model._decoder.queue(batch))
    rows = np.asarray(logits).reshape(-1, speech_file.VOCABULARY)
    expected = []
    for slot, (ids, those) in enumerate(zip(texts, ends, strict=True)):
        each = await model._decoder.logits(ids, slot)
        expected += [each[i] for i in those]
    assert nmse(rows[: len(expected)], np.stack(expected)) < 1e-6
    assert nmse(await model._decoder.decode([3], [3], 0), await _after(model, 0, texts[0])) < 1e-6


async def _after(model: SpeechModel, slot: int, ids: Sequence[int]) -> Any:
    return (await model._decoder.logits([*ids, 3], slot))[-1:]


async def _said(model: SpeechModel, steps: list[int], **more: Any) -> WindowText:
    mel = spectrogram(speech_file.sound(6), 80)
    heats = more.pop("temperatures", (0.0,))
    asked = SpeechOptions("en", temperatures=heats, seed=more.pop("seed", None))
    steps.clear()
    return await model._batches.submit(Window(mel, asked, most=20, **more))


async def test_a_draft_changes_no_token_and_saves_the_steps_that_it_foresees(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    decode = model._decoder.decode

    async def counted(*given: Any) -> Any:
        steps.append(1)
        return await decode(*given)

    monkeypatch.setattr(model._decoder, "decode", counted)
    plain = await _said(model, steps)
    assert len(plain.tokens) >= 10
    needed = len(steps)
    wrong = [*plain.tokens[:6], plain.tokens[6] ^ 1, *plain.tokens[7:]]
    drafts = {
        0: [*plain.tokens, 7, 8], needed - 6: wrong, needed: [plain.tokens[0] + 1, 5],
        needed - 4: plain.tokens[:4],
    }  # fmt: skip
    for most, draft in drafts.items():
        said = await _said(model, steps, draft=draft)
        assert said.tokens == plain.tokens
        assert abs(said.logprob - plain.logprob) < 1e-3
        assert len(steps) <= most
    given = [SPECIAL.times, 11, 12, 13]
    said = await _said(model, steps, draft=[*given, 14], certain=4)
    assert said.tokens[:4] == given
    assert said.certain == 4
    assert not said.silent


def words(text: str, begin: float = 0.0, each: float = 0.5) -> list[Word]:
    return [
        Word(begin + i * each, begin + (i + 1) * each, f" {x}") for i, x in enumerate(text.split())
    ]


def test_words_that_are_certain_are_not_heard_again() -> None:
    agreement = Agreement()
    agreement.hear(words("one two three"))
    assert len(agreement.hear(words("one two other"))) == 2
    late = words("one two three four", 0.4)  # their times may move
    assert agreement.hear(late, 2) == []
    assert [x.text for x in agreement.open] == [" three", " four"]
    more = words("one twofold three four", 0.4)  # the last final word goes on
    assert agreement.hear(more, 2) == []
    assert [x.text for x in agreement.open] == ["fold", " three", " four"]
    assert agreement.hear(words("one two. three four"), 2) == []  # a full stop is no word


def test_the_sound_is_cut_where_a_sentence_ends() -> None:
    agreement = Agreement()
    said = words("a b c d. e f g, h i j k l m n o p q r s t")
    agreement.hear(said)
    agreement.hear([*said[:-2], *words("no")])
    assert agreement.best_cut(0.0, 0.0) == 2.0  # behind d.
    assert agreement.best_cut(0.0, 2.5) == 3.5  # behind g,
    assert agreement.best_cut(0.0, 99.0) == agreement.until
    sound = LiveSound()
    sound.add(np.ones(round(16000 * (CUT + 0.5)), np.float32))
    sound.trim(agreement)
    assert sound.begin >= CUT / 2


def test_a_draft_has_the_tokens_behind_the_cut() -> None:
    pieces = {1: " one", 2: " two", 3: "fold", 4: ".", 5: " three", 6: " four"}

    def decode(tokens: Any) -> str:
        return "".join(pieces[x] for x in tokens)

    times = SPECIAL.times
    tokens = [times, 1, 2, 3, 4, times + 50, times + 50, 5, 6]
    heard = [
        Word(0, 0.5, " one"), Word(0.5, 1, " twofold."), Word(1, 1.5, " three"),
        Word(1.5, 2, " four"),
    ]  # fmt: skip
    agreement = Agreement()
    agreement.final, agreement.open = heard[:3], heard[3:]
    whole = draft_of(tokens, heard, agreement, SPECIAL, decode, begin=0.0, cut=False)
    assert whole == Draft(tuple(tokens), 8, 3, 1.5)
    cut = draft_of(tokens, heard, agreement, SPECIAL, decode, begin=1.0, cut=True)
    assert cut == Draft((times, 5, 6), 2, 1, 0.5)
    cut = draft_of(tokens, heard, agreement, SPECIAL, decode, begin=1.5, cut=True)
    assert cut == Draft((times, 6), 0, 0, 0.0)
    agreement.final, agreement.open = [heard[0], Word(0.5, 1, " two")], [Word(1, 1, "fold")]
    split = draft_of(tokens, heard[:2], agreement, SPECIAL, decode, begin=0.0, cut=False)
    assert (split.certain, split.words) == (5, 2)
    other = [Word(0, 0.5, " won"), *heard[1:]]
    assert draft_of(tokens, other, agreement, SPECIAL, decode, begin=1.0, cut=True) == Draft()


def test_a_repetition_is_dropped_if_nobody_can_say_it_in_that_time() -> None:
    text = "we had a large bang here and now"
    twice = words(f"{text} {text}")
    assert once(twice, 4, 1.0) == twice[:8]
    assert once(twice, 4, 6.0) == twice
    assert once(twice[:8], 0, 0.1) == twice[:8]


def test_transcriptions_come_at_greater_distances_if_they_take_long() -> None:
    pace = Pace(1.0)
    found = []
    for took in (0.0, 0.3, 0.5, 2.0, 60.0):
        pace.took, pace.missing = took, 0.0
        while not pace.due:
            pace.missing += 0.1
        found.append(round(pace.missing, 1))
    assert found == [1.0, 1.0, 1.4, 5.6, LONGEST]
    pace.took, pace.missing = 1.5, 2.9
    assert not pace.may_hurry
    pace.missing = 3.0  # so that even pauses leave half of the time
    assert pace.may_hurry


def test_temperatures_are_tried_for_which_there_is_time() -> None:
    pace = Pace(1.0)
    assert pace.tries == 1  # nobody knows yet how long a transcription takes
    found = []
    for took in (0.05, 0.2, 0.25, 0.3, 2.0):
        pace.took = took
        found.append(pace.tries)
    assert found == [10, 2, 2, 1, 1]


def _text(temperature: float, logprob: float, compression: float) -> WindowText:
    return WindowText([SPECIAL.times, 5], "en", temperature, logprob, compression, 0.0)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([(0.0, -0.5, 1.0)], [(600, (0.0,))]),
        ([(0.0, -2.0, 1.0), (0.4, -0.5, 1.0)], [(600, (0.0,)), (600, (0.2, 0.4))]),
        ([(0.0, -0.5, 9.0), (0.2, -0.5, 1.0)], [(600, (0.0,)), (3000, (0.0, 0.2, 0.4))]),
    ],
)
async def test_a_text_that_is_not_believed_is_tried_in_a_longer_window_or_hotter(
    model: SpeechModel,
    texts: list[tuple[float, float, float]],
    expected: list[tuple[int, tuple[float, ...]]],
) -> None:
    """Believed; a guess; a repetition."""
    asked: list[tuple[int, tuple[float, ...]]] = []
    given = iter(texts)

    async def say(window: Window) -> WindowText:
        asked.append((window.mel.shape[1], window.asked.temperatures))
        return _text(*next(given))

    recording = await Recording.of(speech_file.sound(3), 16000, 80)
    options = SpeechOptions("en", temperatures=(0.0, 0.2, 0.4))
    found = segments(
        say, recording, options, model.tokenizer, SPECIAL, length=3000, draft=Draft()
    )  # fmt: skip
    assert [x.temperature async for x in found] == [texts[-1][0]]
    assert asked == expected


async def test_a_text_of_a_higher_temperature_begins_with_the_certain_tokens(
    model: SpeechModel,
) -> None:
    given = [SPECIAL.times, 11, 12, 13]
    said = await _said(model, [], draft=[*given, 14], certain=4, temperatures=(0.7,), seed=3)
    assert said.tokens[:4] == given
    assert said.certain == 4
    assert said.temperature == 0.7


async def test_a_listener_tries_temperatures_while_it_keeps_up_and_forgets_hot_context(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of its own: transcriptions take 0.2 s, then 2 s; the fourth text was drawn."""
    now = 0.0
    tried: list[tuple[float, ...]] = []
    earlier: list[str] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    async def heard(samples: Any, _: int, asked: SpeechOptions, before: str, **__: Any) -> Any:
        nonlocal now
        tried.append(asked.temperatures)
        earlier.append(before)
        now += 0.2 if len(tried) < 4 else 2.0
        assert asked.thresholds.compression == 3.0
        assert asked.thresholds.logprob is None
        assert asked.thresholds.no_speech == 0.5
        seconds = len(samples) / 16000
        said = [Word(i, i + 0.9, f" {len(tried)}.{i}") for i in range(int(seconds))]
        heat = 0.8 if len(tried) == 4 else 0.0
        yield aggml.models.Segment(0, seconds, "", [], "en", heat, 0, 1, 0, said)

    monkeypatch.setattr(speech_model, "time", Clock)
    monkeypatch.setattr(model, "_segments", heard)
    loud = np.ones(1600, np.float32) / 3
    pieces = model.listen(
        [loud] * 300, temperature=(0.0, 0.3, 0.6), compression_ratio_threshold=3.0,
        logprob_threshold=None, no_speech_threshold=0.5,
    )  # fmt: skip
    final = [w.text async for x in pieces if x.final for w in x.words]
    assert tried[:4] == [(0.0,), (0.0, 0.3), (0.0, 0.3), (0.0, 0.3)]
    assert set(tried[4:]) == {(0.0,)}
    assert any(x.startswith((" 4.", " 3.")) for x in final)
    assert earlier[-1].strip()
    assert not any(f" {k}." in x for x in earlier[4:] for k in (1, 2, 3))


def test_a_pause_is_noticed_behind_speech_alone() -> None:
    sound, rng = LiveSound(), np.random.default_rng(3)
    noise: Any = rng.standard_normal(16000 * 3).astype(np.float32)
    sound.add(noise / 100)
    assert not sound.pauses()  # nobody has spoken
    sound.add(noise / 3)
    assert not sound.pauses()
    sound.add(noise[:8000] / 100)
    assert not sound.pauses()  # half a second
    sound.add(noise[:3200] / 100)
    assert sound.pauses()


async def test_a_model_that_is_behind_is_asked_less_often_and_loses_nothing(
    model: SpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of its own, in which each transcription takes two seconds."""
    now, asked = 0.0, 0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    async def segments(samples: Any, *_: Any, **__: Any) -> Any:
        nonlocal now, asked
        now, asked = now + 2.0, asked + 1
        number = np.round(samples * 1000).astype(int)
        said = []
        for value in np.unique(number):
            at = np.flatnonzero(number == value)
            if len(at) > 8000:
                said.append(Word(at[0] / 16000, (at[-1] + 1) / 16000, f" w{value}"))
        yield aggml.models.Segment(0, 1, "", [], "en", 0, 0, 1, 0, said)

    monkeypatch.setattr(speech_model, "time", Clock)
    monkeypatch.setattr(model, "_segments", segments)
    sound = np.repeat(np.arange(1, 61) / 1000, 16000).astype(np.float32)
    chunks = [sound[i : i + 1600] for i in range(0, len(sound), 1600)]
    final = [w.text async for x in model.listen(chunks) if x.final for w in x.words]
    assert final == [f" w{i}" for i in range(1, 61)]
    assert asked <= 60 / 4 + 2
