"""Placing and computing graphs: alloc, alloc_graph, prepare, graph_compute, run, GraphPlan.

Here: which plan runs, and on what memory. Not here: how much memory a graph needs
(memory/graph_memory.py), what a plan is (plan/plan.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, overload

import anyio.lowlevel

from aggml.backend.base import Array, BackendBase
from aggml.backend.inputs import ask, check_written, reshaped, shapes_of, words_of
from aggml.errors import (
    AggmlError,
    AllocFailed,
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    NotAllocated,
)
from aggml.graph import Graph
from aggml.memory.graph_memory import GraphBuffer, PlaceRecord, laying_out
from aggml.stream.future import Future
from aggml.stream.observe import observers
from aggml.stream.prepared import Prepared
from aggml.stream.slices import ATTEMPTS, IN_SLICES, finish, give_way
from aggml.tensor import checking
from aggml.tensor.inputs import check_due
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aggml.backend.inputs import Inputs, Outputs, Reuse, Shapes
    from aggml.memory.buffer import Buffer
    from aggml.memory.graph_memory import CompiledGraph, GraphPlans
    from aggml.plan import DevicePlan
    from aggml.stream.prepared import Asked
    from aggml.tensor import Tensor
    from aggml.tensor.placement import BufferUsage

__all__ = ["ComputingBackend", "GraphPlan"]

_COMPUTE = ("graph_compute",)  # key of the run that `graph_compute` prepared; no other key is equal


class _Moved(Exception):
    """A thread placed a tensor elsewhere while a run was put together."""


class GraphPlan:
    """A graph compiled for one backend: print it, run it again (ggml_backend_graph_plan_*)."""

    def __init__(self, backend: ComputingBackend, graph: Graph) -> None:
        self.backend = backend
        self.graph = graph
        backend._plan(graph)

    @property
    def plan(self) -> DevicePlan:
        """The plan for where the tensors lie now."""
        return self.backend._plan(self.graph)

    def update(self, graph: Graph) -> None:
        """Compile another graph into this object (ggml_backend_graph_plan_update).

        Raises:
            As `Backend.graph_plan`; the object keeps its graph then.
        """
        self.backend._plan(graph)
        self.graph = graph

    def compute(self) -> Future[None]:
        """Enqueue one run, as ``backend.graph_compute(graph)`` does (same errors, cancellation)."""
        return self.backend.graph_compute(self.graph)

    def __str__(self) -> str:
        return str(self.plan)


class ComputingBackend(BackendBase):
    """The operations of a `Backend` that place and run graphs."""

    def alloc(self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None) -> Buffer:
        """Memory for all given tensors, in order (ggml_backend_alloc_ctx_tensors).

        Args:
            tensors: of any shapes and types. None of them may have memory, or be a view: views lie
                where their storage lies. A tensor that is given twice counts once.
            usage: what the buffer is used for: "weights", "compute" or "any", or the enum
                `BufferUsage`. Weights are packed for the kernels at the first run. None: any.

        Returns:
            One buffer; or, if they need more than the largest single buffer, a `MultiBuffer`. No
            tensors, or none with bytes, give an empty buffer. Its memory is not set to any value,
            and lives as long as a tensor in it, or queued work on one.

        Raises:
            AlreadyAllocated: one of them has memory. Nothing is placed then, as in all cases below.
            InvalidArgument: one is a view; ``usage`` is no usage.
            InvalidHandle: one is no tensor.
            AllocFailed: no memory.
            InvalidState: the backend is closed.

        It does not wait: where a driver may need milliseconds for new memory, await `alloc_async`.
        """
        self._check_open("Backend.alloc")
        return self.buffer_type.alloc_tensors(tensors, usage)

    async def alloc_async(
        self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None
    ) -> Buffer:
        """`alloc`, off the event loop where a driver may need milliseconds to get new memory.

        Args:
            tensors: as of `alloc`.
            usage: as of `alloc`.

        Returns:
            As `alloc`.

        Raises:
            As `alloc`.

        Cancellation: nothing is placed; the memory is given back.
        """
        self._check_open("Backend.alloc_async")
        return await give_way(self.buffer_type.allocating(tensors, usage))

    def alloc_graph(self, graph: Graph) -> GraphBuffer:
        """Give memory to every tensor of the graph that has none yet.

        Leafs, ends and OUTPUT tensors get memory of this graph alone, all other nodes a place in
        the scratch of this backend, which all of its graphs share in turn.

        Args:
            graph: of any size. Leafs that have memory keep it, and any number of graphs may share
                them. Views are never placed: they lie where their storage lies.

        Returns:
            The memory of the graph. It lives as long as the graph, whether or not it is kept;
            ``close()`` undoes the placement. ``size`` is its number of bytes, without scratch.

        Raises:
            AlreadyAllocated: the graph has been placed.
            AllocFailed: no memory; nothing is placed then. The text has the largest tensors.
            InvalidHandle: ``graph`` is no Graph.
            InvalidState: the backend is closed; or other threads placed tensors of the graph
                elsewhere each time that it was looked at.

        It does not wait, and takes up to 10 us a node: `prepare` does the same in slices.
        """
        self._check_open("Backend.alloc_graph")
        for _ in range(ATTEMPTS):
            layout = finish(laying_out(self, graph))
            try:
                block = self.buffer_type.alloc_buffer(layout.size)
            except AllocFailed as error:
                raise layout.too_large(self, error, scratch=False) from error.__cause__ or error
            try:
                self.memory.arena(layout.scratch_size)
            except AllocFailed as error:
                raise layout.too_large(self, error, scratch=True) from error.__cause__ or error
            memory = layout.place(self, block)
            if memory is not None:
                return memory
        raise _restless(graph, "Backend.alloc_graph")

    async def reserve(self, nbytes: int) -> None:
        """Have ``nbytes`` of scratch ready, the memory that intermediate values of graphs share.

        A worker touches its pages, not the event loop.

        Args:
            nbytes: at least so many; less than what the backend has changes nothing.

        Raises:
            InvalidArgument: ``nbytes`` is negative.
            InvalidHandle: ``nbytes`` is no integer.
            AllocFailed: no memory; the scratch is as before.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the memory is kept.
        """
        self._check_open("Backend.reserve")
        if checking.integer(nbytes, "nbytes", "Backend.reserve") < 0:
            raise InvalidArgument(f"[Backend.reserve] nbytes={nbytes} is negative")
        if nbytes > self.memory.size:
            arena = self.memory.arena(nbytes)
            assert arena is not None
            await self._clear(arena, 0)
        else:
            await anyio.lowlevel.checkpoint()

    async def prepare(self, graph: Graph) -> None:
        """Place the graph (unless done) and compile it, yielding to the event loop every 0.2 ms.

        The next `run` and `graph_compute` of the graph need not do that. A graph that is placed and
        compiled costs nothing here.

        Args:
            graph: as of `alloc_graph`; it may be placed.

        Raises:
            AllocFailed: no memory for the graph, or for the scratch that it needs.
            Unsupported: a node that this device cannot run.
            NotAllocated: a leaf of a graph that was placed has no memory any more.
            InvalidHandle: ``graph`` is no Graph.
            InvalidArgument: a tensor lies out of reach of this device.
            InvalidState: the backend is closed; another backend placed the graph; or other tasks
                placed its tensors elsewhere each time that it was looked at.

        Cancellation: a graph that was placed stays placed.
        """
        self._check_open("Backend.prepare")
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[Backend.prepare] {graph!r} is no Graph")
        if graph.memory is None:
            with contextlib.suppress(AlreadyAllocated):  # another task placed it first
                await self._prepare_memory(graph)
        compiled = await self._prepare_plan(graph, "Backend.prepare")
        self._check_open("Backend.prepare")  # again: another task may have closed it
        await self.reserve(compiled.plan.arena_size)

    async def _prepare_memory(self, graph: Graph) -> None:
        for attempt in range(ATTEMPTS):
            steps = laying_out(self, graph)
            layout = await give_way(steps) if attempt < IN_SLICES else finish(steps)
            try:
                block = await self.buffer_type.provide(layout.size)
            except AllocFailed as error:
                raise layout.too_large(self, error, scratch=False) from error.__cause__ or error
            if layout.place(self, block) is not None:
                return
        raise _restless(graph, "Backend.prepare")

    async def _prepare_plan(self, graph: Graph, what: str) -> CompiledGraph:
        for attempt in range(ATTEMPTS):
            memory, plans, then = self._begin(graph, what)
            try:
                steps = self._compile(graph, memory)
                plan = await give_way(steps) if attempt < IN_SLICES else finish(steps)
            except AggmlError:
                if then.stands():
                    raise
                continue
            found = plans.keep_plan(self, plan, then)
            if found is not None:
                return found
        raise _restless(graph, what)

    # -- computing

    def _memory_of(self, graph: Graph, what: str) -> GraphBuffer:
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[{what}] {graph!r} is no Graph")
        memory: GraphBuffer | None = graph.memory
        if memory is None:
            raise _unplaced(graph, what)
        if memory.backend is not None and memory.backend() is not self:
            raise InvalidState(
                f"[{what}] {graph!r} was placed by {memory.backend()!r}, only that can compute it"
            )
        return memory

    def _reached(self, graph: Graph, what: str) -> PlaceRecord:
        """Where the tensors lie; refuses a graph of which this device does not reach all."""
        then = PlaceRecord(graph)
        first: dict[Any, Tensor] = {}  # the first tensor of each buffer, for the message
        for tensor, placement in zip((*graph.leafs, *graph.nodes), then.places, strict=True):
            if placement is not None:
                first.setdefault(placement.buffer, tensor)
        device = self._device
        for buffer, tensor in first.items():
            if not device.supports_buffer_type(buffer.type):
                raise InvalidArgument(
                    f"[{what}] {tensor!r} lies in {buffer!r}, out of reach of {self!r}: a "
                    "Scheduler copies what a backend does not reach"
                )
        return then

    def _begin(self, graph: Graph, what: str) -> tuple[GraphBuffer, GraphPlans, PlaceRecord]:
        """What compiling rests on: the graph's memory and plans, and where its tensors lie.

        Between two slices other tasks, and at any time other threads, may close buffers and
        allocate tensors again. The plan may then have addresses of memory that is about to be
        freed. So a plan is kept, and an error raised, only if no tensor moved meanwhile.
        """
        return self._memory_of(graph, what), _plans_of(graph, what), self._reached(graph, what)

    def _compiled(self, graph: Graph, what: str) -> CompiledGraph:
        """The plan of a placed graph, compiled now if needed, with the runs prepared for it."""
        self._memory_of(graph, what)
        found = _plans_of(graph, what).compiled_for(self)
        if found is not None:
            return found
        for _ in range(ATTEMPTS):
            memory, plans, then = self._begin(graph, what)
            try:
                plan = finish(self._compile(graph, memory))
            except AggmlError:
                if then.stands():
                    raise
                continue
            found = plans.keep_plan(self, plan, then)
            if found is not None:
                return found
        raise _restless(graph, what)

    def _plan(self, graph: Graph, what: str = "Backend.graph_compute") -> DevicePlan:
        plan: DevicePlan = self._compiled(graph, what).plan
        return plan

    def graph_plan(self, graph: Graph) -> GraphPlan:
        """Compile a placed graph (ggml_backend_graph_plan_create).

        Args:
            graph: placed by this backend, or by a `GraphAllocator` in memory that it reaches.

        Returns:
            A `GraphPlan`: ``print`` shows its steps, ``compute`` enqueues one run. If a tensor is
            placed elsewhere later, it compiles again.

        Raises:
            NotAllocated: the graph, or a leaf of it, has no memory.
            Unsupported: a node that this device cannot run.
            InvalidHandle: ``graph`` is no Graph.
            InvalidArgument: a tensor lies out of reach of this device.
            InvalidState: the backend is closed, or another one placed the graph.

        It does not wait, and takes up to 10 us a node: await `prepare` first to do it in slices.
        """
        self._check_open("Backend.graph_plan")
        return GraphPlan(self, graph)

    def graph_compute(self, graph: Graph) -> Future[None]:
        """Run all nodes in order, after all earlier work (ggml_backend_graph_compute_async).

        Raises:
            NotAllocated: the graph, or a leaf of it, has no memory; a leaf flagged INPUT was never
                written.
            Unsupported: a node that this device cannot run.
            InvalidState: the backend is closed, or another one placed the graph.
            AggmlError: raised by the Future, e.g. OutOfBounds for a row index.

        Cancellation: abandons the wait, the run goes on; ``abort()`` stops it before the next node.
        """
        plans = graph.plans if type(graph) is Graph else None
        prepared: Prepared | None = None
        if plans is not None and not observers and not self.stream._batches:
            prepared = plans.prepared_for(self, _COMPUTE)
        if prepared is None:
            return self._compute_first(graph)
        try:
            future = prepared.run()
        except InvalidState:
            self._check_open("Backend.graph_compute")
            raise
        return future if self._admission.limit is None else self._unit(future)

    def _compute_first(self, graph: Graph) -> Future[None]:
        """`graph_compute` of a graph that was not prepared yet, or cannot be prepared."""
        what = "Backend.graph_compute"
        self._check_open(what)
        compiled = self._compiled(graph, what)
        plan: Any = compiled.plan
        batch = self.stream.open_batch()
        marks = check_written(graph, what, {} if batch is None else batch.states)
        arena = self.memory.arena(plan.arena_size)
        future = self._compute(plan, arena)
        marks.note(batch)
        # The leafs have values for good once it is enqueued, so a prepared run does not look again.
        if batch is None and self._direct(plan):
            prepared = Prepared(
                self.stream, plan, self.memory, None, what, marks=marks, abortable=False
            )
            compiled.keep(_COMPUTE, prepared)
        return self._unit(future)

    @overload
    def run(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Tensor | str,
        *,
        reuse: Reuse = (),
        shape: tuple[int, ...] | None = None,
    ) -> Future[Array]: ...
    @overload
    def run(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Outputs,
        *,
        reuse: Reuse = (),
        shape: Shapes | None = None,
    ) -> Future[list[Array]]: ...
    def run(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Future[Array] | Future[list[Array]]:
        """Set inputs, compute, get outputs as one indivisible unit of this stream.

        Args:
            graph: placed.
            inputs: maps each leaf to the array to write, in a form that `set` takes; the arrays are
                borrowed until done. A leaf is given as the tensor, or by its name if that is unique
                in the graph.
            outputs: a tensor or its name, or several.
            reuse: leafs flagged INPUT, or their names, that keep the value of the last run. Every
                other leaf flagged INPUT must be among ``inputs``, unless `set`, a copy or another
                graph wrote it. Leafs without the flag keep their values.
            shape: shape of the result in numpy order, with as many elements; a list of shapes or
                Nones if ``outputs`` is a sequence. If not given: `Tensor.shape`.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence.

        Raises:
            NotAllocated: a leaf flagged INPUT was never written, or only by an earlier run.
            InvalidArgument: an input that is no leaf of ``graph``; a name that none of its tensors
                has, or several have.
            As `set`, `graph_compute` and `get`; nothing is queued then.

        Cancellation: when the last task that awaits it is cancelled, the work is aborted; see
            `Future.shield`.
        """
        plans = graph.plans if type(graph) is Graph else None
        words = words_of(outputs, inputs, reuse, shape)
        prepared: Prepared | None = None
        if plans is not None and not observers and not self.stream._batches:
            prepared = plans.prepared_for(self, words)
        if prepared is None:
            return self._run_first(graph, inputs, outputs, reuse, shape, words)
        try:
            future = prepared.run(inputs)
        except InvalidState:
            self._check_open("Backend.run")
            raise
        return future if self._admission.limit is None else self._unit(future)

    def _run_first(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        reuse: Reuse,
        shape: object,
        words: tuple[object, ...],
    ) -> Future[Any]:
        """`run` with arguments that were not used before, or that cannot be prepared."""
        what = "Backend.run"
        self._check_open(what)
        for _ in range(ATTEMPTS):
            compiled = self._compiled(graph, what)
            plan: Any = compiled.plan
            shapes = None if shape is None else shapes_of(graph, outputs, shape, what)
            arena = self.memory.arena(plan.arena_size)
            asked = ask(graph, inputs, outputs, reuse, what)
            sets = self._checked(asked)
            if not observers and not self.stream._batches and self._direct(plan):
                prepared = Prepared(
                    self.stream, plan, self.memory, asked, what, marks=asked.marks, shapes=shapes
                )
                if (
                    compiled.epoch != PlacementEpoch.value and not compiled.holds()
                ):  # a thread moved a tensor: the plan has its old place
                    continue
                compiled.keep(words, prepared)
                return self._unit(prepared.run(dict(sets)))
            try:
                future = self._run_by_hooks(asked, sets, compiled, arena)
            except _Moved:
                continue
            asked.marks.note(self.stream.open_batch())
            return self._unit(future if shapes is None else reshaped(future, shapes))
        raise _restless(graph, what)

    def _checked(self, asked: Asked) -> list[tuple[Tensor, Array]]:
        """The inputs with their arrays, after checking that all inputs and outputs are usable."""
        sets = []
        for tensor, x in asked.inputs.items():
            self._check_tensor(tensor, "Backend.run", write=True)
            sets.append((tensor, checking.incoming(x, tensor, "Backend.run")))
        for tensor in asked.outputs:
            self._check_tensor(tensor, "Backend.run")
        batch = self.stream.open_batch()
        check_due(asked.due, "Backend.run", (), {} if batch is None else batch.states)
        return sets

    def _run_by_hooks(
        self,
        asked: Asked,
        sets: list[tuple[Tensor, Array]],
        compiled: CompiledGraph,
        arena: Buffer | None,
    ) -> Future[Any]:
        gets = [(t, *checking.outgoing(t, None, None, "Backend.run")) for t in asked.outputs]
        results = [result for _, result, _ in gets]
        value = results[0] if asked.single else results
        future: Future[Any] = Future(None, value, "run", abortable=True)
        reads = [(tensor, view) for tensor, _, view in gets]
        if type(self)._run is not ComputingBackend._run:  # a device that does it in its own way
            self._run(future, compiled.plan, arena, sets, reads)
            return future
        with self.stream.unit():
            self._run(future, compiled.plan, arena, sets, reads)
            if compiled.epoch != PlacementEpoch.value and not compiled.holds():
                raise _Moved  # so nothing is enqueued
        return future

    def _run(
        self,
        future: Future[Any],
        plan: Any,  # noqa: ANN401 - as `_compile` gave it
        arena: Buffer | None,
        sets: list[tuple[Tensor, Array]],
        gets: list[tuple[Tensor, Array]],
    ) -> None:
        """Enqueue sets, one compute and gets as one unit; ``future`` is done when all are."""
        with self.stream.unit():
            parts: list[Future[Any]] = [self._set(tensor, array) for tensor, array in sets]
            parts.append(self._compute(plan, arena))
            parts.extend([self._get(tensor, view) for tensor, view in gets])
        batch = self.stream.open_batch()
        if batch is None:
            future.join(parts)
        else:
            batch.join(future, parts)


def _plans_of(graph: Graph, what: str) -> GraphPlans:
    """The plans of a placed graph; raises if another thread has unplaced it meanwhile."""
    plans: GraphPlans | None = graph.plans
    if plans is None:
        raise _unplaced(graph, what)
    return plans


def _restless(graph: Graph, what: str) -> InvalidState:
    return InvalidState(
        f"[{what}] tensors of {graph!r} were placed elsewhere each time that it was looked at: "
        "order the calls that close their buffers and allocate them"
    )


def _unplaced(graph: Graph, what: str) -> NotAllocated:
    return NotAllocated(f"[{what}] {graph!r} has no memory: call alloc_graph or prepare first")
