"""``aggml bench``: the best that this machine can do, and a model's share of it.

Here: the figures and their table. Not here: the loops that measure the machine
(aggml/devices/cpu/roofline.py), comparisons with other programs (benchmarks/ of the repository).
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

import aggml
from aggml.cli.shared import UserPath, bar, device_options, load_model, run_on_loop, show
from aggml.devices.cpu import CPUBackend, Roofline
from aggml.models import Hyperparameters, TextModel, open_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml import Tensor
    from aggml.models import Model

__all__ = ["Work", "bench", "work_of"]

ROUNDS: Final = 5  # of the machine; the best counts, since other programs only slow a round down
PROMPT: Final = 512  # tokens of the prompt that is timed


@dataclass(frozen=True)
class Work:
    """How much a model does for one token.

    Attributes:
        bytes: bytes of weights that are read.
        operations: multiplications and additions of the matrix products.
        kind: the unit that computes most of them: "f32", "bf16" or "int8".
    """

    bytes: int
    operations: int
    kind: str


def work_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Work:
    """The work of one token: each matrix once; of the experts only the share that a token uses.

    The table of embeddings counts only if the logits are computed with it, too.
    """
    hp = Hyperparameters(metadata)
    experts = hp.integer("expert_count", 0)
    share = hp.integer("expert_used_count", experts) / experts if experts else 1.0
    tied = "output.weight" not in tensors
    nbytes = operations = 0.0
    kinds: dict[str, float] = {}
    for name, tensor in tensors.items():
        table = name.startswith(("token_embd.", "position_embd.", "token_types."))
        if sum(n > 1 for n in tensor.ne) < 2 or (table and not (tied and name[:6] == "token_")):
            continue
        part = share if "_exps." in name else 1.0
        count = part * float(np.prod(tensor.ne))
        kind = _unit(tensor)
        kinds[kind] = kinds.get(kind, 0.0) + count
        nbytes += part * tensor.nbytes
        operations += 2 * count
    most = max(kinds, key=lambda kind: kinds[kind]) if kinds else "f32"
    return Work(round(nbytes), round(operations), most)


def _unit(tensor: Tensor) -> str:
    """The unit that multiplies a matrix of this type."""
    if tensor.dtype.is_quantized:
        return "int8"
    return "bf16" if tensor.dtype is aggml.DType.BF16 else "f32"


@click.command
@click.argument("model", required=False, type=UserPath(exists=True, path_type=Path))
@device_options
@click.option(
    "-n", "--tokens", type=click.IntRange(2), default=64, show_default=True,
    help="Length of the answer that is timed, in tokens.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="How often the model is timed; the median is printed.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")
@run_on_loop
async def bench(
    model: Path | None,
    device: tuple[str, ...],
    threads: int | None,
    ctx: int | None,
    cache: str,
    tokens: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure this machine, and what share of its speed MODEL reaches.

    Of the machine: the bytes that it reads per second, and the operations per second of each kind
    of arithmetic unit. Of MODEL: tokens per second of a prompt and of an answer, and the share of
    the machine's speed that each of them is.
    """
    async with aggml.get_device("CPU").backend(n_threads=threads) as backend:
        assert isinstance(backend, CPUBackend)
        used = backend.n_threads
    found: dict[str, Any] = {"aggml": aggml.__version__, "threads": used}
    found["roofline"] = roofline = _machine(used)
    if model is not None:
        file = await open_model(model)
        work = work_of(file.tensors, file.metadata)
        file.close()
        async with load_model(model, device, threads, ctx, cache) as loaded:
            on = [name for name in device if name != "CPU"]
            found["model"] = {"file": str(model), "architecture": loaded.architecture}
            found["model"] |= await _model(loaded, tokens, rounds)
        if not on:
            found["model"] |= _shares(found["model"], work, roofline)
    if as_json:
        show(found)
    else:
        click.echo("\n".join(_table(found)))


def _machine(threads: int) -> dict[str, float]:
    """Bytes or operations per second for each figure, the best of `ROUNDS` rounds."""
    roofline = Roofline(threads)
    found: dict[str, float] = {}
    measured: list[tuple[str, Callable[[], float]]] = [("read", roofline.read)]
    measured += [(name, functools.partial(roofline.peak, name)) for name in roofline.peaks]
    with bar("measuring the machine") as progress:
        for k in range(ROUNDS):
            for name, measure in measured:
                found[name] = max(found.get(name, 0.0), measure())
            if progress is not None:
                progress(k + 1, ROUNDS)
    return found


async def _model(model: Model, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of prompts, and of answers if the model makes any."""
    prompts, answers = [], []
    length = min(PROMPT, model.ctx - tokens - 1 if isinstance(model, TextModel) else model.ctx)
    ids = [3 + k % (model.vocabulary_size - 3) for k in range(max(1, length))]
    with bar("measuring the model") as progress:
        for k in range(rounds + 1):  # the first round builds graphs and packs weights
            begin = time.perf_counter()
            if isinstance(model, TextModel):
                times = await _times(model, ids, tokens)
                answers.append((len(times) - 1) / max(times[-1] - times[0], 1e-9))
                prompts.append(len(ids) / (times[0] - begin))
            else:
                await model.embed_ids([ids])
                prompts.append(len(ids) / (time.perf_counter() - begin))
            if progress is not None:
                progress(k + 1, rounds + 1)
    found: dict[str, Any] = {
        "prompt_tokens": len(ids), "prompt_tokens_per_second": statistics.median(prompts[1:])
    }  # fmt: skip
    if answers:
        found["tokens_per_second"] = statistics.median(answers[1:])
    return found


async def _times(model: TextModel, ids: Sequence[int], tokens: int) -> list[float]:
    """The times in seconds at which the tokens of an answer came."""
    options: dict[str, Any] = {"max_tokens": tokens, "stop_ids": ()}
    return [time.perf_counter() async for _ in model.generate(ids, **options)]


def _shares(model: Mapping[str, Any], work: Work, roofline: Mapping[str, float]) -> dict[str, Any]:
    """The shares of the machine's best that the model reaches."""
    unit = f"{work.kind} tiles" if f"{work.kind} tiles" in roofline else work.kind
    unit = unit if unit in roofline else "f32"
    found: dict[str, Any] = {
        "bytes_per_token": work.bytes,
        "operations_per_token": work.operations,
        "unit": unit,
        "prompt_share": model["prompt_tokens_per_second"] * work.operations / roofline[unit],
    }
    if "tokens_per_second" in model:
        found["share"] = model["tokens_per_second"] * work.bytes / roofline["read"]
    return found


def _table(found: Mapping[str, Any]) -> list[str]:
    """The figures as lines of text."""
    lines = [f"this machine, {found['threads']} threads"]
    for name, value in found["roofline"].items():
        what = "reads" if name == "read" else f"multiplies and adds, {name}"
        lines.append(f"  {what:32}{value / 1e9:10.1f} {'GB/s' if name == 'read' else 'GOP/s'}")
    model = found.get("model")
    if model is None:
        return lines
    lines.append(f"{model['file']} ({model['architecture']})")
    rows = [("prompt", "prompt_tokens_per_second", "prompt_share", model.get("unit"))]
    rows += [("answer", "tokens_per_second", "share", "reading")]
    for what, speed, share, of in rows:
        if speed in model:
            told = f"{model[share] * 100:6.0f} % of {of}" if share in model else ""
            lines.append(f"  {what:32}{model[speed]:10.1f} tokens/s{told}")
    return lines
