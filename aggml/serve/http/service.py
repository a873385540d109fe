"""Service: opens the models once for all requests, and ends them.

Here: options, opening, draining. Not here: the routes (app.py), opening one model (../opening.py).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from aggml.models import EncoderModel, EngineError, ModelError, SpeechModel, TextModel, computing
from aggml.serve.http.metrics import Metrics
from aggml.serve.http.pacing import UnderWay, collect_seldom
from aggml.serve.opening import Limits, load_served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from aggml import Backend, Scheduler

__all__ = ["Options", "Service"]


@dataclass(frozen=True)
class Options:
    """The options of the service.

    Attributes:
        models: model files. Models that continue text serve completions, encoders embeddings,
            encoders with a rank head also rerank, speech models transcriptions.
        devices: names of aggml devices, which share each model; none: the best one.
        threads: threads that compute; None: as many as there are usable cores.
        limits: how much each model may take.
        deadline: seconds for a request that sets no ``timeout``.
        drain: seconds that requests under way have when the service stops.
        api_key: what requests to /v1 must bring as ``Authorization: Bearer ...``; None: nothing.
        collect_seldom: whether the garbage collector runs seldom once the models are loaded
            (pacing.py). For a process that does nothing else.
        progress: called with the file, bytes loaded so far and bytes in all.
    """

    models: Sequence[Path]
    devices: Sequence[str] = ()
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    deadline: float = 120.0
    drain: float = 30.0
    api_key: str | None = None
    collect_seldom: bool = False
    progress: Callable[[Path, int, int], None] | None = None


@asynccontextmanager
async def _beside(task: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Run a task until the end of the block. Errors of the block come out without a group."""
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task)
        try:
            yield
        except Exception as error:  # raised again below, outside of the group
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


class Service:
    """The models by name. A request that names no model gets the first that can answer it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics()
        self.embedders: dict[str, EncoderModel] = {}
        self.completers: dict[str, TextModel] = {}
        self.transcribers: dict[str, SpeechModel] = {}
        self.is_open = self.stopping = False
        self.under_way = UnderWay()
        self.metrics.show_requests(self.under_way)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Service]:
        """Load the models. At the end of the block requests under way have some time to end."""
        o = self.options
        async with AsyncExitStack() as stack:
            for path in o.models:
                # Each model has a backend of its own, so it does not wait in another model's queue.
                on = await stack.enter_async_context(computing(o.devices, o.threads))
                await self._open(path, on, stack)
            if o.collect_seldom:
                collect_seldom()
            await stack.enter_async_context(_beside(self.metrics.tick))
            self.is_open = True
            try:
                yield self
            finally:
                await self.drain(o.drain)

    async def _open(self, path: Path, on: Backend | Scheduler, stack: AsyncExitStack) -> None:
        progress = self.options.progress

        def loaded(done: int, total: int) -> None:
            if progress is not None:
                progress(path, done, total)

        served = await stack.enter_async_context(
            load_served(path, on, self.options.limits, None if progress is None else loaded)
        )
        if served.name in self.names:
            raise ModelError(f"two models have the name {served.name!r}: rename {path}")
        model = served.model
        if isinstance(model, EncoderModel):
            self.embedders[served.name] = model
        elif isinstance(model, SpeechModel):
            self.transcribers[served.name] = model
        elif isinstance(model, TextModel):
            self.metrics.show_engine(served.name, model)
            self.completers[served.name] = model

    @property
    def rankers(self) -> dict[str, EncoderModel]:
        """The encoders that have a rank head."""
        return {name: x for name, x in self.embedders.items() if x.ranks}

    @property
    def names(self) -> list[str]:
        """The names of the models that are served."""
        return [*self.completers, *self.embedders, *self.transcribers]

    async def drain(self, seconds: float) -> None:
        """Answer new requests with 503 and wait for those under way; then cut off the rest.

        The server must go on listening. A client that finds nobody listening could not tell an
        orderly end from a failure.
        """
        self.stopping = True
        for model in self.completers.values():
            model.engine.stop("the server is stopping")
        with anyio.move_on_after(seconds):
            await self.under_way.none()
        self.cut_off()

    def cut_off(self) -> None:
        """End the requests under way with an error: the server has stopped."""
        for model in self.completers.values():
            model.engine.cut_off(EngineError("the server has stopped"))
