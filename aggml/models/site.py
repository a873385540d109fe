"""Site: where a model lies and is computed, one backend or several under a scheduler.

Here: one interface for both; freeing the memory of graphs and weights; opening backends by the
names of devices. Not here: which layer goes where (dividing.py), loading weights (weights.py).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aggml import Backend, DeviceType, InvalidHandle, Scheduler, best_device, get_device
from aggml.models.arguments import shown
from aggml.models.lifetime import closed_error
from aggml.process.alive import there

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from aggml import Future, Graph, Tensor

__all__ = ["CLOSED", "Site", "computing", "free_with", "site_of", "unplace"]


class Site(ABC):
    """A backend or a scheduler, with the same methods.

    Attributes:
        backends: in order of priority.
    """

    backends: tuple[Backend, ...]

    def __init__(self) -> None:
        self._prepared: weakref.WeakSet[Graph] = weakref.WeakSet()

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that were prepared here and are still kept."""
        return there(self._prepared)

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory of all backends, which all their graphs share."""
        return sum(backend.memory.size for backend in set(self.backends))

    @property
    def host(self) -> Backend:
        """The backend for tensors that belong to no layer, such as tokens: the last one."""
        return self.backends[-1]

    @abstractmethod
    async def prepare(self, graph: Graph) -> None:
        """Plan, allocate and compile a graph without holding up the loop."""

    @abstractmethod
    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, Any] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        """Queue a run of a graph: `Backend.run`, or `Scheduler.run`."""

    @abstractmethod
    def forget(self, graph: Graph) -> None:
        """Free the memory that `prepare` allocated; if the graph is running, when that run ends."""

    def beside(self, tensor: Tensor | None) -> Backend:
        """The backend on whose device a tensor lies; `host` if it has no memory."""
        device = None if tensor is None or tensor.buffer is None else tensor.buffer.type.device
        return next((b for b in self.backends if b.device is device), self.host)


class _One(Site):
    """One backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backends = (backend,)
        self._backend = backend

    async def prepare(self, graph: Graph) -> None:
        await self.host.prepare(graph)
        self._prepared.add(graph)

    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, Any] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        return self._backend.run(graph, inputs, outputs)

    def forget(self, graph: Graph) -> None:
        if graph.memory is not None:
            graph.memory.close()


class _Several(Site):
    """The backends of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.backends = scheduler.backends
        self._scheduler = scheduler

    async def prepare(self, graph: Graph) -> None:
        await self._scheduler.prepare(graph)
        self._prepared.add(graph)

    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, Any] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        return self._scheduler.run(graph, inputs, outputs)

    def forget(self, graph: Graph) -> None:
        self._scheduler.forget(graph)

    @property
    def scratch(self) -> int:
        """As of every site, and what the scheduler has for values of its graphs."""
        own = sum(self._scheduler.buffer_size(backend) for backend in self.backends)
        return own + super().scratch


class _Closed(Site):
    """The place of a model that is closed: it keeps no backend, and no scratch memory of one."""

    backends = ()

    async def prepare(self, graph: Graph) -> None:
        raise closed_error("aggml.models")

    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, Any] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        raise closed_error("aggml.models")

    def forget(self, graph: Graph) -> None:
        pass


CLOSED: Final = _Closed()


def site_of(given: Backend | Scheduler) -> Site:
    """The site for a backend or a scheduler.

    Raises:
        InvalidHandle: it is neither a backend nor a scheduler.
    """
    if isinstance(given, Scheduler):
        return _Several(given)
    if isinstance(given, Backend):
        return _One(given)
    raise InvalidHandle(
        f"[aggml.models] backend is {shown(given)}, expected a Backend or a Scheduler"
    )


def free_with(owner: object, graph: Graph) -> None:
    """Free the memory of a prepared graph when nobody refers to ``owner`` any more.

    A prepared graph and its plan refer to each other, and both to the weights. Without this they
    would stay until Python's collector looks for cycles, which may be never in a service.
    """
    memory = graph.memory
    if memory is not None:
        weakref.finalize(owner, memory.close).atexit = False


def unplace(tensors: Iterable[Tensor]) -> None:
    """Close the buffers of tensors: the memory is freed as soon as no queued work uses it."""
    for buffer in {tensor.buffer for tensor in tensors if tensor.buffer is not None}:
        buffer.close()


@asynccontextmanager
async def computing(
    devices: Sequence[str], threads: int | None
) -> AsyncGenerator[Backend | Scheduler]:
    """A backend on a device, or a scheduler over several and the CPU, until the end of the block.

    Args:
        devices: names, in order of priority; none: the best device.
        threads: for each; None: all usable cores.

    Raises:
        DeviceNotFound: there is no device of that name.
    """
    found = [get_device(name) for name in devices] or [best_device()]
    if len(found) > 1 and found[-1].type is not DeviceType.CPU:
        found.append(get_device("CPU"))
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(device.backend(n_threads=threads)) for device in found
        ]
        if len(backends) == 1:
            yield backends[0]
        else:
            yield await stack.enter_async_context(Scheduler(backends, parallel=True))
