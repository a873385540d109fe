"""From files to what can be served: engines, embedders, transcribers.

Here: finding out which of these a file is, and opening it. Not here: the engine (engine.py),
sharing batches of texts and of windows (aggml.models), HTTP (http/).
"""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from aggml import models
from aggml.models import EncoderModel, ModelError, SpeechModel
from aggml.models.description import Description, SpeechDescription
from aggml.models.encoder import EncoderDescription
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PagedDecoder, budget_of
from aggml.models.kv.room import State
from aggml.models.loading import LONGEST, described, load_decoder
from aggml.models.tokenizers import open_vocabulary
from aggml.models.tokenizers.template import template_of
from aggml.models.weights import open_model
from aggml.process.paths import user_path
from aggml.serve.embedder import Embedder
from aggml.serve.transcriber import Transcriber

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aggml import Backend, Scheduler
    from aggml.models.tokenizers.template import ChatTemplate
    from aggml.models.tokenizers.vocabulary import Vocabulary
    from aggml.models.weights import ModelFile

__all__ = ["Completer", "Limits", "opened"]

#: Windows of speech that are decoded together; the keys and values of one take 9 to 250 MB.
WINDOWS: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How many sequences, and how much memory, a served model may use.

    Attributes:
        slots: sequences that run at a time.
        ctx: the most positions of one sequence; None: what the model was trained for, at most 4096.
        cache: element type of keys and values.
        kv_memory: bytes for keys and values of all sequences.
        chunk: tokens in one step, of running sequences and of prompts.
        max_waiting: requests that wait; more are refused.
        prefix_cache: bytes of ``kv_memory`` that may keep the beginnings of recent prompts, while
            no running sequence needs the memory; None: half of it; 0: nothing is stored.
    """

    slots: int = 16
    ctx: int | None = None
    cache: str = "f16"
    kv_memory: int = 512 << 20
    chunk: int = 128
    max_waiting: int = 256
    prefix_cache: int | None = None

    @property
    def stored(self) -> int:
        """Bytes that may keep the beginnings of prompts."""
        asked = self.kv_memory // 2 if self.prefix_cache is None else self.prefix_cache
        return min(asked, self.kv_memory)


@dataclass(frozen=True, slots=True)
class Completer:
    """A model that continues text, together with all that is needed to serve it.

    Attributes:
        name: the file's metadata ``general.name``, else the name of the file.
        engine: computes tokens of any number of requests.
        vocabulary: turns text into tokens and back.
        template: turns the messages of a chat into text.
    """

    name: str
    engine: Engine
    vocabulary: Vocabulary
    template: ChatTemplate


@asynccontextmanager
async def opened(
    path: str | Path,
    backend: Backend | Scheduler,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AsyncIterator[Completer | Embedder | Transcriber]:
    """Load a model and run its engine until the end of the block.

    Args:
        path: a GGUF file.
        backend: where to compute, as for `aggml.models.load`; must stay open.
        limits: how much the model may take.
        progress: called with bytes loaded so far and bytes in all.

    Raises:
        ModelError: as for `aggml.models.load`; the file has no vocabulary; no page of keys and
            values fits into ``kv_memory``.
    """
    path, limits = user_path(path), limits or Limits()
    with await open_model(path) as file:
        name = str(file.metadata.get("general.name", path.stem))
        model_of = await described(file)
        if isinstance(model_of, SpeechDescription):
            slots = min(limits.slots, WINDOWS)
            async with await models.load(path, backend, slots=slots, progress=progress) as model:
                assert isinstance(model, SpeechModel)
                yield Transcriber(name, model)
            return
        if isinstance(model_of, EncoderDescription):
            async with await models.load(path, backend, progress=progress) as model:
                assert isinstance(model, EncoderModel)
                yield Embedder(name, model)
            return
        async with _engine(file, backend, limits, progress) as engine:
            vocabulary = await anyio.to_thread.run_sync(open_vocabulary, file.metadata)
            if vocabulary is None:
                raise ModelError(f"{path} has no vocabulary, so it cannot be served")
            # in a thread, because it imports the language of templates (20 ms)
            template = await anyio.to_thread.run_sync(template_of, file.metadata, vocabulary)
            yield Completer(name, engine, vocabulary, template)


@asynccontextmanager
async def _engine(
    file: ModelFile,
    backend: Backend | Scheduler,
    limits: Limits,
    progress: Callable[[int, int], None] | None,
) -> AsyncIterator[Engine]:
    sequences = limits.slots + STAGED + _more(await described(file), limits)
    model = await load_decoder(
        backend, file, kind=PagedDecoder, ctx=limits.ctx, sequences=sequences,
        cache=limits.cache, progress=progress,
    )  # fmt: skip
    with contextlib.closing(model):
        budget = budget_of(limits.kv_memory, model)
        rest = (limits.kv_memory - model.slack(model.sequences)) // model.page_bytes()
        budget = min(budget, max(rest, model.pages(0, 1).need(1)))
        async with Engine(
            model, slots=limits.slots, budget=budget, stored=limits.stored // model.page_bytes(),
            chunk=limits.chunk, max_waiting=limits.max_waiting,
        ) as engine:  # fmt: skip
            yield engine


def _more(model: object, limits: Limits) -> int:
    """How many more sequences the cache needs to store pages; none for a model with states."""
    if not isinstance(model, Description):
        return 0
    kept = [kept for layer in model.layers for kept in layer.caches().values()]
    if any(isinstance(x, State) for x in kept):
        return 0
    ctx = limits.ctx or min(model.context_length, LONGEST)
    each = sum(PagedDecoder.sizes(model, ctx=ctx, sequences=1, cache=limits.cache))
    return -(-limits.stored // each)
