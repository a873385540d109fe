"""pipeline: a model whose layers lie on several machines, and which is used like any other.

Here: the cut, starting the stages, the object that users hold. Not here: the stages (stages.py).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import anyio.to_thread

from aggml import Backend, InvalidArgument, Unsupported
from aggml.models.stages import (
    LONGEST,
    SHARE,
    Description,
    TextModel,
    describe_file,
    open_model,
    open_vocabulary,
    sources_of,
)
from aggml.process.paths import user_path
from aggml.ray.cutting import cut
from aggml.ray.decoder import PipelineDecoder
from aggml.ray.engine import PipelineEngine
from aggml.ray.files import source_of
from aggml.ray.measuring import kinds, samples, spread
from aggml.ray.stage import Duty
from aggml.ray.stages import Stages
from aggml.ray.traces import PipelineTrace

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from aggml.models.stages import ModelFile, Vocabulary
    from aggml.ray.measuring import Measured, Sample
    from aggml.ray.stage import Facts

__all__ = ["PipelineModel", "pipeline"]

Opener = Callable[[], Backend]
_Costs = Sequence[float] | Sequence[Sequence[float]]


class PipelineModel(TextModel):
    """What `pipeline` returns: a model that continues text, on many machines."""

    _decoder: PipelineDecoder

    #: The costs by which the layers were cut: the time of each layer, or of each layer on each
    #: stage if they were measured. Given as ``costs`` to another pipeline on such nodes, they save
    #: measuring again.
    costs: _Costs = ()

    @property
    def stages(self) -> list[Facts]:
        """The node, the layers and the bytes of weights of each stage."""
        return list(self._decoder.stages.facts)

    @property
    def losses(self) -> int:
        """How often stages were lost and restarted."""
        return self._decoder.stages.epoch

    def trace(self) -> PipelineTrace:
        """Record what all stages do: ``async with model.trace() as t: ...``; then ``t.save``."""
        return PipelineTrace(self._decoder.stages)

    async def busy(self) -> list[float]:
        """Seconds that each stage has computed since it was started."""
        return await self._decoder.stages.busy()


async def pipeline(
    path: str | os.PathLike[str],
    stages: int = 2,
    *,
    ctx: int | None = None,
    slots: int = 4,
    cache: str = "f16",
    threads: int = 1,
    backend: Opener | Sequence[Opener] | None = None,
    costs: _Costs | Literal["measured", "bytes"] = "measured",
    speeds: Sequence[float] | None = None,
    limits: Sequence[float] | None = None,
    resources: Mapping[str, float] | None = None,
    strategy: str = "SPREAD",
    micro_batches: int | None = None,
    shared: bool = True,
    patience: float = 120.0,
    progress: Callable[[int, int], None] | None = None,
) -> PipelineModel:
    """Put a model's layers on the nodes of a Ray cluster, some on each.

    ``async with await aggml.ray.pipeline("model.gguf", stages=2) as model: ...``

    Each stage is a Ray actor with its own backend. It maps the weights of its layers from the file
    on its node. A node that does not have the file fetches it from this machine, once. If a stage
    or its node dies, Ray restarts the stage, and generations continue where they were: see
    docs/distributed.md.

    Args:
        path: a GGUF file on this machine.
        stages: how many.
        ctx: positions of each sequence; None: as many as the model was trained for, at most 4096.
        slots: sequences at a time; about two for each stage keep all stages busy.
        cache: element type of keys and values.
        threads: cores on which each stage computes.
        backend: a function that opens a stage's backend, called in the stage; or one function for
            each stage. None: a backend on the CPU.
        costs: time of each layer, in any unit, by which the layers are cut; or one such list for
            each stage. "measured": a layer of each kind is run on each stage. "bytes": the bytes of
            each layer's weights that a token reads; of experts only the chosen ones.
        speeds: relative speeds of the stages, if ``costs`` does not include them; None: equal.
        limits: bytes of weights for which each stage has room. None: if costs are measured, most
            of the free memory of its device, else no limit.
        resources: what Ray reserves for each stage; None: ``threads`` CPUs.
        strategy: how Ray places the stages: "SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK".
        micro_batches: the most steps under way. None: one more than stages.
        shared: whether nodes may use a file at the same path.
        patience: seconds to wait for resources, and for a lost stage to come back.
        progress: called with bytes fetched or loaded so far and bytes in all, of all stages.

    Raises:
        ModelError: the file cannot be read, or has an unknown architecture.
        Unsupported: the model does not continue text, or its layers cannot be cut into stages.
        InvalidArgument: more stages than layers; a number below 1; layers that do not fit into
            ``limits``.
        AllocFailed: the cluster does not have the resources for the stages.
        StageLost: a stage died while it was opened.

    Cancellation: all stages are ended.
    """
    openers = _openers(backend, stages, ctx=ctx, slots=slots, threads=threads)
    path = user_path(path)
    model, tokenizer, template, task = await _read(path, "bytes" if stages == 1 else costs)
    edges = cut(task.costs, stages, speeds=speeds, sizes=task.sizes, limits=limits, end=task.end)
    _check_cuts(model, edges)  # like `cut`, it refuses before anything is started
    source = await anyio.to_thread.run_sync(lambda: source_of(path, shared=shared))
    limit = ctx or min(model.context_length, LONGEST)
    duties = [Duty(i, stages, source, limit, slots, cache, x, threads) for i, x in openers]
    each = dict(resources or {"CPU": float(threads)})
    actors = Stages(duties, [each] * stages, strategy, patience)
    await actors.place()
    if task.sample is not None:
        task, edges = await _measure(actors, task, task.sample, speeds, limits, progress)
    await actors.start(edges, progress)
    decoder = PipelineDecoder(
        actors, model, task.vocabulary, ctx=limit, sequences=slots,
        micro_batches=micro_batches or stages + 1,
    )  # fmt: skip
    made = PipelineModel(PipelineEngine(decoder), tokenizer, owned=actors, template=template)
    made.costs = task.costs
    return made


def _check_cuts(model: Description, edges: Sequence[tuple[int, int]]) -> None:
    """Make each stage once, to see whether the model can be cut there.

    Raises:
        Unsupported: it cannot.
    """
    for first, stop in edges:
        model.stage(first, stop)


def _openers(
    backend: Opener | Sequence[Opener] | None, stages: int, **numbers: int | None
) -> list[tuple[int, Opener | None]]:
    """The number of each stage, with the function that opens its backend.

    Raises:
        InvalidArgument: a number below 1, or not one function for each stage.
    """
    for name, given in (*numbers.items(), ("stages", stages)):
        if given is not None and given < 1:
            raise InvalidArgument(f"[pipeline] {name} is {given}, must be at least 1")
    openers = list(backend) if isinstance(backend, Sequence) else [backend] * stages
    if len(openers) != stages:
        raise InvalidArgument(
            f"[pipeline] {len(openers)} functions in backend for {stages} stages: give one each"
        )
    return list(enumerate(openers))


async def _read(
    path: Path, costs: _Costs | str
) -> tuple[Description, Vocabulary | None, dict[str, str] | None, _Task]:
    """Read what the driver needs of a model file: description, vocabulary, template, costs."""
    with await open_model(path) as file:
        tokenizer = await anyio.to_thread.run_sync(open_vocabulary, file.metadata)
        template = sources_of(file.metadata)
        model = await describe_file(file)
        if not isinstance(model, Description):
            raise Unsupported(
                f"[pipeline] {model.architecture} does not continue text, so it cannot be cut into "
                "stages: load it on one machine with aggml.models.load"
            )
        task = _task(file, model, costs)
    return model, tokenizer, template, task


@dataclass(frozen=True, slots=True)
class _Task:
    """The input for the cut.

    Attributes:
        costs: of each layer, or of each layer on each stage.
        end: cost of the output.
        sizes: bytes of each layer.
        sample: which layers are to be measured; None: costs are known.
        vocabulary: how many tokens there are.
    """

    costs: _Costs
    end: float
    sizes: list[float]
    sample: Sample | None
    vocabulary: int


async def _measure(
    actors: Stages,
    task: _Task,
    sample: Sample,
    speeds: Sequence[float] | None,
    limits: Sequence[float] | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[_Task, list[tuple[int, int]]]:
    """The task with the costs that the stages have measured, and the cut by these."""
    found = await actors.measure(sample, progress)
    pairs = [spread(sample, x.seconds) for x in found]
    costs, ends = [x for x, _ in pairs], [x for _, x in pairs]
    try:
        edges = cut(
            costs, len(found), speeds=speeds, sizes=task.sizes, limits=limits or _room(found),
            end=ends,
        )  # fmt: skip
    except BaseException:
        with anyio.CancelScope(shield=True):
            await actors.aclose()
        raise
    return replace(task, costs=costs), edges


def _task(file: ModelFile, model: Description, costs: _Costs | str) -> _Task:
    sizes, vocabulary = _sizes(file, model), file.tensors["token_embd.weight"].ne[1]
    if not isinstance(costs, str):
        return _Task(costs, 0.0, sizes, None, vocabulary)
    if costs not in {"measured", "bytes"}:
        raise InvalidArgument(
            f"[pipeline] costs is {costs!r}: give 'measured', 'bytes' or a list of numbers"
        )
    sample = samples(kinds(model, file)) if costs == "measured" else None
    return _Task(_bytes_read(file, model), _output(file), sizes, sample, vocabulary)


def _room(found: Sequence[Measured]) -> list[float]:
    """Bytes that each stage has for weights; stages on one node share its memory."""
    beside = collections.Counter(x.node for x in found)
    return [SHARE * x.free / beside[x.node] if x.free else math.inf for x in found]


def _of_layer(file: ModelFile, i: int) -> dict[str, int]:
    """Bytes of a layer's tensors by name."""
    prefix = f"blk.{i}."
    return {name: x.nbytes for name, x in file.tensors.items() if name.startswith(prefix)}


def _sizes(file: ModelFile, model: Description) -> list[float]:
    """Bytes of each layer."""
    return [float(sum(_of_layer(file, i).values())) for i in range(len(model.layers))]


def _bytes_read(file: ModelFile, model: Description) -> list[float]:
    """Bytes of each layer that one token reads; of experts only the share that is chosen."""
    name = f"{model.architecture}.expert"
    count = file.metadata.get(f"{name}_count")
    chosen = file.metadata.get(f"{name}_used_count")
    share = chosen / count if isinstance(count, int) and isinstance(chosen, int) and count else 1.0
    return [
        sum(size * (share if "_exps." in tensor else 1.0) for tensor, size in of.items())
        for of in (_of_layer(file, i) for i in range(len(model.layers)))
    ]


def _output(file: ModelFile) -> float:
    """Bytes of weights that are read to compute the logits of one token."""
    weights = file.tensors.get("output.weight", file.tensors["token_embd.weight"])
    return float(weights.nbytes)
