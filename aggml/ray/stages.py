"""The actors of a pipeline: starting, opening, restarting and closing them.

Here: placement, epochs. Not here: the actor itself (stage.py), its steps (dispatch.py).
"""

from __future__ import annotations

import contextlib
import math
import secrets
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from aggml import AllocFailed
from aggml.ray.errors import LOST, StageLost
from aggml.ray.files import FileServer
from aggml.ray.futures import result
from aggml.ray.link import KEY_BYTES
from aggml.ray.stage import Opening, StageActor
from aggml.ray.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from aggml.ray.clocks import Reading
    from aggml.ray.measuring import Measured, Sample
    from aggml.ray.stage import Duty, Facts, Seen

__all__ = ["Stages"]

_T = TypeVar("_T")

AGAIN: Final = 0.2  # seconds between two tries to reach a stage that is being started
LOOK: Final = 0.2  # seconds between two reports of progress


class Stages:
    """The actors of a pipeline.

    Args:
        duties: one for each stage.
        resources: what Ray reserves for each stage, such as ``{"CPU": 1}``.
        strategy: how Ray's placement group spreads them: "SPREAD", "STRICT_SPREAD", "PACK".
        patience: seconds that a lost stage may take to come back.
    """

    def __init__(
        self,
        duties: Sequence[Duty],
        resources: Sequence[Mapping[str, float]],
        strategy: str,
        patience: float,
    ) -> None:
        self.epoch: int = 0
        self.wire: Wire | None = None
        self.log: list[tuple[int, float, float]] | None = None  # steps of a running trace
        self._layers: tuple[tuple[int, int], ...] = ()
        self._key = secrets.token_bytes(KEY_BYTES)
        self.actors: list[Any] = []
        self.facts: list[Facts] = []
        self._duties = duties
        self._resources = [dict(x) for x in resources]
        self._strategy = strategy
        self._patience = patience
        self._healing = anyio.Lock()
        self._group: Any = None
        self._files: Any = None
        self._closed = False

    async def place(self) -> None:
        """Start the actors on nodes that have the resources.

        Raises:
            AllocFailed: the cluster does not have the resources.

        Cancellation: all stages are ended.
        """
        async with self._or_none():
            await anyio.to_thread.run_sync(self._reserve)
            with anyio.move_on_after(self._patience) as waited:
                await result(self._group.ready())
            if waited.cancelled_caught:
                raise AllocFailed(
                    f"[pipeline] the cluster had no place for {self._resources} "
                    f"({self._strategy}) within {self._patience:g} s; "
                    f"it has {_resources()}"
                )
            await anyio.to_thread.run_sync(self._start_actors)

    async def measure(
        self, sample: Sample, progress: Callable[[int, int], None] | None
    ) -> list[Measured]:
        """Have all stages measure at the same time how long layers take on their nodes.

        At the same time, because they will also compute at the same time.

        Args:
            sample: layers to measure.
            progress: called with bytes fetched so far and bytes in all; nodes without the file
                fetch it now.

        Raises:
            StageLost: a stage died meanwhile.

        Cancellation: all stages are ended.
        """
        found: list[Measured] = []
        async with self._or_none():
            found += await self._all([x.measure.remote(sample) for x in self.actors], progress)
        return found

    async def start(
        self, layers: Sequence[tuple[int, int]], progress: Callable[[int, int], None] | None
    ) -> None:
        """Open all stages.

        Args:
            layers: for each stage its first layer and the one after its last.
            progress: called with bytes loaded so far and bytes in all.

        Raises:
            StageLost: a stage died while it was opened.

        Cancellation: all stages are ended.
        """
        self._layers = tuple(layers)
        async with self._or_none():
            self.facts = await self._open_all(0, progress)
            await self._connect(0)

    @contextlib.asynccontextmanager
    async def _or_none(self) -> AsyncGenerator[None, None]:
        """End all stages if the block raises."""
        try:
            try:
                yield
            except LOST as error:
                raise self.loss_of(error) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    def _reserve(self) -> None:
        self._group = placement_group(self._resources, strategy=self._strategy)

    def _start_actors(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # Stages get this actor's name, not its handle: Ray does not restart an actor whose
        # arguments contain handles of actors that are gone.
        name = f"aggml-files-{uuid.uuid4().hex}"
        files = ray.remote(FileServer).options(
            num_cpus=0, scheduling_strategy=here, max_concurrency=64, name=name
        )
        self._files = files.remote(self._duties[0].source.path)
        for duty, needs in zip(self._duties, self._resources, strict=True):
            others = {k: v for k, v in needs.items() if k not in {"CPU", "GPU"}}
            actor = ray.remote(StageActor).options(
                num_cpus=needs.get("CPU", 0), num_gpus=needs.get("GPU", 0), resources=others,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=duty.number
                ),
                max_restarts=-1, max_task_retries=0, max_concurrency=1000,
            )  # fmt: skip
            self.actors.append(actor.remote(duty, name))

    async def _open_all(
        self, epoch: int, progress: Callable[[int, int], None] | None = None
    ) -> list[Facts]:
        """Open all stages for an epoch, all at the same time."""
        opening = Opening(epoch, self._key, self._layers, self.log is not None)
        return await self._all([actor.open.remote(opening) for actor in self.actors], progress)

    async def _all(
        self, refs: Sequence[ray.ObjectRef[_T]], progress: Callable[[int, int], None] | None
    ) -> list[_T]:
        """The results of all calls; meanwhile ``progress`` is called, if given."""
        found: list[_T] = []
        while len(found) < len(refs):
            with anyio.move_on_after(math.inf if progress is None else LOOK) as waited:
                found.append(await result(refs[len(found)]))
            if waited.cancelled_caught and progress is not None:
                await self._tell(progress)
        return found

    async def _tell(self, progress: Callable[[int, int], None]) -> None:
        """Report the bytes that all stages have fetched or loaded."""
        pairs = [await result(actor.load_progress.remote()) for actor in self.actors]
        whole = sum(whole for _, whole in pairs)
        if whole:
            progress(sum(done for done, _ in pairs), whole)

    async def heal(self, epoch: int, lost: StageLost) -> None:
        """Wait until all stages run again, with empty caches, and begin the next epoch.

        Args:
            epoch: the epoch of the loss; if it is over, another call has healed the stages.
            lost: the error of the loss.

        Raises:
            StageLost: a stage did not come back in time.
        """
        async with self._healing:
            if self.epoch != epoch:
                return
            if self._closed:
                raise lost
            last: BaseException = lost
            with anyio.move_on_after(self._patience):
                while True:
                    try:
                        self.facts = await self._open_all(epoch + 1)
                        await self._connect(epoch + 1)
                    except (StageLost, *LOST) as error:
                        last = error
                        await anyio.sleep(AGAIN)
                        continue
                    self.epoch = epoch + 1
                    return
            found = self.loss_of(last) if isinstance(last, LOST) else lost
            raise StageLost(
                f"{found}; it did not come back within {self._patience:g} s",
                found.stage, found.node,
            ) from last  # fmt: skip

    async def _connect(self, epoch: int) -> None:
        """Connect each stage to the next one, and the driver to both ends.

        Raises:
            StageLost: a stage is lost again.
        """
        await self._disconnect()
        addresses = [x.address for x in self.facts]
        for ref in [
            actor.connect.remote(epoch, address)
            for actor, address in zip(self.actors, addresses[1:], strict=False)
        ]:
            await result(ref)
        self.wire = await anyio.to_thread.run_sync(lambda: Wire(addresses, self._key, epoch, self))

    async def _disconnect(self) -> None:
        old, self.wire = self.wire, None
        if old is not None:
            await anyio.to_thread.run_sync(old.close)

    def loss_of(self, error: BaseException) -> StageLost:
        """StageLost for an error, with number and node of the stage as far as they are known."""
        if isinstance(error, StageLost):
            if error.stage is None or error.node or not 0 <= error.stage < len(self.facts):
                return error
            its = self.facts[error.stage].node
            return StageLost(f"{error} (node {its})", error.stage, its)
        gone = getattr(error, "actor_id", None)
        for number, actor in enumerate(self.actors):
            if gone and actor._actor_id.hex() == gone:
                node = self.facts[number].node if self.facts else None
                where = f" on node {node}" if node else ""
                found = StageLost(f"stage {number}{where} was lost: {error}", number, node)
                break
        else:
            found = StageLost(f"a stage was lost: {error}")
        found.__cause__ = error
        return found

    async def trace(self, *, on: bool) -> list[Seen]:
        """Have all stages begin or end a trace; returns what each has recorded.

        Raises:
            StageLost: a stage is lost.
        """
        refs = [actor.trace.remote(on=on) for actor in self.actors]
        try:
            return [await result(ref) for ref in refs]
        except LOST as error:
            raise self.loss_of(error) from error

    async def clock(self, number: int) -> Reading:
        """The clock of a stage's node.

        Raises:
            StageLost: the stage does not answer.
        """
        wire = self.wire
        if wire is None:
            raise StageLost(f"stage {number} is not connected", number)
        return await anyio.to_thread.run_sync(wire.clock, number)

    async def busy(self) -> list[float]:
        """Seconds that each stage has computed."""
        return [await result(actor.busy.remote()) for actor in self.actors]

    async def aclose(self) -> None:
        """End all stages; running steps are aborted."""
        self._closed = True
        await self._disconnect()
        await anyio.to_thread.run_sync(self._end)

    def _end(self) -> None:
        for actor in [*self.actors, *([] if self._files is None else [self._files])]:
            with contextlib.suppress(Exception):  # Ray may have ended before
                ray.kill(actor)
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)


def _resources() -> dict[str, float]:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found
