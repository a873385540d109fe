"""Spoken questions are answered: sound, detector of speech, Whisper, search, language model.

    python examples/answer_speech.py VAD WHISPER EMBEDDER LANGUAGE_MODEL SOUND [NOTES]

All models work at the same time: while one question is answered, the next one is heard. SOUND is a
file here; a microphone would give the same chunks. NOTES has a fact on each line. The picture
answer_speech.svg shows what ran when.
"""

import sys
import time
from collections.abc import AsyncIterator

import anyio
import numpy as np
import numpy.typing as npt

import aggml
from aggml.models import Span, load, read_sound
from aggml.pipeline import Stage, run

Sound = npt.NDArray[np.float32]
FACTS = ["The library opens at nine.", "The train to Bonn leaves from platform four."]


async def chunks(samples: Sound, rate: int) -> AsyncIterator[Sound]:
    for first in range(0, len(samples), rate // 10):
        yield samples[first : first + rate // 10]
        await anyio.lowlevel.checkpoint()


async def main() -> None:
    vad_file, whisper_file, embedder_file, model_file, sound = sys.argv[1:6]
    notes = FACTS
    if len(sys.argv) > 6:
        notes = (await anyio.Path(sys.argv[6]).read_text()).splitlines()
    samples, rate = read_sound(await anyio.Path(sound).read_bytes())
    async with (
        load(vad_file) as vad, load(whisper_file) as whisper,
        load(embedder_file) as embedder, load(model_file, ctx=1024) as model,
    ):  # fmt: skip
        known = await embedder.embed(notes)

        async def write(span: Span) -> str | None:
            text = "".join(
                [x.text async for x in whisper.transcribe(span.samples, temperature=(0.0, 0.4))]
            )
            return text.strip() or None  # nothing was said: the item is dropped

        async def search(questions: list[str]) -> list[tuple[str, str]]:
            best = (await embedder.embed(questions) @ known.T).argmax(axis=1)
            return [(q, notes[i]) for q, i in zip(questions, best, strict=True)]

        async def answer(found: tuple[str, str]) -> tuple[str, str, str]:
            prompt = f"Fact: {found[1]}\nQuestion: {found[0]}\nAnswer:"
            tokens = model.generate(prompt, max_tokens=24, stop="\n")
            return *found, "".join([x.text async for x in tokens]).strip()

        begin = time.perf_counter()
        spans = vad.listen(chunks(samples, rate), rate)
        stages = write, Stage(search, batch=8), Stage(answer, workers=4)
        with aggml.trace() as trace:
            async with run(spans, *stages) as results:
                async for question, note, reply in results:
                    print(f"? {question}\n  {note}\n! {reply}")
        wall, busy = time.perf_counter() - begin, [x.busy_seconds for x in results.stats.values()]
        print(results)
        print(f"{np.sum(busy):.2f} s of work in {wall:.2f} s")
        trace.plot("answer_speech.svg", title="answer_speech")


if __name__ == "__main__":
    anyio.run(main)
