"""Service: opens the models once for all requests, or when they are asked for, and ends them.

Here: options, names, opening, draining. Not here: the routes (app.py), opening one model
(../opening.py), which models stay in memory (`aggml.models.Host`).
"""

from __future__ import annotations

import functools
import hashlib
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from aggml import InvalidArgument, __version__
from aggml.models import (
    EncoderModel,
    EngineError,
    Host,
    ModelError,
    SpeechModel,
    TextModel,
    caller,
    computing,
)
from aggml.process.paths import user_path
from aggml.serve.http.fields import Defaults, Ignored
from aggml.serve.http.kept import ResponseStore
from aggml.serve.http.keys import ClientShares, Keys, read_keys
from aggml.serve.http.metrics import Metrics
from aggml.serve.http.pacing import LiveSessions, UnderWay, collect_seldom
from aggml.serve.http.schema import RequestError
from aggml.serve.http.streams import LARGEST
from aggml.serve.opening import Limits, load_served, name_of, prepare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from aggml import Backend, Scheduler
    from aggml.models import Model
    from aggml.serve.http.schema import LoraScale, ModelRequest

__all__ = ["Head", "Options", "ServedEntry", "Service"]

#: What a model may have beside its vectors: ranks, and weights of words.
Head: TypeAlias = Literal["ranks", "terms"]
M = TypeVar("M", bound="Model")

ANY = "*"  # the alias for all names that no model has


@dataclass(frozen=True)
class Options:
    """The options of the service.

    Attributes:
        models: model files. Models that continue text serve completions and vectors, encoders
            embeddings, encoders with a rank head also rerank, speech models transcriptions.
        devices: names of aggml devices, which share each model; none: the best one.
        threads: threads that compute; None: as many as there are usable cores.
        limits: how much each model may take.
        deadline: seconds for a request that sets no ``timeout``.
        drain: seconds that requests under way have when the service stops.
        api_key: what requests must bring as ``Authorization: Bearer ...`` or ``X-Api-Key: ...``;
            several: one of them; None: nothing.
        api_key_file: a file with further keys (keys.py).
        collect_seldom: whether the garbage collector runs seldom once the models are loaded
            (pacing.py). For a process that does nothing else.
        progress: called with the file, bytes loaded so far and bytes in all.
        aliases: further names of models, each "NAME" for the first model or "NAME=MODEL". The first
            one of a model is the name in its answers. "*": any name that no model has.
        tags: words about models that `/v1/models` tells, each "TAG" for the first model or
            "TAG=MODEL".
        adapters: LoRA adapters of the first model by the names that requests give, as for
            `aggml.models.load`; requests may also give such a name as that of the model.
        defaults: values of fields that requests leave out, such as ``{"temperature": 0}``.
        strict: refuse fields that nobody knows, instead of ignoring and telling them.
        max_body: bytes of a body, before and after it is decompressed.
        max_inputs: texts to embed or prompts in one request.
        body_timeout: seconds in which the next part of a body must come.
        header_timeout: seconds in which the head of a request must be complete.
        ping: seconds after which a silent stream gets a comment; 0: never.
        rate: requests that a client may begin in a minute; None: any number.
        concurrency: requests that a client may have under way; None: any number.
        cors: origins whose pages may ask; "localhost": those of this machine; "*": all.
        memory: bytes for all models together: each is loaded when it is asked for first, and
            unloaded when others need its room; None: all are loaded at once and stay.
        idle: with ``memory``: seconds after which a model that nobody uses is unloaded.
        page: whether there is a page with a chat at ``/``.
        without: paths of routes that are answered 501, such as ``/slots``.
        sessions: sessions of live speech at a time; further ones are refused.
        session_idle: seconds after which a session from which nothing came is ended.
    """

    models: Sequence[Path]
    devices: Sequence[str] = ()
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    deadline: float = 120.0
    drain: float = 30.0
    api_key: str | Sequence[str] | None = None
    api_key_file: Path | None = None
    collect_seldom: bool = False
    progress: Callable[[Path, int, int], None] | None = None
    aliases: Sequence[str] = ()
    tags: Sequence[str] = ()
    adapters: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    max_body: int = LARGEST
    max_inputs: int = 2048
    body_timeout: float = 60.0
    header_timeout: float = 30.0
    ping: float = 15.0
    rate: int | None = None
    concurrency: int | None = None
    cors: Sequence[str] = ()
    memory: int | None = None
    idle: float | None = None
    page: bool = True
    without: Sequence[str] = ()
    sessions: int = 256
    session_idle: float = 300.0

    def keys(self) -> list[tuple[str, str]]:
        """The keys, each with its name.

        Raises:
            InvalidArgument, OSError: the file of keys cannot be read.
        """
        given = [self.api_key] if isinstance(self.api_key, str) else self.api_key or ()
        found = [(f"key{i}", key) for i, key in enumerate(given, 1)]
        return found + (read_keys(self.api_key_file) if self.api_key_file else [])


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


@dataclass
class ServedEntry:
    """A model of the service.

    Attributes:
        path: its file.
        names: those that requests may give; the first one is told.
        model: None: it is loaded when it is asked for.
        kind: its class, once it is known.
        heads: what it has heads for, beside its kind.
        adapters: those that requests may choose, by name, as for `aggml.models.load`.
        of_file: its name if it has no alias: that of its file; None: an alias is the same.
        title: what its file calls it.
        tags: words about it, for its users.
        prepared: `id` of the model that was prepared last; 0: none was.
        properties: what ``/props`` answered for that model, so that the next such request need not
            use the model; None: nobody has asked.
    """

    path: Path
    names: list[str]
    model: Model | None = None
    kind: type[Model] | None = None
    heads: frozenset[Head] = frozenset()
    adapters: Mapping[str, Any] = field(default_factory=dict)
    of_file: str | None = None
    title: str = ""
    tags: Sequence[str] = ()
    prepared: int = 0
    properties: dict[str, Any] | None = None

    @property
    def listed(self) -> list[str]:
        """The names that are listed: its aliases, or its file's if it has none."""
        aliases = [x for x in self.names if x not in (ANY, self.of_file)]
        return aliases or [self.name]

    @property
    def name(self) -> str:
        """The name that is told."""
        return next(x for x in self.names if x != ANY)

    @functools.cached_property  # it asks the file system
    def fingerprint(self) -> str:
        """What answers of the same seed depend on: the file and the version of the program."""
        stat = self.path.stat() if self.path.exists() else None
        what = f"{__version__}|{self.path.name}|{stat.st_size if stat else 0}"
        return "fp_" + hashlib.sha256(what.encode()).hexdigest()[:12]


class Service:
    """The models by name. A request that names no model gets the first that can answer it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics: Metrics = Metrics()
        self.keys: Keys = Keys(options.keys())
        self.shares: ClientShares = ClientShares(options.rate, options.concurrency)
        self.ignored: Ignored = Ignored(strict=options.strict)
        self.defaults: Defaults = Defaults(options.defaults)
        self.entries: list[ServedEntry] = _entries(options)
        self.host: Host | None = None
        self.answers: ResponseStore = ResponseStore()
        self.created: int = int(time.time())
        self.is_open: bool = False
        self.stopping: bool = False
        self.under_way: UnderWay = UnderWay()
        self.sessions: LiveSessions = LiveSessions(options.sessions)
        self.metrics.show_requests(self.under_way)
        self.metrics.show_sessions(self.sessions)
        self.metrics.show_ignored(self.ignored)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Service]:
        """Load the models. At the end of the block requests under way have some time to end."""
        o = self.options
        async with AsyncExitStack() as stack:
            if o.memory is not None:
                await self._open_host(stack)
            else:
                for entry in self.entries:
                    # Each model has a backend of its own, so it does not wait in another model's
                    # queue.
                    on = await stack.enter_async_context(computing(o.devices, o.threads))
                    await self._open(entry, on, stack)
            if o.collect_seldom:
                collect_seldom()
            await stack.enter_async_context(_beside(self.metrics.tick))
            if self.host is not None and o.idle is not None:
                await stack.enter_async_context(_beside(self._tidy))
            self.is_open = True
            try:
                yield self
            finally:
                await self.drain(o.drain)

    async def _open_host(self, stack: AsyncExitStack) -> None:
        o = self.options
        on = None
        if o.devices or o.threads is not None:
            on = await stack.enter_async_context(computing(o.devices, o.threads))
        self.host = await stack.enter_async_context(Host(on, memory=o.memory, idle=o.idle))
        for entry in self.entries:
            options = await anyio.to_thread.run_sync(o.limits.options, on) | _adapters(entry)
            for name in ("ctx", "slots"):  # the host finds what fits
                if options[name] is None:
                    del options[name]
            self.host.add(entry.name, entry.path, **options)

    async def _tidy(self) -> None:
        assert self.host is not None
        assert self.options.idle is not None
        while True:
            await anyio.sleep(max(1.0, self.options.idle / 2))
            await self.host.tidy()

    async def _open(
        self, entry: ServedEntry, on: Backend | Scheduler, stack: AsyncExitStack
    ) -> None:
        progress = self.options.progress
        path = entry.path

        def report(done: int, total: int) -> None:
            if progress is not None:
                progress(path, done, total)

        served = await stack.enter_async_context(
            load_served(
                path,
                on,
                self.options.limits,
                None if progress is None else report,
                **_adapters(entry),
            )
        )
        entry.title = served.title
        self._know(entry, served.model)
        entry.model = served.model

    def _know(self, entry: ServedEntry, model: Model) -> None:
        """Note what a loaded model can do."""
        entry.kind = type(model)
        entry.heads = _heads(model)
        if isinstance(model, TextModel):
            self.metrics.show_engine(entry.name, model)
        elif isinstance(model, EncoderModel):
            self.metrics.show_encoder(entry.name, model)

    # -- models by name

    @property
    def names(self) -> list[str]:
        """The names of the models that are served, all of each, and those of their adapters."""
        return [name for x in self.entries for name in (*x.names, *x.adapters) if name != ANY]

    @property
    def completers(self) -> dict[str, TextModel]:
        """The loaded models that continue text."""
        return {x.name: x.model for x in self.entries if isinstance(x.model, TextModel)}

    @property
    def embedders(self) -> dict[str, EncoderModel]:
        """The loaded encoders."""
        return {x.name: x.model for x in self.entries if isinstance(x.model, EncoderModel)}

    @property
    def transcribers(self) -> dict[str, SpeechModel]:
        """The loaded models of speech."""
        return {x.name: x.model for x in self.entries if isinstance(x.model, SpeechModel)}

    def has(self, kind: type[Model]) -> bool:
        """Whether a model of a class is served, as far as is known."""
        return any(x.kind is not None and issubclass(x.kind, kind) for x in self.entries)

    @property
    def ranks(self) -> bool:
        """Whether a model with a rank head is served, as far as is known."""
        return any("ranks" in x.heads for x in self.entries)

    def languages(self, name: str | None) -> tuple[str, ...]:
        """The languages of a model of speech, or of the first one; empty: it is not loaded."""
        for entry in self.entries:
            if name in (None, *entry.names) and isinstance(entry.model, SpeechModel):
                return entry.model.languages
        return ()

    def check(self, name: str, kind: type[Model], what: str) -> None:
        """Check that a name is that of a model of a class.

        Raises:
            RequestError: it is not.
        """
        if not _can(self.find(name), [kind], head=None):
            able = [y for x in self.entries if _can(x, [kind], head=None) for y in x.names]
            raise _unknown(name, able, what)

    def find(self, name: str) -> ServedEntry:
        """The model of a name.

        Raises:
            RequestError: there is none; the message has the names that there are.
        """
        for entry in self.entries:
            if name in entry.names or name in entry.adapters:
                return entry
        for entry in self.entries:
            if ANY in entry.names:
                return entry
        raise _unknown(name, self.names)

    def adapter_of(
        self,
        name: str,
        given: str | Mapping[str, float] | None,
        numbered: Sequence[LoraScale] | None = None,
    ) -> str | Mapping[str, float] | None:
        """The adapter of a request, or names of adapters with their scales; None: none.

        Args:
            name: of the model, or of an adapter.
            given: what the request says beside that.
            numbered: what it says by numbers, as llama-server has them; None: nothing.

        Raises:
            RequestError: the model has no such adapter; two fields name some.
        """
        known = self.find(name).adapters
        chosen = name if name in known else None
        field = "adapter"
        if numbered is not None:
            if given is not None:
                raise RequestError(
                    400, "lora: adapter names adapters, too: give one of them", field="lora"
                )
            given, field = _by_number(name, [*known], numbered), "lora"
        if not given or given == chosen:
            return chosen
        names = [given] if isinstance(given, str) else [*given]
        if chosen is not None:
            told = ", ".join(repr(x[:64]) for x in names) or "none"
            raise RequestError(
                400, f"{field}: {told} is given, but the model's name, {name!r}, is that "
                "of another adapter", field=field,
            )  # fmt: skip
        missing = next((x for x in names if x not in known), None)
        if missing is not None:
            there = ", ".join(map(repr, known)) or "none"
            raise RequestError(
                400, f"{field}: {name!r} has no adapter {missing[:64]!r}; there are {there}",
                field=field,
            )  # fmt: skip
        return given

    async def lease(
        self,
        stack: AsyncExitStack,
        given: ModelRequest,
        kinds: Sequence[type[Model]],
        what: str,
        *,
        head: Head | None = None,
    ) -> tuple[str, Model]:
        """The model that answers a request, until the end of the stack, and the name it is told by.

        From here on the task computes for the request's user.

        Args:
            stack: ends the use.
            given: the request.
            kinds: of models that can answer, the best first.
            what: is asked for, for messages.
            head: that it must have.

        Raises:
            RequestError: there is no such model.
        """
        caller.set(given.user if isinstance(given.user, (str, int)) else None)
        if given.model is not None:
            entry = self.find(given.model)
            if not _can(entry, kinds, head=head):
                able = [
                    y for x in self.entries if _can(x, kinds, head=head)
                    for y in (*x.names, *x.adapters)
                ]  # fmt: skip
                raise _unknown(given.model, able, what)
            return given.model, await self._use(stack, entry, kinds, what, head=head)
        for kind in kinds:
            for entry in self.entries:
                if _can(entry, [kind], head=head):
                    unknown = entry.kind is None
                    async with AsyncExitStack() as use:
                        try:
                            model = await self._use(use, entry, kinds, what, head=head)
                        except RequestError:
                            if unknown:  # it was loaded for the first time, and is another one
                                continue
                            raise
                        await stack.enter_async_context(use.pop_all())
                        return entry.name, model
        raise RequestError(404, f"this server has no model for {what}", code="model_not_found")

    async def _use(
        self,
        stack: AsyncExitStack,
        entry: ServedEntry,
        kinds: Sequence[type[Model]],
        what: str,
        *,
        head: Head | None,
    ) -> Model:
        if entry.model is not None:
            return entry.model
        model = await stack.enter_async_context(self.use(entry))
        if not _can(entry, kinds, head=head):
            raise _unknown(entry.name, [], what)
        return model

    @asynccontextmanager
    async def use(self, entry: ServedEntry) -> AsyncIterator[Model]:
        """A model of the host, loaded if it is not, until the end of the block."""
        assert self.host is not None
        async with self.host.use(entry.name) as model:
            if entry.prepared != id(model):
                await prepare(model, entry.path)
                entry.prepared, entry.properties = id(model), None
                self._know(entry, model)
            yield model

    def state_of(self, entry: ServedEntry) -> str:
        """Whether a model is "loaded", "loading", "unloading" or "unloaded"."""
        if self.host is None:
            return "loaded" if entry.model is not None else "loading"
        return self.host.models[entry.name].state

    async def load(self, entry: ServedEntry) -> None:
        """Load a model of the host.

        Raises:
            RequestError: the service has none; it keeps all models loaded.
        """
        self._check_host()
        async with self.use(entry):
            pass

    async def unload(self, entry: ServedEntry) -> None:
        """Unload a model of the host.

        Raises:
            RequestError: as `load`; somebody uses the model.
        """
        await self._check_host().unload(entry.name)

    def _check_host(self) -> Host:
        if self.host is None:
            raise RequestError(
                400, "this service keeps all its models loaded: start it with --memory to load and "
                "unload them", field="model",
            )  # fmt: skip
        return self.host

    # -- the end

    async def drain(self, seconds: float) -> None:
        """Answer new requests with 503 and wait for those under way; then cut off the rest.

        The server must go on listening. A client that finds nobody listening could not tell an
        orderly end from a failure.
        """
        self.stopping = True
        self.sessions.stop()
        for model in self.completers.values():
            model.engine.stop("the server is stopping")
        with anyio.move_on_after(seconds):
            await self.under_way.none()
        self.cut_off()

    def cut_off(self) -> None:
        """End the requests under way with an error: the server has stopped."""
        self.sessions.cut_off()
        for model in self.completers.values():
            model.engine.cut_off(EngineError("the server has stopped"))


def _heads(model: Model) -> frozenset[Head]:
    """The heads of a model."""
    there: dict[Head, bool] = {
        "ranks": isinstance(model, (EncoderModel, TextModel)) and model.ranks,
        "terms": isinstance(model, EncoderModel) and model.has_terms,
    }
    return frozenset(head for head, has in there.items() if has)


def _can(entry: ServedEntry, kinds: Sequence[type[Model]], *, head: Head | None) -> bool:
    """Whether a model can answer; one that was never loaded may."""
    if entry.kind is None:
        return True
    return issubclass(entry.kind, tuple(kinds)) and (head is None or head in entry.heads)


def _adapters(entry: ServedEntry) -> dict[str, Any]:
    """The adapters of a model as an argument of `aggml.models.load`."""
    return {"adapters": dict(entry.adapters)} if entry.adapters else {}


def _by_number(
    model: str, known: Sequence[str], given: Sequence[LoraScale]
) -> dict[str, float] | None:
    """Names of adapters with their scales; None: none are given.

    Raises:
        RequestError: the model has no adapter of a number; a number comes twice.
    """
    found: dict[str, float] = {}
    for one in given:
        if one.id >= len(known):
            there = f"0 to {len(known) - 1}" if known else "none"
            raise RequestError(
                400, f"lora: {model!r} has no adapter {one.id}; there are {there}", field="lora"
            )
        if known[one.id] in found:
            raise RequestError(400, f"lora: has the adapter {one.id} twice", field="lora")
        found[known[one.id]] = one.scale
    return found or None


def _entries(options: Options) -> list[ServedEntry]:
    """The models and all their names.

    Raises:
        ModelError: two models have one name.
        InvalidArgument: an alias or a tag names no model.
    """
    paths = [user_path(x) for x in options.models]
    stems = [name_of(path) for path in paths]
    aliases = _of_models("alias", options.aliases, paths, stems)
    tags = _of_models("tag", options.tags, paths, stems)
    found = []
    for path, stem, others, words in zip(paths, stems, aliases, tags, strict=True):
        # Files of one name are told apart by their aliases.
        alone = stem not in others and (stems.count(stem) == 1 or set(others) <= {ANY})
        names = list(dict.fromkeys([*others, stem] if alone else others))
        found.append(ServedEntry(path, names, of_file=stem if alone else None, tags=words))
    if options.adapters:
        found[0].adapters = options.adapters
    seen: set[str] = set()
    for entry in found:
        for name in (*entry.names, *entry.adapters):
            if name in seen:
                raise ModelError(
                    f"two models have the name {name!r}: give {entry.path} another one with "
                    "--alias, or rename it"
                )
            seen.add(name)
    return found


def _of_models(
    what: str, given: Sequence[str], paths: Sequence[Path], stems: Sequence[str]
) -> list[list[str]]:
    """The names of each model, from texts NAME for the first model, or NAME=MODEL.

    Raises:
        InvalidArgument: one names no model.
    """
    found: list[list[str]] = [[] for _ in paths]
    for text in given:
        name, _, of = text.partition("=")
        meant = [i for i, x in enumerate(paths) if of in (stems[i], x.name, str(x))] if of else [0]
        if not name or not meant:
            known = ", ".join(map(repr, stems))
            raise InvalidArgument(
                f"[serve] the {what} {text!r} names no model, expected NAME or NAME=MODEL with one "
                f"of {known}"
            )
        found[meant[0]].append(name)
    return found


def _unknown(name: str, known: Sequence[str], what: str = "") -> RequestError:
    there = ", ".join(map(repr, known)) or "none"
    purpose = f" for {what}" if what else ""
    message = f"the model {name[:64]!r} is not served here{purpose}; there are {there}"
    return RequestError(404, message, field="model", code="model_not_found")
