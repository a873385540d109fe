"""Live speech: Whisper tiny.en hears one sound and eight, as fast as it can and as they come.

The weights and the sound are those of ``make .venv/has-weights``. Not here: whole recordings
(docs/notebook/speech.md).
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

import aggml
from aggml.models import SpeechModel, read_wav
from benchmarks.models import embed
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Budget, Row, progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

PART = "speech"
ROOT: Final = Path(__file__).resolve().parents[1]
FILES: Final = ("tiny.en.pt", "gpt2.tiktoken", "a13.wav")
CHUNK: Final = 1600  # samples: 0.1 s
RATE: Final = 16000


def weights() -> Path:
    """The folder of the weights.

    Raises:
        MissingPeerError: a file is missing.
    """
    folder = Path(os.environ.get("AGGML_WEIGHTS") or ROOT / ".venv" / "weights")
    for name in FILES:
        if not (folder / name).is_file():
            raise MissingPeerError(f"{name} (make .venv/has-weights)")
    return folder


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """All rows of this file on the running loop, which is called ``loop``."""
    folder = weights()
    sound, _ = read_wav((folder / "a13.wav").read_bytes())
    if quick:
        sound = sound[: 10 * RATE]
    rows: list[Row] = []
    async with aggml.models.load(folder / "tiny.en.pt", slots=8) as model:
        assert isinstance(model, SpeechModel)
        await _listen(model, sound[: 2 * RATE], 8, paced=False)  # compiles the graphs
        gc.freeze()  # as docs/async.md recommends: else a collection of all takes 50 ms
        for streams in (1, 8):
            how = f"{streams} stream{'s' * (streams > 1)}, {loop}"
            progress(f"speech, {how}")
            begin, used = time.perf_counter(), time.process_time()
            await _listen(model, sound, streams, paced=False)
            seconds = len(sound) / RATE
            factor = (time.perf_counter() - begin) / seconds
            cores = (time.process_time() - used) / seconds
            rows.append(
                Row(
                    PART, f"real-time factor, {how}", factor, "",
                    budgets=[Budget("", "<=", 0.5)], more={"seconds of cores": cores},
                )
            )  # fmt: skip
            async with embed.measured_lag() as lag:
                delays = await _listen(model, sound, streams, paced=True)
            for name, share in (("median", 0.5), ("p90", 0.9)):
                what = f"delay of final words, {name}, {how}"
                rows.append(Row(PART, what, float(np.quantile(delays, share)), "s"))
            for name, value, held in zip(
                ("median", "p99.9", "max"), embed.quantiles(lag.samples),
                embed.quantiles(lag.held), strict=True,
            ):  # fmt: skip
                budgets = [Budget("", "<=", 5.0)] if name == "p99.9" else []
                rows.append(
                    Row(
                        PART, f"1 ms ticker, listening, {name}, {how}", value, "ms",
                        {"the loop's own work": held}, budgets=budgets,
                    )
                )  # fmt: skip
    return rows


async def _listen(model: SpeechModel, sound: F32, streams: int, *, paced: bool) -> list[float]:
    """Listen to a sound several times at once; how long after each word was said it was final."""
    delays: list[float] = []
    begin = time.perf_counter()

    async def chunks() -> AsyncIterator[F32]:
        for first in range(0, len(sound), CHUNK):
            if paced:
                due = begin + (first + CHUNK) / RATE
                await anyio.sleep(max(0.0, due - time.perf_counter()))
            yield sound[first : first + CHUNK]

    async def one() -> None:
        async for piece in model.listen(chunks()):
            if piece.final:
                now = time.perf_counter() - begin
                delays.extend(now - word.end for word in piece.words)

    async with anyio.create_task_group() as tasks:
        for _ in range(streams):
            tasks.start_soon(one)
    return delays
