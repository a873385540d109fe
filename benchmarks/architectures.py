"""Every architecture compared with llama.cpp: tokens per second of prompts and of single tokens.

    python -m benchmarks.architectures [NAME ...] [--threads 2] [--type q8_0] [--json FILE]

Most models are converted folders with random weights: those whose logits tests/models compares, but
16 times as wide. Models that cannot be widened have the sizes of real ones (sized_models.py). With
``--layouts`` they are files in the layouts of tests/models instead (wider_layouts.py). The
two programs take turns, so that other load slows both; the fastest turn of each counts. Not here:
one model of a real size (generation.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import aggml
from aggml.models import convert
from benchmarks import sized_models, wider_layouts
from benchmarks.generation import CTX, Peer
from benchmarks.llamacpp import CLOCKS
from benchmarks.models import best_tokens, load_decoder, open_model

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
WIDER: Final = 16
PROMPT: Final = 256
TURNS: Final = 7
STEPS: Final = 16
#: Numbers of config.json that grow with the width.
SIZES: Final = (
    "hidden_size", "intermediate_size", "head_dim", "moe_intermediate_size", "vocab_size",
    "shared_expert_intermediate_size", "shared_intermediate_size", "query_pre_attn_scalar",
)  # fmt: skip
#: Cases that cannot be widened: not all their tensors grow with the width.
UNEVEN: Final = (
    "deepseek2", "deepseek2-groups", "deepseek2-lite", "deepseek3", "deepseek3-yarn",
    "granitehybrid", "granitehybrid-dense", "mamba2", "mamba2-tied", "qwen3next",
)  # fmt: skip
ALIKE: Final = {"llama-tied", "llama-biases", "llama-linear", "llama-3", "llama-yarn", "phi3-long",
                "phi3-short"}  # fmt: skip
EXPERTS: Final = 8


@dataclass(frozen=True)
class _Size:
    """The properties of a model that `Peer` needs."""

    vocabulary: int


def _wider(told: dict[str, Any]) -> dict[str, Any]:
    """A case of random_folders, wider; the numbers of heads, layers and experts stay."""
    config = {
        k: x * WIDER if k in SIZES and x is not None else x for k, x in told["config"].items()
    }
    config["max_position_embeddings"] = CTX

    def shape(name: str, sizes: list[int]) -> list[int]:
        of_experts = "router" in name or name.endswith("mlp.gate.weight") or "experts." in name
        counted = of_experts or "block_sparse_moe" in name or name.endswith("sinks")
        first = sizes[0] in (1, EXPERTS) or name.endswith("sinks")
        kept = [counted and first] + [False] * (len(sizes) - 1)
        if "shared_expert_gate" in name:
            kept[0] = True
        return [n if keep else n * WIDER for n, keep in zip(sizes, kept, strict=True)]

    return {
        "config": config,
        "tensors": {name: shape(name, sizes) for name, sizes in told["tensors"].items()},
    }


async def _measured(path: Path, threads: int, vocabulary: int, clock: str) -> dict[str, Any]:
    """Tokens per second of both programs, and their ratios."""
    now = CLOCKS[clock]
    peer = Peer(path, threads, _Size(vocabulary))  # type: ignore[arg-type]  # asks for no more
    ids = np.random.default_rng(0).integers(3, vocabulary, PROMPT).tolist()
    best: dict[str, list[float]] = {"prompt": [np.inf, np.inf], "decode": [np.inf, np.inf]}

    def noted(what: str, who: int, seconds: float | None) -> None:
        if seconds is not None:
            best[what][who] = min(best[what][who], seconds)

    peer.call("count", clock)
    try:
        async with aggml.get_device("CPU").backend(n_threads=threads) as backend:
            with await open_model(path) as file:
                model = await load_decoder(backend, file, ctx=CTX, sequences=1)
            await model.prefill(0, ids)
            for _ in range(TURNS):
                start = now()
                await model.prefill(0, ids)
                noted("prompt", 0, now() - start)
                noted("prompt", 1, peer.call("prompt", ids))
            peer.call("begin")
            at = PROMPT
            for _ in range(TURNS):
                start = now()
                await best_tokens(model, ids[:1], at, STEPS)
                noted("decode", 0, now() - start)
                noted("decode", 1, peer.call("steps", [[x] for x in ids[:STEPS]]))
                at += STEPS
    finally:
        peer.close()
    tokens = {"prompt": PROMPT, "decode": STEPS}
    return {
        what: {
            "ours": round(tokens[what] / mine, 1),
            "llama.cpp": round(tokens[what] / theirs, 1),
            "ratio": round(theirs / mine, 2) if np.isfinite(theirs) else None,
        }
        for what, (mine, theirs) in best.items()
    } | ({"note": peer.note} if peer.note else {})


async def _all(
    names: list[str], dtype: str, threads: int, *, layouts: bool, clock: str
) -> dict[str, Any]:
    from models import random_folders

    cases, found = random_folders.cases(), {}
    even = [x for x, told in cases.items()
            if "ForCausalLM" in str(told["config"]["architectures"])
            and x not in ALIKE and x not in UNEVEN]  # fmt: skip
    every = wider_layouts.measurable() if layouts else [*even, *sized_models.MODELS]
    for name in names or every:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, f"{name}.gguf")
            if layouts:
                size = wider_layouts.write(path, name, dtype).stat().st_size
                row = await _measured(path, threads, wider_layouts.vocabulary(), clock)
            elif name in sized_models.MODELS:
                size = sized_models.write(path, name, dtype).stat().st_size
                row = await _measured(path, threads, sized_models.VOCABULARY, clock)
            else:
                told = _wider(cases[name])
                folder = random_folders.write(Path(place, name), name, kind="f16", told=told)
                size = (await convert(folder, path, dtype)).nbytes
                row = await _measured(path, threads, told["config"]["vocab_size"], clock)
        found[name] = {"bytes": size} | row
        p, d = row["prompt"], row["decode"]
        print(
            f"| {name} | {size / 1e6:.0f} MB | {p['ours']:.0f} | {p['ratio']} | {d['ours']:.0f} | "
            f"{d['ratio']} |",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures")
    parser.add_argument(
        "names", nargs="*", help="cases of tests/models/random_folders.py or sized_models.py"
    )
    parser.add_argument(
        "--layouts", action="store_true", help="names are layouts of tests/models/random_models.py"
    )
    parser.add_argument(
        "--clock", default="perf_counter", choices=CLOCKS,
        help="process_time: seconds of the processor, which other programs change less",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", default="q8_0", help="of the matrices")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    given = parser.parse_args()
    sys.path.append(str(TESTS))
    print("| case | file | prompt, t/s | ratio to llama.cpp | decode, t/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = asyncio.run(
        _all(given.names, given.type, given.threads, layouts=given.layouts, clock=given.clock)
    )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
