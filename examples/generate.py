"""Text from a model: ``python examples/generate.py MODEL.gguf --prompt "Once upon a time"``.

Here: a command line. Not here: models, their tokens and how they are continued (aggml.models).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

import aggml
from aggml.models import ModelError, TextModel
from aggml.models.tokenizers import Vocabulary, VocabularyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Timing:
    """Seconds until the first token, and from there to the last one, with the tokens made then."""

    prompt: float = 0.0
    steps: float = 0.0
    tokens: int = 0


@dataclass
class Result:
    """The report of the command line; for several sequences ``ids`` and ``text`` are lists."""

    prompt_ids: list[int]
    ids: list[list[int]]
    vocabulary: Vocabulary | None
    timing: Timing = field(default_factory=Timing)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON; of one sequence, ids and text without a list around."""
        texts = ["" if self.vocabulary is None else self.vocabulary.decode(x) for x in self.ids]
        one = len(self.ids) == 1
        return {
            "prompt_ids": self.prompt_ids,
            "ids": self.ids[0] if one else self.ids,
            "text": texts[0] if one else texts,
            "prompt_tokens_per_second": _rate(len(self.prompt_ids), self.timing.prompt),
            "tokens_per_second": _rate(self.timing.tokens, self.timing.steps),
        }


def _rate(n: int, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


async def run(given: argparse.Namespace) -> Result:
    """Carry out the command line."""
    device = aggml.get_device(given.device)
    async with (
        device.backend(n_threads=given.threads) as backend,
        await aggml.models.load(
            given.model, backend, ctx=given.ctx, slots=given.parallel, progress=_progress
        ) as model,
    ):
        if not isinstance(model, TextModel):
            raise ModelError(f"a model of the architecture {model.architecture} makes no text")
        try:
            vocabulary = model.tokenizer
        except ModelError:  # then the prompt has to be token ids
            vocabulary = None
        prompt = _prompt_ids(given, vocabulary)
        if len(prompt) + given.n_predict > model.ctx:
            raise ModelError(
                f"{len(prompt)} tokens of prompt and {given.n_predict} more do not fit a "
                f"context of {model.ctx}: give --ctx or a smaller --n-predict"
            )
        unknown = [x for x in prompt if not 0 <= x < model.vocabulary_size]
        if unknown:
            raise ModelError(f"{unknown[0]} is no token of {model.vocabulary_size}")
        result = Result(prompt, [[] for _ in range(given.parallel)], vocabulary)
        shown = given.parallel == 1 and not given.json
        begin = time.perf_counter()

        streams = [
            model.generate(
                prompt, max_tokens=given.n_predict, temperature=given.temperature,
                top_k=given.top_k, top_p=given.top_p, seed=_seed(given.seed, i),
                stop_ids=() if given.ignore_eos else None,
            )
            for i in range(given.parallel)
        ]  # fmt: skip

        async def one(i: int) -> None:
            async for token in streams[i]:
                now, timing = time.perf_counter() - begin, result.timing
                if not timing.prompt:
                    timing.prompt = now
                elif result.ids[i]:
                    timing.tokens += 1
                timing.steps = now - timing.prompt
                result.ids[i].append(token.id)
                if shown:
                    text = f"{token.id} " if vocabulary is None else token.text
                    print(text, end="", flush=True)

        try:
            async with anyio.create_task_group() as tasks:
                for i in range(given.parallel):
                    tasks.start_soon(one, i)
        except ExceptionGroup as errors:  # all of them have the same prompt, and the same error
            raise errors.exceptions[0] from None
        if shown:
            print()
    return result


def _seed(seed: int | None, i: int) -> int | None:
    return None if seed is None else seed + i


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else "\r"
        print(f"loading {done / 1e6:.0f} of {total / 1e6:.0f} MB", end=end, file=sys.stderr)


def _prompt_ids(given: argparse.Namespace, vocabulary: Vocabulary | None) -> list[int]:
    if given.prompt_ids is not None:
        return list(given.prompt_ids)
    if vocabulary is None:
        raise ModelError("the file has no vocabulary: give the prompt as --prompt-ids")
    ids = vocabulary.encode(given.prompt)
    if not ids:
        raise ModelError("the prompt has no tokens")
    return ids


def _ids(text: str) -> list[int]:
    try:
        return [int(x) for x in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 1,2,3") from None


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if found < least:
            raise argparse.ArgumentTypeError(f"{found} is less than {least}")
        return found

    return number


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Continue a prompt with a model of a GGUF file.")
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt",
        metavar="TEXT",
        help="the text to continue; names of special tokens in it stand for these tokens",
    )
    prompt.add_argument(
        "--prompt-ids", type=_ids, metavar="1,2,3", help="the prompt as token ids, instead of text"
    )
    parser.add_argument(
        "--n-predict",
        type=_at_least(0),
        default=128,
        metavar="N",
        help="the most tokens to generate (128)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="temperature of the draws; 0 takes the best token (0.8)",
    )
    parser.add_argument(
        "--top-k",
        type=_at_least(0),
        default=40,
        metavar="K",
        help="draw among the K best tokens; 0: among all (40)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="draw among the best tokens whose probabilities add up to P (0.95)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="seed of the draws; the same seed gives the same text"
    )
    parser.add_argument(
        "--parallel",
        type=_at_least(1),
        default=1,
        metavar="N",
        help="how many sequences to generate together (1)",
    )
    parser.add_argument(
        "--ctx", type=_at_least(1), metavar="N",
        help="positions of a sequence (as the model was trained, at most 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--threads",
        type=_at_least(1),
        metavar="N",
        help="threads that compute (default: all usable cores)",
    )
    parser.add_argument(
        "--device", default="CPU", metavar="NAME", help="name of an aggml device (CPU)"
    )
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end token")
    parser.add_argument(
        "--json", action="store_true",
        help="one object on stdout: prompt_ids, ids, text, prompt_tokens_per_second, "
        "tokens_per_second; of several sequences ids and text are lists",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if not 0 < given.top_p <= 1:
        parser.error(f"--top-p {given.top_p} is not within 0..1")
    if given.temperature < 0:
        parser.error(f"--temperature {given.temperature} is negative")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = _arguments(arguments)
    try:
        result = anyio.run(run, given, backend=given.loop)
    except KeyboardInterrupt:
        return 130
    except EXPECTED as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2
    report = result.as_json()
    if given.json:
        print(json.dumps(report))
        return 0
    if given.parallel > 1:
        for i, ids in enumerate(result.ids):
            text = ids if result.vocabulary is None else result.vocabulary.decode(ids)
            print(f"--- {i + 1}\n{text}")
    print(
        f"\nprompt: {len(result.prompt_ids)} tokens, {report['prompt_tokens_per_second']:.0f}/s, "
        f"first token after {result.timing.prompt * 1e3:.0f} ms; "
        f"then {report['tokens_per_second']:.1f}/s",
        file=sys.stderr,
    )
    return 0


# Printed in one line. Any other exception is a bug of this program and gets a traceback.
EXPECTED: Final = (ModelError, VocabularyError, aggml.AggmlError, OSError)


if __name__ == "__main__":
    sys.exit(main())
