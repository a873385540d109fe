"""Tokens a second with and without drafts, in turns: ``python -m benchmarks.speculation MODEL``.

The same requests go to two models of one file, one of them loaded with ``draft``. Texts are those
of this repository: a piece of code that is to be edited, a page that is to be summarized. Both
ratios are medians: of the time, and of seconds of cores, which others on the machine disturb less.
Not here: whether answers stay the same (tests/models/engine/test_speculation.py); how many do is
printed, as files of few bits round differently when a step has more tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import aggml

if TYPE_CHECKING:
    from aggml.models import Model

ROOT = Path(__file__).resolve().parent.parent
CODE = sorted((ROOT / "aggml" / "models" / "kv").glob("*.py"))
PAGES = sorted((ROOT / "docs").glob("*.md"))
ASKS = {
    "edit": "Rewrite this code with every name `slot` replaced by `place`. Answer with the whole "
    "code and nothing else.\n\n```python\n{}\n```",
    "summary": "Summarize this page in five sentences. Use its own words.\n\n{}",
    "story": "Write a long story about a lighthouse, number {}.",
}


def asks(task: str, n: int) -> list[str]:
    """The questions of ``n`` sequences."""
    if task == "story":
        return [ASKS[task].format(i) for i in range(n)]
    files = CODE if task == "edit" else PAGES
    texts = [files[i % len(files)].read_text("utf-8") for i in range(n)]
    return [ASKS[task].format(text[300:1900]) for text in texts]


async def answer(model: Model, texts: list[str], tokens: int, temperature: float) -> Any:
    """Seconds for the answers, from the first token of each on, those of cores, and the tokens."""
    found: list[list[int]] = [[] for _ in texts]
    begun = [0.0] * len(texts)
    cores = 0.0

    async def one(i: int) -> None:
        nonlocal cores
        prompt = model.template.render([{"role": "user", "content": texts[i]}])
        stream = model.generate(
            model.tokenizer.encode(prompt), max_tokens=tokens, temperature=temperature, seed=i,
            stop_ids=(),
        )  # fmt: skip
        async for token in stream:
            if not begun[i]:
                begun[i], cores = time.perf_counter(), time.process_time()
            found[i].append(token.id)

    async with anyio.create_task_group() as tasks:
        for i in range(len(texts)):
            tasks.start_soon(one, i)
    return time.perf_counter() - max(begun), time.process_time() - cores, found


async def main(given: argparse.Namespace) -> None:
    """Print a line for each task and number of sequences."""
    async with aggml.get_device("CPU").backend(n_threads=given.threads) as backend:
        options: dict[str, Any] = {"ctx": 1024, "slots": 8}
        plain = await aggml.models.load(given.model, backend, **options)
        drafted = await aggml.models.load(given.model, backend, draft=given.draft, **options)
        async with plain, drafted:
            for task in given.tasks.split(","):
                for n in map(int, given.sequences.split(",")):
                    texts = asks(task, n)
                    times: list[tuple[float, float]] = []
                    cores: list[float] = []
                    counters = drafted.engine.counters  # type: ignore[attr-defined]
                    before = counters.draft_tokens, counters.accepted_tokens
                    tokens: list[list[int]] = []
                    same: list[list[int]] = []
                    for turn in range(given.rounds + 1):  # the first one builds graphs
                        seconds, plain_cores, tokens = await answer(
                            plain, texts, given.tokens, given.temperature
                        )
                        before = counters.draft_tokens, counters.accepted_tokens
                        guessed, guessed_cores, same = await answer(
                            drafted, texts, given.tokens, given.temperature
                        )
                        if turn:
                            times.append((seconds, guessed))
                            cores.append(plain_cores / guessed_cores)
                    each = n * (given.tokens - 1)
                    line = {
                        "task": task, "sequences": n,
                        "plain": round(each / statistics.median(x for x, _ in times), 1),
                        "drafted": round(each / statistics.median(x for _, x in times), 1),
                        "ratio": round(statistics.median(x / y for x, y in times), 2),
                        "cores": round(statistics.median(cores), 2),
                        "proposed": counters.draft_tokens - before[0],
                        "accepted": counters.accepted_tokens - before[1],
                        "same": sum(x == y for x, y in zip(tokens, same, strict=True)),
                    }  # fmt: skip
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--tasks", default="edit,summary,story")
    parser.add_argument("--sequences", default="1,4,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    anyio.run(main, parser.parse_args())
