"""Models as they are served: loaded within limits, with the names that requests give.

Not here: loading (aggml.models.load), HTTP (http/).
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from aggml import Scheduler, best_device, models
from aggml.models import ModelError, TextModel, VoiceModel
from aggml.process.paths import user_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aggml import Backend
    from aggml.models import Model

__all__ = ["Limits", "Served", "load_served", "name_of", "prepare"]

SLOTS: Final = 16
KV_MEMORY: Final = 512 << 20  # in host memory, where a sequence takes memory as it grows
PART: Final = re.compile(r"-\d{5}-of-\d{5}$")  # ends the stem of one of several files


@dataclass(frozen=True, slots=True)
class Limits:
    """How many sequences, and how much memory, a served model may use.

    Attributes:
        slots: sequences that run at a time; None: 16, and of speech 4 windows.
        ctx: the most positions of one sequence; None: what the model was trained for, at most 4096.
        cache: element type of keys and values.
        kv_memory: bytes for keys and values of all sequences; None: 512 MB, of a device with memory
            of its own what fits.
        chunk: tokens in one step, of running sequences and of prompts.
        max_waiting: requests that wait; more are refused.
        prefix_cache: bytes of ``kv_memory`` that may keep the beginnings of recent prompts, while
            no running sequence needs the memory; None: half of it; 0: nothing is stored.
        chat_template: a template, or the path of a file with one, instead of that of the model's
            file; None: the model's.
        draft: "lookup", "ngram", "mtp", or the path of a draft model: what guesses the next
            tokens; None: nothing.
        mmproj: the path of the file that makes embeddings of pictures for the model; None: it reads
            text alone.
    """

    slots: int | None = None
    ctx: int | None = None
    cache: str = "f16"
    kv_memory: int | None = None
    chunk: int = 128
    max_waiting: int = 256
    prefix_cache: int | None = None
    chat_template: str | None = None
    draft: str | None = None
    mmproj: str | None = None

    @property
    def sequences(self) -> int:
        """Sequences that run at a time, of a model that continues text."""
        return SLOTS if self.slots is None else self.slots

    def options(self, backend: Backend | Scheduler | None = None) -> dict[str, Any]:
        """The same as arguments of `aggml.models.load`.

        Args:
            backend: where the model is to be computed; None: on the best device.
        """
        memory = self.kv_memory
        if memory is None and not _has_own_memory(backend):
            memory = KV_MEMORY
        prefix_cache = self.prefix_cache
        if prefix_cache is not None and memory is not None:
            prefix_cache = min(prefix_cache, memory)
        found: dict[str, Any] = {
            "slots": self.slots, "ctx": self.ctx, "cache": self.cache, "kv_memory": memory,
            "chunk": self.chunk, "max_waiting": self.max_waiting, "prefix_cache": prefix_cache,
        }  # fmt: skip
        more = {"chat_template": self.chat_template, "draft": self.draft, "mmproj": self.mmproj}
        return found | {k: x for k, x in more.items() if x}


def _has_own_memory(backend: Backend | Scheduler | None) -> bool:
    """Whether a device has memory of its own, where a model has all that it needs at once."""
    if backend is None:
        devices = [best_device()]
    else:
        all_of = backend.backends if isinstance(backend, Scheduler) else [backend]
        devices = [x.device for x in all_of]
    return any(not device.caps.buffer_from_host for device in devices)


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served.

    Attributes:
        name: the stem of its file, as `name_of` tells it.
        title: the file's metadata ``general.name``; empty: it has none.
        model: answers the requests.
    """

    name: str
    title: str
    model: Model


def name_of(path: Path) -> str:
    """The name of a model: its file's without ending and number of part, or its folder's."""
    name = path.name if path.is_dir() else path.stem
    return PART.sub("", name) or path.name


async def prepare(model: Model, path: Path) -> None:
    """Refuse a model that cannot be served before the first request comes.

    Raises:
        ModelError: it has no vocabulary; its chat template cannot be read.
    """
    if isinstance(model, VoiceModel):
        return
    try:
        _ = model.tokenizer
    except ModelError:
        raise ModelError(f"{path} has no vocabulary, so it cannot be served") from None
    if isinstance(model, TextModel):
        # In a thread, because it imports the language of templates (20 ms).
        await anyio.to_thread.run_sync(lambda: model.template)


@asynccontextmanager
async def load_served(
    path: str | Path,
    backend: Backend | Scheduler,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
    **more: Any,  # noqa: ANN401 arguments of another function
) -> AsyncIterator[Served]:
    """A model and its name, until the end of the block.

    Args:
        path: as for `aggml.models.load`.
        backend: where to compute, as for `aggml.models.load`; must stay open.
        limits: how much the model may take.
        progress: called with bytes loaded so far and bytes in all.
        more: further arguments of `aggml.models.load`, such as ``adapters``.

    Raises:
        ModelError: as for `aggml.models.load`; the file has no vocabulary.
    """
    path, limits = user_path(path), limits or Limits()
    title = ""
    if path.suffix != ".safetensors":  # of a detector of speech, which has no metadata
        with await models.open_model(path) as file:
            title = str(file.metadata.get("general.name", ""))
    options = await anyio.to_thread.run_sync(limits.options, backend)
    async with models.load(path, backend, progress=progress, **options, **more) as model:
        await prepare(model, path)
        yield Served(name_of(path), title, model)
