"""What grammars cost those who have none, in turns: ``python -m benchmarks.constraints MODEL``.

First tokens a second of sequences that share their steps: all of them free, and half of them bound
by a schema. Then the pauses between two tokens of a free sequence while other requests come one
after the other, without a grammar and each with a new one. Not here: whether answers match
(tests/models/test_constraints.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

import aggml

if TYPE_CHECKING:
    from aggml.models import Model

PROMPT: Final = "A list of all that was found on the island, number {}:\n"
#: Nothing ends an answer of it before its last token.
LONG: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer"}, "minItems": 4096}
_numbers = itertools.count()


def new_schema() -> dict[str, Any]:
    """A schema that was never compiled before."""
    names = [f"field_{next(_numbers)}_{i}" for i in range(8)]
    kinds = ({"type": "integer"}, {"type": "string", "maxLength": 9}, {"enum": names[:3]})
    return {
        "type": "object", "properties": {x: kinds[i % 3] for i, x in enumerate(names)},
        "required": names, "additionalProperties": False,
    }  # fmt: skip


async def rate(model: Model, sequences: int, bound: int, tokens: int) -> tuple[float, float]:
    """Tokens of sequences in one step, of which ``bound`` have a schema: a second, and of a core.

    The second one is little disturbed by other processes.
    """
    made, begun, used = 0, 0.0, 0.0

    async def one(i: int) -> None:
        nonlocal made, begun, used
        stream = model.generate(
            PROMPT.format(i), max_tokens=tokens, stop_ids=(), schema=LONG if i < bound else None
        )
        async for _ in stream:
            begun, used = begun or time.perf_counter(), used or time.process_time()
            made += 1

    async with anyio.create_task_group() as tasks:
        for i in range(sequences):
            tasks.start_soon(one, i)
    assert made == sequences * tokens
    return made / (time.perf_counter() - begun), made / (time.process_time() - used)


async def pauses(model: Model, tokens: int, *, grammars: bool) -> tuple[list[float], int]:
    """Seconds between tokens of one sequence beside requests that follow each other."""
    found: list[float] = []
    asked = 0
    async with anyio.create_task_group() as tasks:

        async def others() -> None:
            nonlocal asked
            while True:
                schema = new_schema() if grammars else None
                asked += 1
                stream = model.generate(
                    PROMPT.format(asked), max_tokens=4, stop_ids=(), schema=schema
                )
                async for _ in stream:
                    pass

        stream = model.generate(PROMPT.format("zero"), max_tokens=tokens, stop_ids=())
        await anext(stream)
        tasks.start_soon(others)
        last = time.perf_counter()
        async for _ in stream:
            now = time.perf_counter()
            found.append(now - last)
            last = now
        tasks.cancel_scope.cancel()
    return found, asked


def _of(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(times)
    at = {"p50": 0.5, "p99": 0.99}
    found = {k: ordered[min(len(ordered) - 1, int(x * len(ordered)))] for k, x in at.items()}
    return {k: round(1000 * x, 1) for k, x in (found | {"max": ordered[-1]}).items()}


async def main(given: argparse.Namespace) -> None:
    """Print a line for each comparison."""
    async with (
        aggml.get_device("CPU").backend(n_threads=given.threads) as backend,
        aggml.models.load(given.model, backend, ctx=1024, slots=8, prefix_cache=0) as model,
    ):
        n = given.sequences
        rates: list[tuple[tuple[float, float], tuple[float, float]]] = []
        for turn in range(given.rounds + 1):  # the first one builds graphs
            turns = [await rate(model, n, bound, given.tokens) for bound in (0, n // 2)]
            if turn:
                rates.append((turns[0], turns[1]))
        print(json.dumps({
            "sequences": n, "bound": n // 2,
            "free": round(statistics.median(x[0] for x, _ in rates), 1),
            "mixed": round(statistics.median(x[0] for _, x in rates), 1),
            "ratio": round(statistics.median(y[0] / x[0] for x, y in rates), 3),
            "ratio by a core's time": round(statistics.median(y[1] / x[1] for x, y in rates), 3),
            "ratios": [[round(a / b, 3) for a, b in zip(y, x, strict=True)] for x, y in rates],
        }), flush=True)  # fmt: skip
        without: list[float] = []
        new: list[float] = []
        requests = [0, 0]
        for _ in range(given.rounds):
            for i, (times, grammars) in enumerate(((without, False), (new, True))):
                more, asked = await pauses(model, given.pauses, grammars=grammars)
                times += more
                requests[i] += asked
        a, b = _of(without), _of(new)
        print(json.dumps({
            "pauses": len(new), "requests": requests, "without grammars": a, "new grammars": b,
            "ratio": {k: round(b[k] / a[k], 2) for k in a},
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pauses", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    anyio.run(main, parser.parse_args())
