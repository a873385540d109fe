"""Trainer: the graphs of a model in training, and one batch after the other through them.

Here: evaluation, gradients, accumulation over batches, steps of the optimizer. Not here: data sets
and epochs (fitting.py), which gradients there are (gradients/).
"""

from __future__ import annotations

from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml import (
    Backend,
    DType,
    Graph,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    NotAllocated,
    Scheduler,
    Tensor,
    TensorFlag,
    build_backward_expand,
    build_forward_expand,
    gather,
    new_tensor,
)
from aggml.graph import graph_of
from aggml.opt.losses import LossNodes, LossType, loss_nodes, parse_loss
from aggml.opt.optimizers import SGD, AdamW, Optimizer
from aggml.tensor import cut, describe, new_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aggml import Buffer
    from aggml.opt.results import Results

__all__ = ["Trainer"]

Array = np.ndarray[Any, Any]


class Trainer:
    """A model in training (``ggml_opt_context``).

    The model is a graph from ``inputs`` to ``outputs``. Its parameters are the leafs flagged by
    `Tensor.set_param`; they, and other leafs, have memory and their first values before. The
    trainer places the rest: accumulators, running means, graphs.

    Args:
        on: the backend or the scheduler that computes.
        inputs: the leaf that takes a batch of data; its outermost axis has the data points.
        outputs: what the model makes of it, f32; its outermost axis has the data points.
        loss: what is made small: a `LossType` or its name.
        optimizer: an `AdamW` or `SGD`, or a function of the number of the epoch (from 1) that
            returns one, for a learning rate that changes.
        opt_period: batches whose gradients are added up before a step of the optimizer.

    Attributes:
        epoch: the number of the epoch, passed to an ``optimizer`` that is a function.
        steps: steps of the optimizer so far.
        pending: batches since the last step, whose gradients wait to be used.
        labels: the leaf that takes the labels of a batch; None if the loss has none.
        graphs: what a batch runs, by name: "eval", "grad" (if ``opt_period`` is above 1), "opt".

    Raises:
        InvalidArgument: no parameter; ``inputs`` is no leaf of ``outputs``; another loss in the
            graph; ``opt_period`` below 1; no such loss; an optimizer that is none.
        InvalidHandle: an argument of the wrong sort.
        NotAllocated: a parameter or another leaf has no memory.
        Unsupported: an op has no gradient, or a parameter is not f32.
    """

    epoch: int
    steps: int
    pending: int
    inputs: Tensor
    outputs: Tensor
    labels: Tensor | None
    graphs: dict[str, Graph]

    def __init__(
        self,
        on: Backend | Scheduler,
        inputs: Tensor,
        outputs: Tensor,
        *,
        loss: LossType | str,
        optimizer: Optimizer | Callable[[int], Optimizer] | None = None,
        opt_period: int = 1,
    ) -> None:
        if not isinstance(on, Backend | Scheduler):
            raise InvalidHandle(f"[Trainer] {on!r} is no Backend and no Scheduler")
        for name, tensor in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(tensor, Tensor):
                raise InvalidHandle(f"[Trainer] {name} = {tensor!r} is no tensor")
        try:
            self.opt_period: int = index(opt_period)
        except TypeError:
            raise InvalidHandle(f"[Trainer] opt_period = {opt_period!r} is no integer") from None
        if self.opt_period < 1:
            raise InvalidArgument(f"[Trainer] opt_period = {opt_period}: expected 1 or more")
        self.loss: LossType = parse_loss(loss)
        self.inputs, self.outputs = inputs, outputs
        self.epoch, self.steps, self.pending = 1, 0, 0
        self._on = on
        self._given = optimizer if optimizer is not None else AdamW()
        self._optimizer = self._current()
        self._busy = False
        self._fresh = True  # nothing was set to 0 yet
        self._nodes = self._build()
        self._place()

    # -- building

    def _current(self) -> Optimizer:
        if isinstance(self._given, type):
            raise InvalidArgument(
                f"[Trainer] optimizer = {self._given.__name__} is a class: pass a value, such as "
                "opt.AdamW(alpha=0.001)"
            )
        found = self._given(self.epoch) if callable(self._given) else self._given
        if not isinstance(found, AdamW | SGD):
            raise InvalidArgument(f"[Trainer] optimizer {found!r} is no AdamW and no SGD")
        return found

    def _build(self) -> LossNodes:
        model = Graph(self.outputs)
        if self.inputs.op != "none" or self.inputs not in model.leafs:
            raise InvalidArgument(
                f"[Trainer] inputs = {describe(self.inputs)} is no leaf of {model!r}"
            )
        for node in model.nodes:
            if node.flag_bits & TensorFlag.LOSS:
                raise InvalidArgument(
                    f"[Trainer] {describe(node)} is flagged as a loss: the trainer adds the loss; "
                    "pass what it is made of as outputs, with loss='sum' or 'mean'"
                )
        self.params: tuple[Tensor, ...] = tuple(
            [t for t in model.nodes if t.flag_bits & TensorFlag.PARAM]
        )
        nodes = loss_nodes(self.outputs, self.loss, self.opt_period)
        read = [t for t in nodes[1:4] if isinstance(t, Tensor)]
        forward = Graph(self.outputs, *read)
        adds_up = self.opt_period > 1
        backward = build_backward_expand(
            forward, self.params if adds_up else (), loss=nodes.loss, params=self.params
        )
        first = backward.grad_acc(nodes.loss)
        assert first is not None
        self._first = first
        self._sums = tuple([acc for t, acc in backward.grad_accs.items() if t is not nodes.loss])
        optimizer = self._optimizer
        self._numbers = new_tensor(DType.F32, optimizer.n_numbers, "optimizer").set_input()
        self._means: list[Tensor] = []
        steps = []
        for param in self.params:
            grad = backward.grad(param)
            if grad is None:
                raise InvalidArgument(
                    f"[Trainer] the outputs do not depend on the parameter {describe(param)}"
                )
            ne = param.ne[: param.ndim]
            means = [
                new_tensor(DType.F32, ne, cut(f"{name} of {param.name}"))
                for name in ("mean", "mean square")[: optimizer.n_means]
            ]
            self._means += means
            steps.append(optimizer.step(param, grad, means, self._numbers))
        self._homes = dict(zip(self._means, _twice(self.params, optimizer.n_means), strict=True))
        self._homes.update({acc: t for t, acc in backward.grad_accs.items() if t in self.params})
        opt = build_forward_expand(backward, *steps)
        graphs = {"eval": _like(forward), "opt": _like(opt)}
        if adds_up:
            graphs["grad"] = _like(backward)
        self._maps = {name: found for name, (_, found) in graphs.items()}
        self.graphs = {name: graph for name, (graph, _) in graphs.items()}
        self.labels = nodes.labels
        return nodes

    def _place(self) -> None:
        """Give memory to all that a batch uses; accumulators and means lie with their parameter."""
        taken = {self.inputs, self.labels, self._first, self._numbers, *self._homes}
        for leaf in (*self.graphs["opt"].leafs, *self.params):
            if leaf.root not in taken and leaf.root.placement is None:
                what = "the parameter" if leaf in self.params else "the leaf"
                raise NotAllocated(
                    f"[Trainer] {what} {describe(leaf)} has no memory: give it memory and its "
                    "first value before, by Backend.alloc and Backend.set"
                )
        by_type: dict[Any, list[Tensor]] = {}
        for tensor, param in self._homes.items():
            buffer: Any = param.buffer
            by_type.setdefault(buffer.type, []).append(tensor)
        self._buffers: list[Buffer] = [
            buffer_type.alloc_tensors(tensors) for buffer_type, tensors in by_type.items()
        ]
        if isinstance(self._on, Backend):
            for graph in self.graphs.values():
                self._on.alloc_graph(graph)

    def _home(self, tensor: Tensor) -> Backend:
        """The backend that sets a tensor."""
        if isinstance(self._on, Backend):
            return self._on
        buffer: Any = tensor.root.buffer
        for backend in self._on.backends:
            if backend.device.supports_buffer_type(buffer.type):
                return backend
        raise InvalidArgument(
            f"[Trainer] {describe(tensor)} lies in {buffer!r}, out of reach of {self._on!r}"
        )

    # -- batches

    async def train(self, data: object, labels: object = None, into: Results | None = None) -> None:
        """Take a batch: its loss, its gradients and, each ``opt_period`` batches, a step.

        Args:
            data: as `Backend.set` takes it for ``inputs``.
            labels: likewise for `labels`; None if the loss has none.
            into: where the loss, predictions and their number are added.

        Raises:
            InvalidArgument: labels that the loss does not take, or none where it takes them.
            InvalidState: another task is in the middle of a batch.
            LayoutMismatch: data of another shape or type.

        Cancellation: once the batch is queued it is carried out to its end, and counted in `steps`
        and `pending`; only its results are not added. Otherwise nothing has changed.
        """
        with self._alone("Trainer.train"):
            await self._begin()
            steps = self.pending + 1 == self.opt_period
            given: dict[Tensor, object] = {self._first: np.ones(1, np.float32)}
            if steps:
                optimizer = self._current()
                if type(optimizer) is not type(self._optimizer):
                    raise InvalidArgument(
                        f"[Trainer] the optimizer is {optimizer!r}, before it was "
                        f"{self._optimizer!r}: it has to be of one class"
                    )
                given[self._numbers] = optimizer.numbers(self.steps + 1)

            def count() -> None:
                self.pending = 0 if steps else self.pending + 1
                self.steps += steps

            await self._run("opt" if steps else "grad", given, data, labels, into, count)

    async def evaluate(
        self, data: object, labels: object = None, into: Results | None = None
    ) -> None:
        """Take a batch for its loss alone; nothing of the model changes.

        Args:
            data: as `train` takes it.
            labels: likewise.
            into: where the loss, predictions and their number are added.

        Raises:
            As `train`.

        Cancellation: the results are not added.
        """
        with self._alone("Trainer.evaluate"):
            await self._run("eval", {}, data, labels, into, lambda: None)

    async def reset(self, *, optimizer: bool = False) -> None:
        """Forget the gradients that were added up; with ``optimizer`` its means and steps, too.

        The parameters stay as they are.

        Raises:
            InvalidState: another task is in the middle of a batch.
        """
        with self._alone("Trainer.reset"):
            self.pending = 0
            if optimizer:
                self.steps = 0
                await self._clear(self._means)
            await self._clear(self._sums)

    async def _begin(self) -> None:
        if self._fresh:
            await self._clear(self._means)
            self._fresh = False
        if self.pending == 0:
            await self._clear(self._sums)

    async def _clear(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> None:
        if tensors:
            await gather(*[self._home(tensor).memset(tensor, 0) for tensor in tensors])

    @contextmanager
    def _alone(self, place: str) -> Iterator[None]:
        if self._busy:
            raise InvalidState(
                f"[{place}] another task is in the middle of a batch of this trainer: await it"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _run(
        self,
        name: str,
        given: Mapping[Tensor, object],
        data: object,
        labels: object,
        into: Results | None,
        count: Callable[[], None],
    ) -> None:
        nodes, graph, same = self._nodes, self.graphs[name], self._maps[name]
        if (labels is None) != (nodes.labels is None):
            takes = "takes no labels" if nodes.labels is None else "needs labels"
            raise InvalidArgument(f"[Trainer] the loss {self.loss.value} {takes}")
        values = {**given, self.inputs: data}
        if nodes.labels is not None:
            values[nodes.labels] = labels
        read = [same[t] for t in nodes[1:4] if isinstance(t, Tensor)]
        future = self._on.run(graph, values, read)
        count()
        loss, *rest = await future.shield()
        if into is not None:
            scale = self.opt_period if nodes.per_datapoint else 1
            into.add(
                self.outputs.shape[0],
                float(loss.ravel()[0]) * scale,
                per_datapoint=nodes.per_datapoint,
                predictions=rest[0].ravel() if rest else None,
                n_correct=int(rest[1].ravel()[0]) if rest else None,
            )


def _twice(params: tuple[Tensor, ...], n: int) -> list[Tensor]:
    return [param for param in params for _ in range(n)]


def _like(graph: Graph) -> tuple[Graph, dict[Tensor, Tensor]]:
    """The same computation with nodes of its own over the same leafs, and the node of each node.

    Graphs that share nodes would share their memory, which each of them reuses in its own order.
    """
    same: dict[Tensor, Tensor] = {leaf: leaf for leaf in graph.leafs}
    for node in graph.nodes:
        if node.op == "none":
            same[node] = node
            continue
        src = tuple([None if t is None else same[t] for t in node.src])
        same[node] = new_like(node, node.op, src, node.view_src and same[node.view_src])
    nodes = [same[node] for node in graph.nodes]
    return graph_of(nodes, graph.leafs, [same[end] for end in graph.ends]), same
