"""Charts of a run, one for each question: aggml's bar beside those of other programs.

``python -m benchmarks.chart RESULTS.json FOLDER`` draws a run that was kept. Here: the questions,
and the SVG, which is as wide as the screen of a phone. Not here: the measurements.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["QUESTIONS", "Question", "charts", "draw"]

OURS: Final = "aggml"
COLOURS: Final = {
    OURS: "#0f766e", "ggml": "#8a94a3", "llama.cpp": "#8a94a3", "ik_llama.cpp": "#b9a06c",
    "numpy": "#72a4c0", "PyTorch": "#d08c3f", "onnxruntime": "#6f9f63", "OpenVINO": "#8f78b3",
}  # fmt: skip
OTHER: Final = "#a3818c"
WIDTH: Final = 420
_LESS: Final = ("us", "ms")
_UNITS: Final = {"t/s": "tokens/s", "/s": "sentences/s"}


class Question(NamedTuple):
    """One chart.

    Attributes:
        name: of its file.
        text: above it.
        part: of the benchmarks.
        rows: which rows of the part it shows; the group is the label of a row.
    """

    name: str
    text: str
    part: str
    rows: str


QUESTIONS: Final = (
    Question("prompt", "How fast is a prompt of 512 tokens read?", "generate", r"pp512, (.*)"),
    Question("one", "How fast is one answer written?", "generate", r"tg128, (.*)"),
    Question("eight", "How fast are eight answers at a time?", "generate", r"tg128 x 8, (.*)"),
    Question("service", "How many tokens does the service give?", "service", r"(\d+ clients?)"),
    Question(
        "pauses", "How long is the pause between two tokens of the service (99th percentile)?",
        "service", r"(\d+ clients?), between tokens, p99",
    ),
    Question(
        "embeddings", "How many sentences are embedded (sentences x tokens)?", "embeddings",
        r"aggml (.*)",
    ),
    Question("products", "How fast are large products?", "gemm", r"mul_mat (\S+ 4096 x 512 .*)"),
    Question(
        "awaits", "How long does an await take?", "await", r"(.*), submit to resumed, asyncio",
    ),
)  # fmt: skip


def charts(result: Mapping[str, Any]) -> dict[str, str]:
    """The charts that a run can answer, by the name of the question.

    Args:
        result: as ``python -m benchmarks`` writes it.
    """
    about = result["machine"]
    kind = about.get("core") or about.get("isa") or ""
    below = f"{about['cpu']} ({kind}), {result['threads']} threads, {about['time'][:10]}"
    if about.get("commit"):
        below += f", commit {about['commit'][:10]}"
    found = {}
    for question in QUESTIONS:
        rows = [
            (match[1], row)
            for row in result["rows"]
            if row["part"] == question.part
            and row["peers"]
            and (match := re.fullmatch(question.rows, row["what"]))
        ]
        if rows:
            found[question.name] = _chart(question.text, rows, below)
    return found


def _program(peer: str, label: str) -> str:
    """The name of a peer without the types that the label of the row has, too."""
    first, _, rest = peer.partition(" ")
    return first if rest and rest in label else peer


def _chart(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]], below: str) -> str:
    measured = str(rows[0][1]["unit"])
    unit = _UNITS.get(measured, measured)
    less = unit in _LESS
    groups: list[tuple[str, list[tuple[str, float]]]] = []
    for label, row in rows:
        bars = [(OURS, float(row["value"]))]
        bars += [(_program(k, label), float(x["value"])) for k, x in row["peers"].items()]
        groups.append((label, bars))
    longest = max(value for _, bars in groups for _, value in bars)
    out: list[str] = []
    y = 20
    for line in _lines(title):
        out.append(f'<text x="12" y="{y}" font-size="15" font-weight="bold">{escape(line)}</text>')
        y += 19
    better = "shorter is better" if less else "longer is better"
    out.append(f'<text x="12" y="{y}" fill="#5a6270">{escape(unit)}; {better}</text>')
    y += 10
    for label, bars in groups:
        y += 17
        out.append(f'<text x="12" y="{y}">{escape(label)}</text>')
        y += 5
        for name, value in bars:
            length = max(value / longest * (WIDTH - 210), 1)
            known = next((c for k, c in COLOURS.items() if name.startswith(k)), OTHER)
            weight = ' font-weight="bold"' if name == OURS else ""
            out.append(
                f'<rect x="138" y="{y}" width="{length:.1f}" height="13" rx="2" fill="{known}"/>'
                f'<text x="132" y="{y + 11}" font-size="11" text-anchor="end"{weight}>'
                f"{escape(name[:22])}</text>"
                f'<text x="{142 + length:.1f}" y="{y + 11}" font-size="11"{weight}>'
                f"{_figure(value)}</text>"
            )
            y += 16
    y += 18
    out.append(f'<text x="12" y="{y}" font-size="10" fill="#5a6270">{escape(below)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12}" '
        f'width="{WIDTH}" height="{y + 12}" font-family="sans-serif" font-size="12" '
        f'fill="#1d2430"><rect width="100%" height="100%" rx="6" fill="white"/>'
        f"{''.join(out)}</svg>\n"
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _lines(text: str, most: int = 40) -> list[str]:
    """A text in lines that fit the width."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the charts of a run into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in charts(result).items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


if __name__ == "__main__":
    given, out_folder = map(Path, sys.argv[1:3])
    for path in draw(json.loads(given.read_text(encoding="utf-8")), out_folder):
        print(path)
