"""The short programs of examples/: each runs on both loops and prints the expected lines.

Not here: the larger programs (embed, generate, service, two_devices, overlapped_transfer).
"""

from __future__ import annotations

import functools
import json
import re
import runpy
from pathlib import Path

import anyio
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: What each program prints, as a regular expression for each line that matters, in order.
SHORT = {
    "hello": [r"\[\[1\. 1\.\]\]"],
    "without_a_loop": [r"0\.0 \[0\.25 0\.25 0\.25 0\.25\]", r"1\.0 \[0\.03", r"10\.0 \[0\. "],
    "blocking_model": ["One: ", "Two: ", "Three: ", "Four: "],
    "many_results": ["all together: True", "one by one: 8"],
    "cancel": ["cancelled: True", "Future raises: Aborted", r"usable: \[0\. 1\. 2\. 3\.\]"],
    "failure": [
        r"refused: \[Backend.set\] .* got \(5,\)",
        "failed: DeviceError because of .*injected fault",
        r"by that: \[1\. 1\. 1\. 1\.\]",
        r"write: \[1\. 1\. 1\. 1\.\]",
    ],
    "overlap": ["right: True"],
    "schedule": ["split 0 on 0 A", "split 1 on 1 B", "0.0", "0.0", "0.0", "1.0"],
    "custom_op": [r"10\. 20\. 30\. 40\.", r"0\. +0\. +0\. 10\.", r"10\. 20\. 50\. 90\."],
    "quantize": [r"q8_0: 8\.50 bits.* [01]\.\d%", "q6_K: 6.56", "q4_K: 4.50", "q4_0: 4.50"],
    "model_file": [r"tiny \[<Tensor output.weight q8_0 \[256, 8\]>\]", r"\[\[.*\]\]"],
    "continue_text": [r"llama, \d+ tokens", "Once upon a time", r"next token: \d+ '"],
    "chat": ["', (?:length|stop)", r"not computed again: [1-9]\d* tokens"],
    "find_a_race": ["without an event: .*Missing: an event", "with an event: 1024.0"],
    "timeline": [r"SIM.*graph_compute.*copy", "OTHER.*copy"],
    "train": [
        r"epoch  1: .*validation loss",
        r"epoch 30: .* accuracy (?:9\d|100)",
        r"three of the test",
    ],
    "shared_memory": ["same memory: True", r"result: \[0\.  0\.5 1\.  1\.5\]", "again: True"],
}
LONG = {
    "answer_documents",
    "answer_speech",
    "ask",
    "embed",
    "generate",
    "many_machines",
    "overlapped_transfer",
    "prefetch_experts",
    "prefetch_weights",
    "service",
    "two_devices",
}


def test_every_program_is_listed_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHORT, *LONG}


@pytest.mark.long(cases=8)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", SHORT)
def test_a_program_prints_what_it_shows(
    name: str,
    loop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    monkeypatch.setattr(anyio, "run", functools.partial(anyio.run, backend=loop))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(".*".join(SHORT[name]), printed, re.DOTALL), printed
    if name == "timeline":
        assert (tmp_path / "timeline.svg").read_text().startswith("<svg")
        assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


@pytest.mark.parametrize("name", SHORT)
def test_a_short_program_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= (
        20 if name == "hello" else 60
    )


def test_the_readme_names_every_program() -> None:
    named = set(re.findall(r"\]\(([\w/]+(?:\.py)?)\)", (EXAMPLES / "README.md").read_text()))
    entries = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert named >= entries - {"__pycache__"}
