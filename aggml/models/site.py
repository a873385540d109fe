"""Site: where a model lies and is computed, one backend or several under a scheduler.

Here: one class for both, and for what is closed; freeing the memory of graphs and weights; opening
backends by the names of devices. Not here: which layer goes where (dividing.py), loading weights
(weights.py).
"""

from __future__ import annotations

import weakref
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aggml import Backend, DeviceType, InvalidHandle, Scheduler, best_device, get_device
from aggml.models.arguments import show
from aggml.models.lifetime import closed_error
from aggml.process.alive import there

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from aggml import Future, Graph, Tensor

__all__ = ["CLOSED", "Site", "computing", "free_with", "site_of", "unplace"]


class Site:
    """A backend or a scheduler, or neither: the site of a model that is closed.

    Both queue a graph and return its Future, so `run` is theirs. What only one of them does is
    here. A scheduler forgets a graph; a backend has nothing to forget but the graph's memory. And a
    scheduler has memory of its own for values of its graphs.

    Attributes:
        backends: in order of priority; none if the site is closed.
    """

    def __init__(self, computer: Backend | Scheduler | None) -> None:
        self._computer = computer
        self._prepared: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.backends: tuple[Backend, ...] = ()
        self._run: Callable[..., Future[Any]] = _refuse_run
        if computer is not None:
            self._run = computer.run
            self.backends = computer.backends if isinstance(computer, Scheduler) else (computer,)

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that were prepared here and are still kept."""
        return there(self._prepared)

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory of all backends, which all their graphs share."""
        found = sum(backend.memory.size for backend in set(self.backends))
        if isinstance(self._computer, Scheduler):
            found += sum(self._computer.buffer_size(backend) for backend in self.backends)
        return found

    @property
    def host(self) -> Backend:
        """The backend for tensors that belong to no layer, such as tokens: the last one."""
        return self.backends[-1]

    async def prepare(self, graph: Graph) -> None:
        """Plan, allocate and compile a graph without holding up the loop."""
        if self._computer is None:
            raise closed_error("aggml.models")
        await self._computer.prepare(graph)
        self._prepared.add(graph)

    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, Any] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        """Queue a run of a graph: `Backend.run`, or `Scheduler.run`."""
        return self._run(graph, inputs, outputs)

    def forget(self, graph: Graph) -> None:
        """Free the memory that `prepare` allocated; if the graph is running, when that run ends."""
        if isinstance(self._computer, Scheduler):
            self._computer.forget(graph)
        elif self._computer is not None and graph.memory is not None:
            graph.memory.close()

    def beside(self, tensor: Tensor | None) -> Backend:
        """The backend on whose device a tensor lies; `host` if it has no memory."""
        device = None if tensor is None or tensor.buffer is None else tensor.buffer.type.device
        return next((b for b in self.backends if b.device is device), self.host)


def _refuse_run(*_: object) -> NoReturn:
    raise closed_error("aggml.models")


#: The site of every model that is closed: it keeps no backend, and no scratch memory of one.
CLOSED: Final = Site(None)


def site_of(given: Backend | Scheduler) -> Site:
    """The site for a backend or a scheduler.

    Raises:
        InvalidHandle: it is neither a backend nor a scheduler.
    """
    if isinstance(given, Backend | Scheduler):
        return Site(given)
    raise InvalidHandle(
        f"[aggml.models] backend is {show(given)}, expected a Backend or a Scheduler"
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
