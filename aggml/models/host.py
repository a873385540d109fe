"""Host: several models in one process, within one bound of memory.

Models are added by name, loaded when they are first used, and unloaded when another model needs the
memory. The host has no task of its own: those who wait for a model load it. It may be used from any
event loop and any thread. Here: the models, who waits for which, the order of loads. Not here: how
much memory a model takes (fitting.py before it is loaded, memory.py after), loading (loading.py).

A model counts with the bytes that it was measured to take while nobody uses it, because they do not
grow then. While it is used it counts with the bytes that `fit` says, or more if it takes more.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import anyio.to_thread

import aggml
from aggml import AggmlError, InvalidArgument, InvalidState
from aggml.devices.cpu import CPUBackend, CPUDevice
from aggml.memory.shortage import amount
from aggml.models.adapters.given import adapters_of
from aggml.models.adapters.reading import read_adapters
from aggml.models.arguments import file_path, flag, integer, number, one_text, show
from aggml.models.beside import read_beside
from aggml.models.checking import describe_checked
from aggml.models.description import Description
from aggml.models.drafting import draft_of
from aggml.models.fitting import Fit, MemoryShortage, available, cache_type, fit_model, fit_voice
from aggml.models.loading import load
from aggml.models.portal import current_caller
from aggml.models.site import site_of
from aggml.models.speech.voice import is_voice_file
from aggml.models.weights import open_model
from aggml.process.locks import new_rlock
from aggml.stream.parker import Parker
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aggml import Backend, Device, Scheduler
    from aggml.models.model import Model

__all__ = ["Clearance", "Host", "ModelStatus", "ModelUse", "Neighbour", "make_room"]

State = Literal["unloaded", "loading", "loaded", "unloading"]

SLOTS = 4  # sequences at a time of a model, at most, if nobody says how many
EVERYTHING = 1 << 62  # bytes


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model of a `Host`.

    Attributes:
        state: "unloaded", "loading", "loaded" or "unloading".
        bytes: that it takes at this moment.
        uses: how often it was used.
        last_used: when its last use ended, or now if it is used, as `time.time` tells it; None:
            never.
    """

    state: State
    bytes: int
    uses: int
    last_used: float | None


# -- the decision


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A loaded model, as `make_room` sees it.

    Attributes:
        name: of the model.
        bytes: that it counts with.
        idle: that it would count with if nobody used it.
        used: whether somebody uses it.
        stays: whether it must not be unloaded, even if nobody uses it.
        held: whether the caller itself uses it.
        last: when it was last used.
    """

    name: str
    bytes: int
    idle: int
    used: bool = False
    stays: bool = False
    held: bool = False
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class Clearance:
    """What has to happen before a model can be used.

    Attributes:
        bytes: that it will count with; 0: there is no room yet, or never.
        unload: models to unload first.
        wait: models whose uses have to end first; no further uses of them begin.
        missing: above 0: there is never room; so many bytes are missing.
    """

    bytes: int = 0
    unload: tuple[str, ...] = ()
    wait: tuple[str, ...] = ()
    missing: int = 0


def make_room(limit: int, need: int, least: int, others: list[Neighbour]) -> Clearance:
    """Decide which models make room for one that is to be used.

    The least recently used ones are unloaded first, and no more of them than needed.

    Args:
        limit: bytes for all models.
        need: bytes that the model may take at most.
        least: bytes without which it cannot be used. Between these two it gets what there is when
            nobody uses another one.
        others: all other models that have memory.
    """
    fixed = sum(x.bytes if x.held else x.idle for x in others if x.held or x.stays)
    if fixed + least > limit:
        return Clearance(missing=fixed + least - limit)
    need = min(need, limit - fixed)
    total = need + sum(x.bytes for x in others)
    unload = []
    idle = sorted((x for x in others if not (x.used or x.stays or x.held)), key=lambda x: x.last)
    for one in idle:
        if total <= limit:
            break
        total -= one.bytes
        unload.append(one.name)
    if total <= limit:
        return Clearance(need, tuple(unload))
    wait = []
    for one in sorted((x for x in others if x.used and not x.held), key=lambda x: x.last):
        if total <= limit:
            break
        total -= one.bytes - one.idle if one.stays else one.bytes
        wait.append(one.name)
    return Clearance(wait=tuple(wait))


# -- the models


class _Claim:
    """The claim of one task on a model, from the begin of its block, or of its wait, to the end.

    Attributes:
        entry: the model.
        model: the model itself, once the claim is granted.
        error: raised by the task that waits.
        parker: wakes it.
    """

    def __init__(self, entry: _Entry) -> None:
        self.entry = entry
        self.parker: Parker = Parker()
        self.model: Model | None = None
        self.error: Exception | None = None
        task = current_caller()
        self._task: weakref.ref[object] | None = None if task is None else weakref.ref(task)

    def grant(self, model: Model | None) -> bool:
        """Let the one who waits go on; False: its loop is closed."""
        self.model = model
        return self.parker.unpark()

    def fail(self, error: Exception) -> None:
        """Let the one who waits raise."""
        self.error = error
        self.parker.unpark()

    def is_of_the_same_task(self, claims: Iterable[_Claim]) -> bool:
        """Whether its task has one of these claims as well."""
        mine = None if self._task is None else self._task()
        return mine is not None and any(
            x._task is not None and x._task() is mine for x in list(claims)
        )


@dataclass(eq=False)
class _Entry:
    """One model of a host."""

    name: str
    path: Path
    options: dict[str, Any]
    pinned: bool
    share: float
    state: State = "unloaded"
    model: Model | None = None
    backend: Backend | None = None  # opened for this model alone
    fit: Fit | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    reserved: int = 0  # bytes that it may take while it is used
    measured: int = 0
    uses: int = 0
    last: float = 0.0  # of a clock that never goes back
    last_used: float | None = None
    holders: list[_Claim] = field(default_factory=list)
    waiting: deque[_Claim] = field(default_factory=deque)
    driver: _Claim | None = None  # whose task looks at the file, makes room and loads
    victims: tuple[_Entry, ...] = ()
    draining: bool = False

    def is_busy(self) -> bool:
        """Whether somebody uses it, loads it, unloads it, or makes room for it."""
        return bool(self.holders) or self.state != "loaded" or self.driver is not None

    @property
    def counted(self) -> int:
        """Bytes that it counts with now."""
        if self.state == "unloaded":
            return 0
        if self.state == "loaded" and not self.holders and self.driver is None:
            return self.measured
        return max(self.reserved, self.measured)


class Host:
    """Several models in one process: ``async with aggml.models.Host() as host: ...``.

    ``host.add("chat", "model.gguf")``
    ``async with host.use("chat") as model: print((await model.chat(messages)).content)``

    Whoever comes first is served first: while somebody waits for memory, no new use begins of the
    models that have to make room. A task that uses one model and asks for another one that does not
    fit beside it is refused, because it would wait for itself.

    Args:
        backend: where all models are computed; it must stay open. None: each model gets a backend
            of its own on the best device; on the CPU they share one pool of threads.
        memory: bytes for all models together; None: what is free on the device when one is loaded.
        idle: seconds after which a model that nobody uses is unloaded; None: never. The host looks
            for such models whenever it is used, and in `tidy`.

    Raises:
        InvalidArgument: ``memory`` below 1, ``idle`` below 0, an argument of another type.
        InvalidHandle: ``backend`` is neither a backend nor a scheduler.
    """

    def __init__(
        self,
        backend: Backend | Scheduler | None = None,
        *,
        memory: int | None = None,
        idle: float | None = None,
    ) -> None:
        if backend is not None:
            site_of(backend)  # raises
        self._backend = backend
        self._given = None if memory is None else integer("Host", "memory", memory, 1)
        self._idle = None if idle is None else number("Host", "idle", idle, 0)
        self._entries: dict[str, _Entry] = {}
        self._order: deque[_Entry] = deque()  # who waits for memory, first come, first served
        self._ending: list[Parker] = []
        self._closed = False
        self._process = os.getpid()
        # Held for some us, never across an await. The same thread may come again: the collector
        # may close a coroutine that waits here.
        self._lock = new_rlock()

    # -- what users call

    def add(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        pinned: bool = False,
        share: float = 1.0,
        **load_options: Any,  # noqa: ANN401 those of `load`
    ) -> None:
        """Add a model; nothing is loaded.

        Args:
            name: for `use`.
            path: as for `load`.
            pinned: keep it loaded once it was used.
            share: of the CPU's threads that compute, so many work for this model at most; 1: all of
                them. On other devices, and under a scheduler, it has no effect.
            load_options: of `load`. Without ``ctx`` and ``slots`` a model of text gets what fits
                into the memory of the host, at most 4 sequences.

        Raises:
            InvalidArgument: there is a model of that name; an argument of another type or out of
                its range, those of `load` included.
            InvalidState: the host is closed.
        """
        self._check_open("Host.add")
        known = inspect.signature(load).parameters
        wrong = [x for x in load_options if x not in known or x in ("path", "backend")]
        if wrong:
            raise InvalidArgument(
                f"[Host.add] {wrong[0]!r} is no option of aggml.models.load: these are "
                f"{', '.join(x for x in known if x not in ('path', 'backend'))}"
            )
        text = one_text("Host.add", "name", name)
        entry = _Entry(
            text, file_path("Host.add", "path", path), dict(load_options),
            flag("Host.add", "pinned", pinned),
            number("Host.add", "share", share, 0, above=True),
        )  # fmt: skip
        load(entry.path, self._backend, **load_options).close()  # raises if an option is wrong
        with self._lock:
            if text in self._entries:
                raise InvalidArgument(f"[Host.add] there is a model {show(text)} already")
            self._entries[text] = entry

    def use(self, name: str) -> ModelUse:
        """A model for the time of a block: ``async with host.use("chat") as model: ...``.

        It is loaded if needed, and stays loaded from then to the end of the block.

        Raises:
            InvalidArgument: there is no model of that name.
            MemoryShortage: by the block: it does not fit, even if all models that may be unloaded
                are. The error names the missing bytes.
            InvalidState: by the block: the host is closed; or the task uses other models that would
                have to be unloaded first.
            ModelError: by the block: it cannot be loaded. All who wait for it get the error; the
                next use tries again.

        Cancellation: leaves the queue; the next one who waits goes on with the load.
        """
        self._check_open("Host.use")
        return ModelUse(self, self._entry("Host.use", name))

    async def unload(self, name: str) -> None:
        """Unload a model, a pinned one, too; the next use loads it again.

        It does not wait for uses to end: a model that somebody uses or waits for is refused.

        Raises:
            InvalidArgument: there is no model of that name.
            InvalidState: somebody uses it or waits for it.
        """
        await CHECKPOINT
        self._check_open("Host.unload")
        entry = self._entry("Host.unload", name)
        with self._lock:
            if entry.holders or entry.waiting:
                raise InvalidState(
                    f"[Host.unload] {show(name)} is used by {len(entry.holders)} tasks, and "
                    f"{len(entry.waiting)} wait for it: unload it when they have ended"
                )
            if entry.state != "loaded":
                return
            entry.state = "unloading"
        await self._close([entry])

    async def tidy(self) -> None:
        """Unload models that nobody has used for ``idle`` seconds."""
        await CHECKPOINT
        self._check_open("Host.tidy")
        await self._sweep()

    @property
    def models(self) -> dict[str, ModelStatus]:
        """The state of each model, by name."""
        return {entry.name: _status(entry) for entry in list(self._entries.values())}

    async def aclose(self) -> None:
        """Unload all models, and refuse further uses.

        Those who wait get InvalidState. Calls on models that are still used end with InvalidState,
        too. Loads under way are waited for.

        Cancellation: takes effect after all models are closed.
        """
        await CHECKPOINT
        with self._lock:
            self._closed = True
            self._order.clear()
            self._settle()
        with anyio.CancelScope(shield=True):
            while True:
                with self._lock:
                    loaded = [
                        x for x in self._entries.values() if x.state == "loaded" and not x.driver
                    ]
                    for entry in loaded:
                        entry.state = "unloading"
                    busy = any(x.state != "unloaded" or x.driver for x in self._entries.values())
                    parker = Parker()
                    if busy and not loaded:
                        self._ending.append(parker)
                if loaded:
                    await self._close(loaded)
                elif busy:
                    await parker.park()
                else:
                    return

    async def __aenter__(self) -> Self:
        self._check_open("Host")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        states = ", ".join(f"{x.name}: {x.state}" for x in list(self._entries.values()))
        return f"<Host {states or 'without models'}>"

    # -- checks

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise _closed_error(what)
        if self._process != os.getpid():
            raise InvalidState(
                f"[{what}] the host belongs to the parent process of a fork: make one in this one"
            )

    def _entry(self, what: str, name: str) -> _Entry:
        entry = self._entries.get(one_text(what, "name", name))
        if entry is None:
            known = ", ".join(self._entries) or "none"
            raise InvalidArgument(f"[{what}] there is no model {show(name)}; there are: {known}")
        return entry

    def _limit(self) -> int:
        """Bytes for all models."""
        if self._given is not None:
            return self._given
        backends = () if self._backend is None else site_of(self._backend).backends
        devices: set[Device] = {b.device for b in backends} or {aggml.best_device()}
        free = [available(device) for device in devices]
        if None in free:
            return EVERYTHING
        return sum(x.measured for x in self._entries.values() if x.state != "unloaded") + sum(
            x for x in free if x is not None
        )

    # -- uses; all of these are called with the lock

    def _arrive(self, claim: _Claim) -> None:
        """Note a use that begins."""
        entry = claim.entry
        entry.waiting.append(claim)
        if (
            self._is_open(entry)
            and entry.holders
            and (not entry.draining or claim.is_of_the_same_task(entry.holders))
        ):
            self._grant(entry, [claim])
        elif entry.driver is None and entry not in self._order:
            self._order.append(entry)

    def _leave(self, claim: _Claim) -> None:
        """Note the end of a use, or that one who waited has gone."""
        entry = claim.entry
        if claim in entry.holders:
            entry.holders.remove(claim)
            entry.last, entry.last_used = time.monotonic(), time.time()
        if claim in entry.waiting:
            entry.waiting.remove(claim)
        if entry.driver is claim:  # the next one goes on
            entry.driver = None
            if entry.waiting and entry not in self._order:
                self._order.appendleft(entry)

    def _is_open(self, entry: _Entry) -> bool:
        """Whether it is loaded, and nobody has closed the model itself."""
        if entry.model is not None and entry.state == "loaded" and entry.model.closed:
            entry.model, entry.state = None, "unloaded"
            entry.reserved = entry.measured = 0
        return entry.state == "loaded"

    def _grant(self, entry: _Entry, claims: list[_Claim]) -> None:
        for claim in claims:
            entry.waiting.remove(claim)
            entry.holders.append(claim)
            entry.uses += 1
            entry.last, entry.last_used = time.monotonic(), time.time()
            if not claim.grant(entry.model):  # its loop is closed
                entry.holders.remove(claim)

    def _fail(self, entry: _Entry, error: Exception) -> None:
        """Give an error to all who wait for a model."""
        for claim in list(entry.waiting):
            entry.waiting.remove(claim)
            claim.fail(error)

    def _settle(self) -> None:
        """Decide what happens next, after anything has changed."""
        for entry in self._entries.values():
            entry.draining = False
            if self._closed and entry.driver is None:
                self._fail(entry, _closed_error("Host.use"))
        while self._order and not self._closed:
            entry = self._order[0]
            if not entry.waiting:
                self._order.popleft()
                continue
            if entry.driver is not None or entry.state == "unloading":
                break
            if entry.fit is None:
                if self._appoint(entry):
                    break
                continue
            if not self._let_in(entry):
                break
        for entry in self._entries.values():  # those that no longer have to make room
            if self._is_open(entry) and entry.holders and not entry.draining and not entry.driver:
                self._grant(entry, list(entry.waiting))
        for parker in self._ending:
            parker.unpark()

    def _appoint(self, entry: _Entry) -> bool:
        """Have one who waits go on with the load; False: none of them is left."""
        while entry.waiting:
            entry.driver = entry.waiting[0]
            if entry.driver.parker.unpark():
                return True
            entry.driver = None  # its loop is closed
            entry.waiting.popleft()
        return False

    def _let_in(self, entry: _Entry) -> bool:
        """Make room for the first of the queue; False: it has to wait."""
        assert entry.fit is not None
        first = entry.waiting[0]
        is_open = self._is_open(entry)
        others = [
            Neighbour(
                x.name, x.counted, x.measured, used=x.is_busy(),
                stays=x.pinned and x.state == "loaded", held=first.is_of_the_same_task(x.holders),
                last=x.last,
            )
            for x in self._entries.values()
            if x is not entry and (x.state != "unloaded" or x.driver is not None)
        ]  # fmt: skip
        least = entry.fit.weights + entry.fit.pages
        need = max(entry.fit.total, entry.measured)
        room = make_room(self._limit(), need, least, others)
        if room.missing:
            self._order.popleft()
            self._fail(entry, self._no_room(entry, room.missing, others))
            return True
        if not room.bytes:
            waits = [self._entries[name] for name in room.wait]
            for x in waits:
                x.draining = True
            if not any(x.state != "loaded" or x.driver or self._goes_on(x) for x in waits):
                self._order.popleft()
                self._fail(entry, self._circle(entry, waits))
                return True
            return False
        self._order.popleft()
        entry.reserved = room.bytes
        if is_open and not room.unload:
            self._grant(entry, list(entry.waiting))
            return True
        entry.victims = tuple(self._entries[name] for name in room.unload)
        for x in entry.victims:
            x.state = "unloading"
        if not is_open:
            entry.state = "loading"
        if not self._appoint(entry):
            self._give_up(entry)
        return True

    def _goes_on(self, entry: _Entry) -> bool:
        """Whether any task that uses a model does not wait for another one."""
        waiting = [claim for x in list(self._entries.values()) for claim in list(x.waiting)]
        return any(not claim.is_of_the_same_task(waiting) for claim in entry.holders)

    def _give_up(self, entry: _Entry) -> None:
        """Undo what `_let_in` promised, because nobody carries it out."""
        for x in entry.victims:
            if x.state == "unloading":
                x.state = "loaded"
        entry.victims = ()
        if entry.state == "loading":
            entry.state, entry.reserved = "unloaded", 0

    def _no_room(self, entry: _Entry, missing: int, others: list[Neighbour]) -> AggmlError:
        held = [x.name for x in others if x.held]
        if held:
            return InvalidState(
                f"[Host.use] {entry.name!r} needs the memory of {', '.join(map(repr, held))}, "
                "which this task uses itself: end that use first"
            )
        assert entry.fit is not None
        pinned = [x.name for x in others if x.stays]
        beside = f" beside {', '.join(map(repr, pinned))}, which are pinned" if pinned else ""
        error = MemoryShortage(
            f"[Host.use] {entry.name!r} does not fit{beside}: {amount(missing)} are missing. It "
            f"needs weights {amount(entry.fit.weights)} and pages {amount(entry.fit.pages)}"
        )
        error.missing, error.memory = missing, self._limit()
        error.needed = error.memory + missing
        return error

    def _circle(self, entry: _Entry, waits: list[_Entry]) -> InvalidState:
        names = ", ".join(repr(x.name) for x in waits)
        return InvalidState(
            f"[Host.use] {entry.name!r} needs the memory of {names}; all tasks that use these wait "
            "for other models themselves: end one use before the next begins"
        )

    # -- loading and unloading

    async def _begin(self, entry: _Entry) -> _Claim:
        """Wait until a model can be used; the claim that this returns has it."""
        claim = _Claim(entry)
        await self._sweep(spared=entry)
        with self._lock:
            if self._closed:
                raise _closed_error("Host.use")
            self._arrive(claim)
            self._settle()
        try:
            while claim.model is None:
                if claim.error is not None:
                    raise _again(claim.error)
                if entry.driver is claim:
                    await self._carry_out(entry)
                else:
                    await claim.parker.park()
        except BaseException:
            with self._lock:
                self._leave(claim)
                self._settle()
            raise
        return claim

    async def _end(self, claim: _Claim) -> None:
        """End a use that `_begin` has begun."""
        model, taken = claim.model, 0
        if model is not None and not model.closed:
            try:
                taken = model.memory.total
            except AggmlError:  # closed meanwhile
                taken = 0
        with self._lock:
            claim.entry.measured = max(taken, 0) or claim.entry.measured
            self._leave(claim)
            self._settle()
        if not self._closed:
            await self._sweep()

    async def _carry_out(self, entry: _Entry) -> None:
        """What the one who was appointed does: look at the file, or make room and load."""
        try:
            if entry.fit is None:
                found, options = await self._look(entry)
                with self._lock:
                    entry.fit, entry.load_options = found, options
                    entry.driver = None
            else:
                await self._close(list(entry.victims))
                entry.victims = ()
                if entry.state == "loading":
                    model, backend = await self._load(entry)
                    taken = model.memory.total
                    with self._lock:
                        entry.model, entry.backend, entry.measured = model, backend, taken
                        entry.state = "loaded"
                with self._lock:
                    entry.driver = None
                    if not self._closed:
                        self._grant(entry, list(entry.waiting))
        except Exception as error:
            with self._lock:
                self._give_up(entry)
                entry.driver = None
                if entry in self._order:
                    self._order.remove(entry)
                self._fail(entry, error)
        except BaseException:
            with self._lock:
                self._give_up(entry)
            raise  # `_leave` appoints the next one
        finally:
            with self._lock:
                self._settle()

    async def _look(self, entry: _Entry) -> tuple[Fit, dict[str, Any]]:
        """What a model will take, from the head of its file, and the options to load it with."""
        options = dict(entry.options)
        cache = cache_type(options.get("cache", "f16"))
        site = None if self._backend is None else site_of(self._backend)
        limit = min(self._limit(), options.get("memory") or EVERYTHING)
        ctx, slots = options.get("ctx"), options.get("slots")
        if await anyio.to_thread.run_sync(is_voice_file, entry.path):
            return await fit_voice(entry.path, site, limit), options
        with await open_model(entry.path) as file:
            model = await anyio.to_thread.run_sync(describe_checked, file.metadata, file.tensors)
            adapters = None
            if isinstance(model, Description):
                given = adapters_of("load", options.get("adapters"), options.get("control_vectors"))
                adapters = await read_adapters(model, file, given)
            eyes = options.get("mmproj")
            beside = await read_beside(
                "load", model, file, draft_of("load", options.get("draft")),
                None if eyes is None else file_path("load", "mmproj", eyes),
                site.backends[-1].device if site is not None
                else await anyio.to_thread.run_sync(aggml.best_device),
            )  # fmt: skip
            try:
                found = await fit_model(
                    model, file, site, limit, ctx, slots, cache, adapters, beside
                )
            except MemoryShortage:
                # Scratch and packed copies are the most that it may need: it may do with less.
                found = await fit_model(
                    model, file, site, EVERYTHING, ctx or 256, slots or 1, cache, adapters, beside
                )
                if found.weights + found.pages + beside.weights > limit:
                    raise
            if isinstance(model, Description):
                if slots is None and found.slots > SLOTS:
                    found = await fit_model(
                        model, file, site, EVERYTHING, found.ctx, SLOTS, cache, adapters, beside
                    )
                options["slots"] = found.slots
                options.setdefault("ctx", found.ctx)
        return found, options

    async def _load(self, entry: _Entry) -> tuple[Model, Backend | None]:
        """Load a model, and open the backend for it if it has a share of the threads."""
        backend = self._backend
        own: Backend | None = None
        if entry.share < 1 and (backend is None or isinstance(backend, CPUBackend)):
            own = await anyio.to_thread.run_sync(_part_of, backend, entry.share)
        try:
            at = backend if own is None else own
            return await load(entry.path, at, **entry.load_options), own
        except BaseException:
            if own is not None:
                with anyio.CancelScope(shield=True):
                    await own.aclose()
            raise

    async def _close(self, entries: list[_Entry]) -> None:
        """Close models whose state is "unloading"."""
        left = deque(entries)
        try:
            with anyio.CancelScope(shield=True):
                while left:
                    entry = left.popleft()
                    try:
                        await _end(entry)
                    finally:
                        with self._lock:
                            entry.model = entry.backend = None
                            entry.state = "unloaded"
                            entry.reserved = entry.measured = 0
                            self._settle()
        finally:
            if left:  # a loop was ended in the middle
                with self._lock:
                    for entry in left:
                        entry.state = "loaded"
                    self._settle()

    async def _sweep(self, spared: _Entry | None = None) -> None:
        """Unload models that are idle too long, and some if all together take too much."""
        with self._lock:
            now = time.monotonic()
            idle = [
                x
                for x in self._entries.values()
                if x is not spared and not x.pinned and not x.waiting and x.driver is None
                and self._is_open(x) and not x.holders
            ]  # fmt: skip
            chosen = [x for x in idle if self._idle is not None and now - x.last >= self._idle]
            over = sum(x.counted for x in self._entries.values()) - self._limit()
            over -= sum(x.counted for x in chosen)
            for x in sorted(idle, key=lambda x: x.last):
                if over <= 0:
                    break
                if x not in chosen:
                    chosen.append(x)
                    over -= x.counted
            for x in chosen:
                x.state = "unloading"
        if chosen:
            await self._close(chosen)


class ModelUse:
    """``async with``: a model of a `Host` for the time of the block; made by `Host.use`."""

    def __init__(self, host: Host, entry: _Entry) -> None:
        self._host = host
        self._entry = entry
        self._claim: _Claim | None = None
        self._begun = False

    async def __aenter__(self) -> Model:
        await CHECKPOINT
        host = self._host
        host._check_open("Host.use")
        if self._begun:
            raise InvalidState("[Host.use] a use has one block: call host.use again")
        self._begun = True
        self._claim = await host._begin(self._entry)
        assert self._claim.model is not None
        return self._claim.model

    async def __aexit__(self, *_: object) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            await CHECKPOINT
            raise InvalidState("[Host.use] this use has no block, or it was left already")
        await self._host._end(claim)


def _status(entry: _Entry) -> ModelStatus:
    """The status of one model."""
    model, taken = entry.model, entry.measured
    if entry.state == "loaded" and model is not None:
        try:
            taken = model.memory.total
        except AggmlError:  # closed meanwhile
            taken = 0
    last = time.time() if entry.holders else entry.last_used
    return ModelStatus(entry.state, taken, entry.uses, last)


async def _end(entry: _Entry) -> None:
    """Close a model, and its backend if the host opened one for it."""
    try:
        if entry.model is not None:
            await entry.model.aclose()
    finally:
        if entry.backend is not None:
            await entry.backend.aclose()


def _part_of(backend: Backend | None, share: float) -> Backend | None:
    """A backend on the CPU with a share of its threads; None: the best device is no CPU."""
    if isinstance(backend, CPUBackend):
        made = CPUBackend(backend.device, use_ref=backend.use_ref, pool=backend.pool)
        made.n_threads = max(1, math.floor(backend.n_threads * share))
        return made
    device = aggml.best_device()
    if not isinstance(device, CPUDevice):
        return None
    made = device.backend()
    made.n_threads = max(1, math.floor(made.n_threads * share))
    return made


def _again(error: Exception) -> Exception:
    """An error for one of several tasks: each raises an object of its own."""
    try:
        found = copy.copy(error)
    except Exception:  # its class cannot be copied
        return error
    found.__cause__ = error
    return found


def _closed_error(what: str) -> InvalidState:
    """The error of every call on a closed host."""
    return InvalidState(f"[{what}] the host is closed")
