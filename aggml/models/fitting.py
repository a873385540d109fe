"""fit: which context, how many sequences and which placement of a model fit into memory.

Only the head of the file is read, and nothing is loaded. Here: the decision, its result and its
errors. Not here: the memory of a model's steps (footprint.py), which layers go where (dividing.py),
what a loaded model takes (memory.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

import aggml
from aggml import AggmlError, DeviceType, DType, InvalidArgument
from aggml.devices.cpu import CPUDevice
from aggml.memory.shortage import amount
from aggml.models.adapters.given import adapters_of, refusal
from aggml.models.adapters.reading import read_adapters
from aggml.models.arguments import MOST_POSITIONS, MOST_SLOTS, file_path, integer, show
from aggml.models.beside import Beside, read_beside
from aggml.models.checking import describe_checked
from aggml.models.description import Description, SpeechDescription
from aggml.models.dividing import SHARE, divide_layers, layer_of
from aggml.models.drafting import draft_of
from aggml.models.encoder.description import EncoderDescription
from aggml.models.encoder.weights import EncoderFile
from aggml.models.encoder_decoder import EncoderDecoderDescription
from aggml.models.engine.opening import WINDOWS
from aggml.models.footprint import (
    Footprint,
    footprint_of,
    packed_bytes,
    steps_of_encoder,
    steps_of_encoder_decoder,
    steps_of_speech,
    steps_of_text,
)
from aggml.models.kv.caches import sizes
from aggml.models.kv.paging import PAGE
from aggml.models.kv.rows import ROWS_STEP, round_up
from aggml.models.site import site_of
from aggml.models.speech.voice import VOICE, WINDOW, is_voice_file, plan_voice
from aggml.models.weights import open_model

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from aggml import Backend, Device, Scheduler, Tensor
    from aggml.models.adapters.reading import AdapterArrays
    from aggml.models.description import AnyDescription
    from aggml.models.drafting import Draft
    from aggml.models.site import Site
    from aggml.models.text_model import TextModel
    from aggml.models.weights import ModelFile

__all__ = [
    "DeviceLayers",
    "Fit",
    "MemoryShortage",
    "available",
    "cache_type",
    "fit",
    "fit_model",
    "fit_text",
    "fit_voice",
]

LONGEST: Final = 4096  # positions of a sequence, at most, if the caller does not say how many
MOST: Final = 16  # sequences at a time, at most, if the caller does not say how many
#: Models that keep nothing of a text.
WITHOUT_CACHE: Final = (EncoderDescription, EncoderDecoderDescription)
CACHES: Final = ("f16", "bf16", "f32", "q8_0", "q4_0")
#: Of the host's free memory so much is for a model; the rest is for other programs and Python.
HOST_SHARE: Final = 0.9
BESIDE: Final = ("draft", "mmproj")  # parts of a `Fit` that most models have not
CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class DeviceLayers:
    """The layers of a model that one device has.

    Attributes:
        device: its name.
        first, stop: the first layer and the one after the last; equal if it has none.
        weights: bytes of weights that lie there, those that belong to no layer included.
        pages: bytes of keys, values and states of these layers.
    """

    device: str
    first: int
    stop: int
    weights: int
    pages: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A model in memory: ``print(fit)``.

    Attributes:
        architecture: as the file names it.
        ctx: positions of each sequence.
        slots: sequences at a time; of a model of speech, windows that are decoded together.
        cache: element type of keys and values; None: an encoder has none.
        weights: bytes of all weights.
        packed: bytes, at most, of copies of weights in the order in which a CPU's kernels read.
        pages: bytes of keys, values and states of all sequences at full length.
        page: positions of a page: a sequence takes memory page by page.
        scratch: bytes, at most, for results of operations.
        graphs: bytes for inputs and results of the largest graphs that are kept.
        total: all of these together.
        memory: bytes that there are; None: the device does not tell.
        placement: which device has which layers.
        draft: bytes, at most, of all that makes drafts.
        mmproj: bytes, at most, of what makes embeddings of pictures.
    """

    architecture: str
    ctx: int
    slots: int
    cache: DType | None
    weights: int
    packed: int
    pages: int
    page: int
    scratch: int
    graphs: int
    total: int
    memory: int | None
    placement: tuple[DeviceLayers, ...]
    draft: int = 0
    mmproj: int = 0

    def __str__(self) -> str:
        sequences = f"{self.slots} sequence{'s' if self.slots > 1 else ''}"
        kept = "" if self.cache is None else f", keys and values in {self.cache.type_name}"
        lines = [f"{self.architecture}: {sequences} of {self.ctx} tokens{kept}"]
        names = ("weights", "packed", "pages", "scratch", "graphs", *BESIDE, "total", "memory")
        for name in names:
            value = getattr(self, name)
            if name in BESIDE and not value:
                continue
            lines.append(f"  {name:8} {'unknown' if value is None else amount(value)}")
        for one in self.placement:
            layers = (
                "no layer" if one.first == one.stop else f"layers {one.first} to {one.stop - 1}"
            )
            held = f"weights {amount(one.weights)}, pages {amount(one.pages)}"
            lines.append(f"  {one.device}: {layers}, {held}")
        return "\n".join(lines)


class MemoryShortage(AggmlError, MemoryError):
    """A model does not fit into the memory that there is.

    Attributes:
        needed: bytes that it needs with this context and so many sequences.
        memory: bytes that there are.
        missing: the difference.
        ctx: the longest context with which it would fit, for as many sequences; None: none.
        slots: how many sequences would fit, with this context; None: not even one.
    """

    needed: int = 0
    memory: int = 0
    missing: int = 0
    ctx: int | None = None
    slots: int | None = None


# -- free memory


def available(device: Device) -> int | None:
    """Bytes that a model may take on a device; None: the device does not tell.

    Of the host: what programs can get without swapping, within the limit of the control group.
    """
    if device.type is not DeviceType.CPU:
        free, total = device.memory()
        return int(free * SHARE) if total else None
    found = [x for x in (_unused_bytes(), _bytes_left_in_group()) if x is not None]
    if not found:
        free, total = device.memory()
        if not total:
            return None
        found = [free]
    return int(min(found) * HOST_SHARE)


def _unused_bytes() -> int | None:
    """Bytes that the system can give to programs without swapping; None: it does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _bytes_left_in_group(root: Path = CGROUP) -> int | None:
    """Bytes that the process's control group may still take; None: it has no limit."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, base = ("memory.max", "memory.current", "inactive_file"), root
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "memory"
        else:
            continue
        place = base / path.lstrip("/")
        while True:  # a limit of any group above counts, too
            left = _bytes_left(place, *names)
            if left is not None:
                found.append(left)
            if place == base or base not in place.parents:
                break
            place = place.parent
    return min(found, default=None)


def _bytes_left(place: Path, limit: str, used: str, droppable: str) -> int | None:
    """What one group may still take: its limit, less what it has and the system cannot drop."""
    try:
        most = int((place / limit).read_text())
        taken = int((place / used).read_text())
        stat = dict(x.split() for x in (place / "memory.stat").read_text().splitlines())
        return max(most - taken + int(stat.get(droppable, 0)), 0)
    except (OSError, ValueError):  # no such group; "max": no limit
        return None


# -- the public function


async def fit(
    path: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    memory: int | None = None,
    ctx: int | None = None,
    slots: int | None = None,
    cache: DType | str = "f16",
    adapters: Mapping[str, Any] | Sequence[Any] | None = None,
    control_vectors: Sequence[Any] | None = None,
    draft: str | os.PathLike[str] | TextModel | None = None,
    mmproj: str | os.PathLike[str] | None = None,
) -> Fit:
    """Say what of a model fits into memory: ``print(await aggml.models.fit("model.gguf"))``.

    Nothing is loaded: only the head of the file is read. `load` with these ``ctx`` and ``slots``
    takes at most the memory that the result tells; a program that keeps many different long prompts
    may take some more for graphs. `logits` takes more: the graphs for it that are kept have up to
    64 MiB of results, or those of one piece of a prompt, 512 tokens at most. What a model like T5
    takes is said for one pair of texts of ``ctx`` tokens; 16 graphs of other lengths are kept.

    Args:
        path: as for `load`.
        backend: where it would be computed; None: on the best device.
        memory: bytes for weights, pages, scratch and graphs together; None: what is free now. On
            the host that is less than all: 10 % are left to other programs.
        ctx: positions of each sequence; None: the most that fit, up to the length that the model
            was trained for, at most 4096.
        slots: sequences at a time; None: as many as fit at full length, at most 16; of a model of
            speech 4.
        cache: element type of keys and values: f16, bf16, f32, q8_0 or q4_0.
        adapters: as for `load`; they are read, because their ranks tell what they take.
        control_vectors: as for `load`.
        draft: as for `load`; of a draft model only the head of its file is read.
        mmproj: as for `load`; only the head of the file is read.

    Returns:
        What fits, and the bytes of each part.

    Raises:
        InvalidArgument: an argument below 1 or of another type.
        InvalidHandle: ``backend`` is neither a backend nor a scheduler.
        MemoryShortage: it does not fit. The error names the missing bytes, and what would fit.
        ModelError: a file cannot be read or is no model that this package can run; ``draft`` or
            ``mmproj`` do not belong to it.

    Cancellation: ends the search.
    """
    where = file_path("fit", "path", path)
    bound = None if memory is None else integer("fit", "memory", memory, 1)
    length = None if ctx is None else integer("fit", "ctx", ctx, 1, MOST_POSITIONS)
    sequences = None if slots is None else integer("fit", "slots", slots, 1, MOST_SLOTS)
    element = cache_type(cache)
    site = None if backend is None else site_of(backend)
    given = adapters_of("fit", adapters, control_vectors)
    guesses = draft_of("fit", draft)
    eyes = None if mmproj is None else file_path("fit", "mmproj", mmproj)
    if await anyio.to_thread.run_sync(is_voice_file, where):
        if given:
            raise refusal("fit", given, VOICE)
        if guesses is not None or eyes is not None:
            raise InvalidArgument(
                f"[fit] {'mmproj' if guesses is None else 'draft'} is given, but {VOICE} does not "
                "continue text"
            )
        return await fit_voice(where, site, bound)
    with await open_model(where) as file:
        model = await anyio.to_thread.run_sync(describe_checked, file.metadata, file.tensors)
        changes = None
        if isinstance(model, Description):
            changes = await read_adapters(model, file, given)
        elif given:
            raise refusal("fit", given, model.architecture)
        beside = await read_beside("fit", model, file, guesses, eyes, await _last_device(site))
        return await fit_model(
            model, file, site, bound, length, sequences, element, changes, beside
        )


async def _last_device(site: Site | None) -> Device:
    """Where tensors lie that belong to no layer."""
    if site is None:
        return await anyio.to_thread.run_sync(aggml.best_device)
    return site.backends[-1].device


def cache_type(cache: Any) -> DType:  # noqa: ANN401 whatever was given
    """The element type of keys and values."""
    try:
        element = DType.parse(cache) if isinstance(cache, (str, DType)) else None
    except AggmlError:
        element = None
    if element is None or element.name.lower() not in CACHES:
        raise InvalidArgument(f"[fit] cache is {show(cache)}, not one of {', '.join(CACHES)}")
    return element


async def fit_voice(path: Path, site: Site | None, memory: int | None) -> Fit:
    """`fit` for the file of a detector of speech; arguments as of `fit`."""
    weights, graphs = await anyio.to_thread.run_sync(plan_voice, path)
    device = await _last_device(site)
    steps = await footprint_of(graphs, weights, device)
    packed = 0
    if isinstance(device, CPUDevice):
        packed = sum(packed_bytes(weights, steps.multiplied).values())
    own = sum(x.nbytes for x in weights.values())
    size = own + packed + steps.scratch + steps.graphs
    there = available(device) if memory is None else memory
    if there is not None and size > there:
        what = "the free memory" if memory is None else "memory="
        error = MemoryShortage(
            f"[fit] {VOICE} needs {amount(size)}, {what} is {amount(there)}: "
            f"{amount(size - there)} are missing"
        )
        error.needed, error.memory, error.missing = size, there, size - there
        raise error
    placement = (DeviceLayers(device.name, 0, 0, own, 0),)
    return Fit(
        VOICE, WINDOW, 1, None, own, packed, 0, 1, steps.scratch, steps.graphs, size, there,
        placement,
    )  # fmt: skip


async def fit_text(
    description: Description,
    file: ModelFile,
    site: Site | None,
    memory: int | None,
    ctx: int | None,
    slots: int | None,
    cache: DType,
    adapters: AdapterArrays | None = None,
    draft: Draft | None = None,
    mmproj: Path | None = None,
    kv_memory: int | None = None,
) -> Fit:
    """`fit` for an open file of a model that continues text, for `load`; arguments as of `fit`.

    ``kv_memory`` is what keys, values and states may take where they are allocated whole.

    It takes 5 to 40 ms, and gives way to other tasks meanwhile.
    """
    device = await _last_device(site)
    beside = await read_beside("load", description, file, draft, mmproj, device)
    return await fit_model(
        description, file, site, memory, ctx, slots, cache, adapters, beside, kv_memory
    )


async def fit_model(
    model: AnyDescription,
    file: ModelFile,
    site: Site | None,
    memory: int | None,
    ctx: int | None,
    slots: int | None,
    cache: DType,
    adapters: AdapterArrays | None = None,
    beside: Beside = Beside(),  # noqa: B008 it is frozen
    kv_memory: int | None = None,
) -> Fit:
    """`fit` for an open file.

    Args:
        model: the description of the model.
        file: an open model file.
        site: where it would be computed; None: on the best device.
        memory: as for `fit`.
        ctx: as for `fit`.
        slots: as for `fit`.
        cache: as for `fit`.
        adapters: adapters and control vectors that lie beside the weights.
        beside: what is computed beside the model.
        kv_memory: bytes, at most, of keys, values and states; None: as ``memory`` has it.
    """
    if site is None:
        devices = [await anyio.to_thread.run_sync(aggml.best_device)]
    else:
        devices = [backend.device for backend in site.backends]
    tensors: Mapping[str, Tensor] = file.tensors
    if isinstance(model, EncoderDescription):
        tensors = EncoderFile(file, model, None).tensors  # some are made from others
    search = _Search(model, tensors, devices, memory, cache, adapters, beside, kv_memory)
    return await search.find(ctx, slots)


class _Search:
    """The search for a context and a number of sequences that fit.

    Args:
        model: the description of the model.
        tensors: of the file.
        devices: in order of priority; the last one is that of tensors that belong to no layer.
        memory: bytes in all; None: what is free.
        cache: element type of keys and values.
        adapters: of the model.
        beside: what is computed beside the model.
        kv_memory: bytes, at most, of keys, values and states; None: any.
    """

    def __init__(
        self,
        model: AnyDescription,
        tensors: Mapping[str, Tensor],
        devices: Sequence[Device],
        memory: int | None,
        cache: DType,
        adapters: AdapterArrays | None = None,
        beside: Beside = Beside(),  # noqa: B008 it is frozen
        kv_memory: int | None = None,
    ) -> None:
        self._beside = beside
        self._kv_memory = kv_memory
        self._model = model
        uses = getattr(model, "uses", None)
        self._tensors = {n: t for n, t in tensors.items() if uses is None or uses(n)}
        self._devices = devices
        self._adapters = adapters
        self._given = memory
        self._cache = cache
        self._known: dict[tuple[int, int], Footprint] = {}
        self._drafts: dict[tuple[int, int], int] = {}
        self._free = [available(device) for device in devices]
        distinct = {id(d): x for d, x in zip(devices, self._free, strict=True)}
        all_free = [*distinct.values()]
        free = None if None in all_free else sum(x for x in all_free if x is not None)
        self._memory = free if memory is None else memory

    async def find(self, ctx: int | None, slots: int | None) -> Fit:
        """The fit for a wanted context and number of sequences; None: whatever fits."""
        model = self._model
        if isinstance(model, WITHOUT_CACHE):
            return await self._try_fit(model.context_length, 1, wanted=None)
        if isinstance(model, SpeechDescription):
            longest = model.text.context_length
            if slots is None:
                slots = await self._most_slots(longest, WINDOWS) or 1
            return await self._try_fit(longest, slots, wanted=ctx)
        longest = round_up(ctx or min(model.context_length, LONGEST))
        if ctx is None:
            longest = await self._most(longest, slots or 1) or ROWS_STEP
        if slots is None:
            slots = await self._most_slots(longest, MOST) or 1
        return await self._try_fit(longest, slots, wanted=ctx)

    async def _most(self, ctx: int, slots: int) -> int | None:
        """The longest context that fits, at most ``ctx``; None: not even the shortest."""
        low, high = 0, ctx // ROWS_STEP
        if await self._fits(ctx, slots):
            return ctx
        while high - low > 1:
            middle = (low + high) // 2
            if await self._fits(middle * ROWS_STEP, slots):
                low = middle
            else:
                high = middle
        return low * ROWS_STEP or None

    async def _most_slots(self, ctx: int, most: int) -> int | None:
        """How many sequences of a length fit, at most ``most``; None: not even one."""
        low, high = 0, most + 1
        while high - low > 1:
            middle = most if low == 0 and high == most + 1 else (low + high) // 2
            if await self._fits(ctx, middle):
                low = middle
            else:
                high = middle
        return low or None

    async def _fits(self, ctx: int, slots: int) -> bool:
        return self._missing_bytes(await self._fit(ctx, slots)) <= 0

    async def _try_fit(self, ctx: int, slots: int, wanted: int | None) -> Fit:
        """The fit for this context and so many sequences.

        Raises:
            MemoryShortage: it does not fit.
        """
        found = await self._fit(ctx, slots)
        missing = self._missing_bytes(found)
        if missing <= 0:
            return found
        shorter = fewer = None
        if found.pages and not isinstance(self._model, SpeechDescription):
            shorter = await self._most(ctx, slots)
        if found.pages and slots > 1:
            fewer = await self._most_slots(ctx, slots)
        raise self._shortage(found, missing, shorter, fewer)

    def _shortage(
        self, found: Fit, missing: int, shorter: int | None, fewer: int | None
    ) -> MemoryShortage:
        parts = ", ".join(
            f"{name} {amount(getattr(found, name))}"
            for name in ("weights", "packed", "pages", "scratch", "graphs", *BESIDE)
            if getattr(found, name)
        )
        memory = found.memory or 0
        what = "memory=" if self._given is not None else "the free memory"
        bound = self._kv_memory
        if bound is not None and missing == found.pages - bound:
            memory, what = bound, "kv_memory="
        would = []
        if shorter is not None:
            would.append(f"ctx={shorter} with slots={found.slots}")
        if fewer is not None:
            would.append(f"slots={fewer} with ctx={found.ctx}")
        cure = "; these would fit: " + ", or ".join(would) if would else ""
        if not would:
            cure = f"; not even ctx={ROWS_STEP} and slots=1 would fit" if found.pages else ""
        error = MemoryShortage(
            f"[fit] {found.architecture} with ctx={found.ctx} and slots={found.slots} needs "
            f"{amount(memory + missing)}, {what} is {amount(memory)}: {amount(missing)} are "
            f"missing. It needs {parts}{cure}"
        )
        error.needed, error.memory, error.missing = memory + missing, memory, missing
        error.ctx, error.slots = shorter, fewer
        return error

    def _missing_bytes(self, found: Fit) -> int:
        """How many bytes there are too few; not above 0: it fits.

        Where free memory counts, and not a bound of the caller, mapped weights of which there are
        packed copies count once: the system drops pages of a file when memory is short.
        """
        over = 0 if self._kv_memory is None else found.pages - self._kv_memory
        if found.memory is None:
            return over
        need = found.total
        if self._given is None:
            need -= min(found.packed, self._mapped_and_packed)
        missing = need - found.memory
        if self._given is not None and self._memory is not None and len(self._devices) == 1:
            free = self._free[0]
            if free is not None and self._devices[0].type is not DeviceType.CPU:
                missing = max(missing, found.total - free)
        return max(missing, over) if self._kv_memory is not None else missing

    async def _fit(self, ctx: int, slots: int) -> Fit:
        model, tensors = self._model, self._tensors
        steps = await self._steps(ctx, slots)
        weights = sum(t.nbytes for t in tensors.values())
        scratch = steps.scratch
        if self._adapters is not None:
            weights += self._adapters.nbytes
            scratch += self._adapters.scratch * len(self._devices)
        caches = self._caches(ctx, slots)
        placement, on_cpu = self._place(caches)
        packed = packed_bytes({n: tensors[n] for n in on_cpu}, steps.multiplied)
        self._mapped_and_packed = sum(tensors[name].nbytes for name in packed)
        copies = min(sum(packed.values()), self._packable())
        draft = self._drafts.get((ctx, slots))
        if draft is None:
            draft = self._drafts[ctx, slots] = await self._beside.bytes_of_draft(
                self._devices[-1], ctx=ctx, slots=slots, cache=self._cache
            )
        pictures = self._beside.pictures
        parts = (weights, copies, sum(caches), scratch, steps.graphs, draft, pictures)
        return Fit(
            model.architecture, ctx, slots,
            None if isinstance(model, WITHOUT_CACHE) else self._cache,
            weights, copies, sum(caches), PAGE, scratch, steps.graphs, sum(parts),
            self._memory, placement, draft, pictures,
        )  # fmt: skip

    async def _steps(self, ctx: int, slots: int) -> Footprint:
        key = ctx, slots
        found = self._known.get(key)
        if found is None:
            model, tensors, device = self._model, self._tensors, self._devices[-1]
            if isinstance(model, EncoderDescription):
                found = await steps_of_encoder(model, tensors, device)
            elif isinstance(model, EncoderDecoderDescription):
                found = await steps_of_encoder_decoder(model, tensors, device)
            elif isinstance(model, SpeechDescription):
                found = await steps_of_speech(
                    model, tensors, device, slots=slots, cache=self._cache
                )
            else:
                rewind = self._beside.rewind(model, slots)
                drafts = self._beside.model
                found = await steps_of_text(
                    model, tensors, device, ctx=ctx, slots=slots, cache=self._cache, rewind=rewind,
                    verified=self._beside.width_to_verify(rewind),
                    tapped=drafts is not None and drafts.predicts,
                )  # fmt: skip
            if len(self._devices) > 1:  # each device has scratch of its own
                found = replace(found, scratch=found.scratch * len(self._devices))
            self._known[key] = found
        return found

    def _caches(self, ctx: int, slots: int) -> list[int]:
        """Bytes of keys, values and states of each layer."""
        model = self._model
        if isinstance(model, WITHOUT_CACHE):
            return []
        if isinstance(model, SpeechDescription):
            return sizes(model.text, self._cache, round_up(ctx), slots, ring=True)
        rewind = self._beside.rewind(model, slots)
        return sizes(model, self._cache, ctx, slots, ring=False, rewind=rewind)

    def _place(self, caches: Sequence[int]) -> tuple[tuple[DeviceLayers, ...], list[str]]:
        """Which device has which layers; and the weights that lie on a CPU."""
        tensors, devices = self._tensors, self._devices
        bytes_of = {name: t.nbytes for name, t in tensors.items()}
        if isinstance(self._model, EncoderDecoderDescription):
            layers = self._model.layers + self._model.decoder_layers
        else:
            layers = len(getattr(self._model, "layers", caches))
        if len(devices) == 1:
            here = DeviceLayers(devices[0].name, 0, layers, sum(bytes_of.values()), sum(caches))
            return (here,), list(tensors) if isinstance(devices[0], CPUDevice) else []
        free = []
        for k, device in enumerate(devices[:-1]):
            again = any(other is device for other in devices[:k])
            free.append(0 if again else self._free[k] or 0)
        numbers = [n for name in tensors if (n := layer_of(name)) is not None]
        first = min(numbers, default=0)
        # All weights of a model like T5 lie on the last device: see `load_weights`.
        together = isinstance(self._model, EncoderDecoderDescription)
        each = [] if together else caches or [0] * layers
        division = divide_layers(bytes_of, each, free, first)
        found = []
        on_cpu = []
        for k, device in enumerate(devices):
            mine = [name for name in tensors if division.of(name) == k]
            if isinstance(device, CPUDevice):
                on_cpu += mine
            own = [i for i, home in enumerate(division.layers) if home == k]
            found.append(
                DeviceLayers(
                    device.name, own[0] if own else 0, own[-1] + 1 if own else 0,
                    sum(bytes_of[name] for name in mine),
                    sum(each[i - first] for i in own if 0 <= i - first < len(each)),
                )
            )  # fmt: skip
        return tuple(found), on_cpu

    def _packable(self) -> int:
        """Bytes of packed copies that plans may still make."""
        cpu = next((d for d in self._devices if isinstance(d, CPUDevice)), None)
        return 0 if cpu is None else max(cpu.packed_limit - cpu.packed_bytes, 0)
