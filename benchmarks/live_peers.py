"""Spoken questions are answered: a pipeline of aggml, and faster-whisper and llama.cpp in threads.

Several clients send the same recording. Each is transcribed by Whisper base, and a language model
goes on after the text. Both programs are the same pipeline; only the functions of its stages
differ. faster-whisper and llama-cpp-python block, so they are called by `anyio.to_thread`, which on
asyncio is `asyncio.to_thread` with a limit. A model of llama-cpp-python serves one call at a time,
so a lock guards it. Not here: a sound that goes on (live.py).
"""
# The files: base.pt and multilingual.tiktoken of Whisper, the folder whisper-base-ct2 of the same
# weights for CTranslate2, a language model *.gguf, and a13.wav, all in the folder AGGML_WEIGHTS.

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import numpy as np

import aggml
from aggml.models import SpeechModel, TextModel, read_wav
from aggml.pipeline import Stage, run
from benchmarks.live import RATE, weights
from benchmarks.models import embed
from benchmarks.peers import MissingPeerError, module, need
from benchmarks.timing import Row, progress, versus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    Stages = tuple[Callable[[Any], Awaitable[Any]], Callable[[Any], Awaitable[Any]]]

PART = "speech-peers"
PEER: Final = "faster-whisper and llama-cpp-python in threads"
TOKENS: Final = 24  # of an answer
SECONDS: Final = 10  # of a recording
ASK: Final = "Transcript: {}\nSummary in one sentence:"


def files() -> tuple[Path, Path, Path]:
    """Whisper base as OpenAI's file and as CTranslate2's folder, and a language model.

    Raises:
        MissingPeerError: one of them, or a package, is missing.
    """
    need("faster_whisper", "llama_cpp")
    folder = weights()
    for name in ("base.pt", "multilingual.tiktoken", "whisper-base-ct2"):
        if not (folder / name).exists():
            raise MissingPeerError(f"{name} is not in {folder}")
    language_models = sorted(folder.glob("*.gguf"))
    if not language_models:
        raise MissingPeerError(f"a language model (.gguf) is not in {folder}")
    return folder / "base.pt", folder / "whisper-base-ct2", language_models[0]


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """All rows of this file on the running loop, which is called ``loop``."""
    openai, ct2, gguf = files()
    sound, _ = read_wav((openai.parent / "a13.wav").read_bytes())
    clients = 2 if quick else 8
    found: dict[str, dict[str, float]] = {}
    async with (
        aggml.models.load(openai, slots=4) as whisper,
        aggml.models.load(gguf, ctx=512, slots=4) as model,
    ):
        assert isinstance(whisper, SpeechModel)
        assert isinstance(model, TextModel)
        found["aggml"] = await _measured("aggml", loop, ours(whisper, model), sound, clients)
    found[PEER] = await _measured(PEER, loop, await in_threads(ct2, gguf), sound, clients)
    how = f"{clients} clients, {loop}"
    return [
        versus(PART, f"{what}, {how}", mine, unit, PEER, found[PEER][what])
        for (what, mine), unit in zip(found["aggml"].items(), UNITS, strict=True)
    ]


UNITS: Final = ("s", "s", "s", "ms", "ms")  # of what `_measured` returns


def ours(whisper: SpeechModel, model: TextModel) -> Stages:
    """The stages with aggml's models."""

    async def write(samples: F32) -> str:
        said = whisper.transcribe(samples, language="en", temperature=0.0)
        return "".join([x.text async for x in said])

    async def answer(text: str) -> str:
        tokens = model.generate(ASK.format(text), max_tokens=TOKENS, stop="\n")
        return "".join([x.text async for x in tokens])

    return write, answer


async def in_threads(ct2: Path, gguf: Path) -> Stages:
    """The stages with models that block, in threads."""
    count = os.cpu_count() or 1
    whisper = await anyio.to_thread.run_sync(
        lambda: module("faster_whisper").WhisperModel(
            str(ct2), device="cpu", compute_type="float32", cpu_threads=count, num_workers=4
        )
    )
    model = await anyio.to_thread.run_sync(_llama, gguf, count)
    lock = anyio.Lock()

    def heard(samples: F32) -> str:
        said, _ = whisper.transcribe(samples, language="en", beam_size=1, temperature=0.0)
        return "".join(x.text for x in said)

    def answered(text: str) -> str:
        found = model(ASK.format(text), max_tokens=TOKENS, stop=["\n"], temperature=0.0)
        return str(found["choices"][0]["text"])

    async def write(samples: F32) -> str:
        return await anyio.to_thread.run_sync(heard, samples)

    async def answer(text: str) -> str:
        async with lock:
            return await anyio.to_thread.run_sync(answered, text)

    return write, answer


def _llama(gguf: Path, count: int) -> Any:
    """llama-cpp-python's model.

    With ``LLAMA_PACKING=none`` in the environment its weights stay as they are in the file: on some
    processors its packed kernels end the process (SIGILL).
    """
    llama = module("llama_cpp")
    defaults = llama.llama_cpp.llama_model_default_params

    def unpacked() -> Any:
        found = defaults()
        found.use_extra_bufts = False
        return found

    if os.environ.get("LLAMA_PACKING") == "none":
        llama.llama_cpp.llama_model_default_params = unpacked
    try:
        return llama.Llama(
            str(gguf), n_ctx=512, n_threads=count, n_threads_batch=count, verbose=False
        )
    finally:
        llama.llama_cpp.llama_model_default_params = defaults


async def _measured(
    name: str, loop: str, stages: Stages, sound: F32, clients: int
) -> dict[str, float]:
    """Latency and throughput of all clients at once, and the lag of the loop meanwhile."""
    write, answer = stages
    await answer(await write(sound[:RATE]))  # graphs are compiled, pages are read
    progress(f"{PART}, {name}, {loop}")
    seconds = min(SECONDS, len(sound) // RATE)

    async def source() -> AsyncIterator[F32]:
        for i in range(clients):
            yield sound[: (seconds - i % 3) * RATE]  # nobody sends the same sound

    begin = time.perf_counter()
    async with (
        embed.measured_lag() as lag,
        run(source(), Stage(write, workers=4), Stage(answer, workers=4)) as results,
    ):
        latencies = [time.perf_counter() - begin async for _ in results]
    whole = time.perf_counter() - begin
    spoken = sum(seconds - i % 3 for i in range(clients))
    _, late, most = embed.quantiles(lag.samples)
    return {
        "latency of an answer, median": float(np.median(latencies)),
        "latency of an answer, last": max(latencies),
        "wall time for a second of sound": whole / spoken,
        "1 ms ticker, p99.9": late,
        "1 ms ticker, max": most,
    }
