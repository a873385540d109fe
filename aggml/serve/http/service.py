"""Service: the models, opened once for all requests, and how the service ends.

Here: options, opening, draining. Not here: the routes (app.py), what serves one model
(../opening.py).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from aggml.models import ModelError
from aggml.models.site import computing
from aggml.serve.embedder import Embedder
from aggml.serve.http.metrics import Metrics
from aggml.serve.http.pacing import UnderWay, collect_seldom
from aggml.serve.http.text import Text
from aggml.serve.opening import Completer, Limits, opened
from aggml.serve.transcriber import Transcriber

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from aggml import Backend, Scheduler

__all__ = ["Completions", "Options", "Service"]


@dataclass(frozen=True)
class Options:
    """The options of the service.

    Attributes:
        models: files; those that continue text serve completions, encoders serve embeddings,
            those with a rank head ranks, too, and models of speech transcriptions.
        devices: names of aggml devices, which share each model; none: the best one.
        threads: for the computation; by default as many as there are usable cores.
        limits: how much each model may take.
        deadline: seconds for a request that does not name its own.
        drain: seconds for requests under way when the service stops.
        api_key: what requests to /v1 must bring as ``Authorization: Bearer ...``; None: nothing.
        collect_seldom: once the models are loaded, make the garbage collector search seldom
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
    """Run a task until the end of the block. What the block raises comes out as it is."""
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


@dataclass(frozen=True)
class Completions:
    """A model that continues text, and its prompts and answers as text."""

    model: Completer
    text: Text


class Service:
    """The models by name. Those asked for without a name are the first of their kind."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics()
        self.embedders: dict[str, Embedder] = {}
        self.completers: dict[str, Completions] = {}
        self.transcribers: dict[str, Transcriber] = {}
        self.is_open = self.stopping = False
        self.under_way = UnderWay()
        self.metrics.show_requests(self.under_way)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Service]:
        """Load the models. At the end of the block requests under way have some time to end."""
        o = self.options
        async with AsyncExitStack() as stack:
            for path in o.models:
                # Each has a backend of its own, so no model waits for the queue of another one.
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

        model = await stack.enter_async_context(
            opened(path, on, self.options.limits, None if progress is None else loaded)
        )
        if model.name in self.names:
            raise ModelError(f"two models are called {model.name!r}; the second one is {path}")
        if isinstance(model, Embedder):
            self.embedders[model.name] = model
        elif isinstance(model, Transcriber):
            self.transcribers[model.name] = model
        else:
            self.metrics.show_engine(model.name, model.engine)
            text = Text(model.vocabulary, model.template)
            self.completers[model.name] = Completions(model, text)

    @property
    def rankers(self) -> dict[str, Embedder]:
        """The encoders that have a rank head."""
        return {name: x for name, x in self.embedders.items() if x.model.ranks}

    @property
    def names(self) -> list[str]:
        """The names of the models that are served."""
        return [*self.completers, *self.embedders, *self.transcribers]

    async def drain(self, seconds: float) -> None:
        """Answer new requests with 503 and wait for those under way; then cut the rest off.

        The server must go on listening: a client that finds nobody cannot tell an end from a
        failure.
        """
        self.stopping = True
        for completions in self.completers.values():
            completions.model.engine.stop()
        with anyio.move_on_after(seconds):
            await self.under_way.none()
        self.cut_off()

    def cut_off(self) -> None:
        """End the requests under way; they are told that the server has stopped."""
        for completions in self.completers.values():
            completions.model.engine.cut_off()
