"""The detector of speech: its probabilities are those of Silero's ONNX graph, whatever the chunks.

voice.npz has the probabilities of onnxruntime (benchmarks/make_voice.py). Not here: the weights
(voice_file.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models import voice_file, weights

import aggml
from aggml import InvalidArgument, InvalidState, Unsupported
from aggml.models import MemoryShortage, ModelError, VoiceModel, fit, read_wav
from aggml.models.speech.spans import SpanFinder, SpanRules
from aggml.models.speech.voice import SHAPES
from aggml.models.speech.waves import Resampler, resample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECORDED: Final = np.load(Path(__file__).with_name("voice.npz"))
EASY: Final = {"threshold": 0.5, "silence": 0.1, "shortest": 0.1, "pad": 0.03}


@pytest.fixture
async def vad(tmp_path: Path) -> AsyncIterator[VoiceModel]:
    async with aggml.models.load(voice_file.write(tmp_path / "vad.safetensors")) as loaded:
        assert isinstance(loaded, VoiceModel)
        yield loaded


async def spans_of(vad: Any, chunks: Any, rate: int = 16000, **options: Any) -> list[Any]:
    return [x async for x in vad.listen(chunks, rate, **{**EASY, **options})]


def in_pieces(sound: Any, *sizes: int) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(sound):
        size = sizes[len(found) % len(sizes)]
        found.append(sound[at : at + size])
        at += size
    return found


async def test_probabilities_are_those_of_the_onnx_graph(vad: VoiceModel) -> None:
    found = await vad.probabilities(voice_file.sound())
    assert found.shape == RECORDED["random"].shape
    assert np.abs(found - RECORDED["random"]).max() < 1e-5


async def test_trained_probabilities_are_those_of_the_onnx_graph() -> None:
    samples, _ = read_wav(weights.find("a13.wav").read_bytes())
    async with aggml.models.load(weights.find("silero_vad_16k.safetensors")) as vad:
        assert isinstance(vad, VoiceModel)
        found = await vad.probabilities(samples)
        assert np.abs(found - RECORDED["trained"]).max() < 1e-5
        spans = [x async for x in vad.listen(in_pieces(samples, 700))]
        assert 5 < len(spans) < 15
        for span in spans:
            inside = RECORDED["trained"][int(span.start / 0.032) + 1 : int(span.end / 0.032)]
            assert inside.mean() > 0.5
            first = round(span.start * 16000)
            assert np.array_equal(span.samples, samples[first : first + len(span.samples)])
        silence = np.zeros(32000, np.float32)
        noise = np.random.default_rng(3).standard_normal(32000).astype(np.float32) / 20
        assert [x async for x in vad.listen([silence, noise, silence])] == []


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("sizes", [(512,), (1,) * 3 + (2000,), (333,), (48200,), (16384, 0, 5)])
async def test_spans_do_not_depend_on_the_chunks(vad: VoiceModel, sizes: tuple[int, ...]) -> None:
    whole = await spans_of(vad, [voice_file.sound()])
    found = await spans_of(vad, in_pieces(voice_file.sound(), *sizes))
    assert len(whole) > 1
    assert [(x.start, x.end) for x in found] == [(x.start, x.end) for x in whole]
    assert all(np.array_equal(x.samples, y.samples) for x, y in zip(found, whole, strict=True))


async def test_listeners_of_one_model_do_not_disturb_each_other(vad: VoiceModel) -> None:
    sounds = [voice_file.sound()[1000 * i :] for i in range(5)]
    alone = [await spans_of(vad, [x]) for x in sounds]
    found: list[Any] = [None] * 5

    async def one(i: int) -> None:
        found[i] = await spans_of(vad, in_pieces(sounds[i], 400 + 100 * i))

    async with anyio.create_task_group() as tasks:
        for i in range(5):
            tasks.start_soon(one, i)
    for these, those in zip(found, alone, strict=True):
        assert [(x.start, x.end) for x in these] == [(x.start, x.end) for x in those]


async def test_other_rates_channels_and_integers_are_heard_alike(vad: VoiceModel) -> None:
    sound = voice_file.sound()
    expected = await spans_of(vad, [sound])
    stereo = np.stack([sound, sound], axis=1)
    integers = np.round(sound * 32767).astype(np.int16)
    for chunks, rate in (
        (in_pieces(stereo, 999), 16000),
        (in_pieces(integers, 999), 16000),
        (in_pieces(resample(sound, 16000, 48000), 1234), 48000),
    ):
        found = await spans_of(vad, chunks, rate)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert abs(one.start - other.start) < 0.05
            assert abs(one.end - other.end) < 0.05


async def test_a_span_comes_as_soon_as_it_is_over_and_the_source_is_closed(vad: VoiceModel) -> None:
    taken, closed = 0, False

    async def chunks() -> AsyncIterator[Any]:
        nonlocal taken, closed
        try:
            for piece in in_pieces(voice_file.sound(), 512):
                taken += 1
                yield piece
        finally:
            closed = True

    spans = vad.listen(chunks(), **EASY)  # type: ignore[arg-type]
    span = await anext(spans)
    assert taken * 0.032 < span.end + 0.2
    await spans.aclose()
    assert closed


@pytest.mark.long
@given(
    probabilities=st.lists(st.sampled_from([0.1, 0.4, 0.9]), max_size=40),
    silence=st.integers(0, 4), shortest=st.integers(0, 3), pad=st.sampled_from([0, 1, 2, 9, 30]),
    longest=st.none() | st.integers(1, 5), rest=st.integers(0, 511),
)  # fmt: skip
@example(  # noise, and speech whose beginning lies before the end of the noise
    probabilities=[0.9, 0.1, 0.9, 0.9, 0.9], silence=0, shortest=3, pad=30, longest=None, rest=0
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_spans_hold_the_speech_and_the_samples_of_their_time(
    probabilities: list[float], silence: int, shortest: int, pad: int, longest: int | None,
    rest: int,
) -> None:  # fmt: skip
    rules = SpanRules(0.5, silence * 512, shortest * 512, pad * 100, longest and longest * 512)
    finder = SpanFinder(rules)
    sound = np.arange(512 * len(probabilities) + rest, dtype=np.float32)
    spans = [finder.take(sound[512 * i : 512 * (i + 1)], p) for i, p in enumerate(probabilities)]
    spans.append(finder.finish(sound[512 * len(probabilities) :]))
    found = [x for x in spans if x is not None]
    before = 0.0
    for span in found:
        first, last = round(span.start * 16000), round(span.end * 16000)
        assert before <= span.start < span.end <= len(sound) / 16000
        assert np.array_equal(span.samples, sound[first:last])
        assert longest is None or last - first <= max(longest, 1) * 512 + pad * 200 + 512
        before = span.end
    loud = [i for i, p in enumerate(probabilities) if p > 0.5]
    if not shortest:  # then no speech is dropped
        for i in loud:
            middle = (512 * i + 256) / 16000
            assert any(x.start <= middle <= x.end for x in found), (i, found)
    for span in found:  # each has speech, unless it goes on after a cut
        windows = range(int(span.start * 16000) // 512, -(-int(span.end * 16000) // 512))
        assert longest is not None or set(windows) & set(loud)


@pytest.mark.long
@given(
    rate=st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_resampled_chunks_are_the_resampled_whole(rate: int, sizes: list[int]) -> None:
    sound = np.random.default_rng(1).standard_normal(sum(sizes)).astype(np.float32)
    resampler, at, found = Resampler(rate), 0, []
    for size in sizes:
        found.append(resampler.take(sound[at : at + size]))
        at += size
    found.append(resampler.finish())
    whole = resample(sound, rate)
    assert np.concatenate(found).shape == whole.shape
    assert np.allclose(np.concatenate(found), whole, atol=1e-6)


async def test_what_it_cannot_do_is_refused(vad: VoiceModel) -> None:
    with pytest.raises(Unsupported, match="silero-vad"):
        vad.generate("x")
    with pytest.raises(Unsupported, match="no vectors"):
        await vad.embed(["x"])
    assert vad.memory.total > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"rate": "x"}, "rate is 'x'"),
        ({"threshold": 0}, "threshold is 0"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"silence": -1}, "silence is -1"),
        ({"pad": float("nan")}, "pad is nan"),
        ({"shortest": None}, "shortest is None"),
        ({"chunks": 3}, "chunks is 3"),
        ({"chunks": b"abc"}, "chunks is b'abc'"),
        ({"chunks": np.zeros(3, np.float32)}, "chunks is one array of the shape (3,)"),
    ],
)
async def test_wrong_arguments_are_refused_at_the_call(
    vad: VoiceModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        vad.listen(**{"chunks": [], **options})
    assert message in str(caught.value)


async def test_what_it_takes_is_said_before(tmp_path: Path) -> None:
    path = voice_file.write(tmp_path / "vad.safetensors")
    said = await fit(path)
    assert (said.architecture, said.slots, said.cache) == ("silero-vad", 1, None)
    told: list[tuple[int, int]] = []
    async with aggml.models.load(path, progress=lambda *x: told.append(x)) as vad:
        await spans_of(vad, [voice_file.sound()])
        assert 0 < vad.memory.total <= said.total
    assert told
    assert told[-1][0] == told[-1][1] > 0
    for take in (fit, aggml.models.load):
        with pytest.raises(MemoryShortage, match=r"^\[fit\] silero-vad needs .* memory= is 1,?000"):
            await take(path, memory=1000)
    with pytest.raises(InvalidArgument, match=r"^\[fit\] draft is given"):
        await fit(path, draft="lookup")
    with pytest.raises(InvalidArgument, match=r"^\[fit\] adapters"):
        await fit(path, adapters=[("x", 1.0)])


@pytest.mark.parametrize("chunk", [["x"], np.zeros((1, 2, 3)), np.array([np.nan]), None])
async def test_a_chunk_that_is_no_audio_is_refused(vad: VoiceModel, chunk: Any) -> None:
    with pytest.raises(InvalidArgument, match="audio"):
        await spans_of(vad, [np.zeros(5, np.float32), chunk])


async def test_a_closed_detector_says_so(vad: VoiceModel) -> None:
    spans = vad.listen(in_pieces(voice_file.sound(), 512), **EASY)  # type: ignore[arg-type]
    await anext(spans)
    await vad.aclose()
    with pytest.raises(InvalidState, match="closed"):
        await anext(spans)
    with pytest.raises(InvalidState, match="closed"):
        vad.listen([])


@pytest.mark.parametrize("name", [*SHAPES])
async def test_a_file_that_lacks_a_tensor_or_has_another_shape_is_refused(
    tmp_path: Path, name: str
) -> None:
    path = voice_file.write(tmp_path / "a.safetensors", **{name.replace(".", "__"): np.zeros(3)})
    with pytest.raises(ModelError) as caught:
        await aggml.models.load(path)
    assert name in str(caught.value)
    if name in ("stft_conv.weight", "lstm_cell.weight_ih"):
        return  # without it, the file is not known to be one of these
    path = voice_file.write(tmp_path / "b.safetensors", **{name.replace(".", "__"): None})
    with pytest.raises(ModelError) as caught:
        await aggml.models.load(path)
    assert name in str(caught.value)
