"""load: from a file to a model that can be awaited.

Here: choosing the kind of model and the backend, and putting the parts together. Not here: reading
the file (weights.py), which architectures there are (catalogue.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import anyio
import anyio.to_thread

import aggml
from aggml import AggmlError, Backend, DType, InvalidArgument, Scheduler
from aggml.models.adapters.given import GivenAdapters, adapters_of, refusal
from aggml.models.adapters.reading import read_adapters
from aggml.models.arguments import MOST_POSITIONS, MOST_SLOTS, file_path, integer, show
from aggml.models.chat.template import DEFAULT, sources_of
from aggml.models.chat.tools import FORMATS, format_called
from aggml.models.checking import describe_checked, vocabulary_problems
from aggml.models.checkpoints import ModelFolder, prompts_of
from aggml.models.decoder.decoder import Decoder
from aggml.models.description import Description, SpeechDescription
from aggml.models.drafting import MTP, check_head, draft_of, rewind_of, speculation_of
from aggml.models.encoder import Encoder, EncoderDescription
from aggml.models.encoder.weights import ELEMENTS, EncoderFile
from aggml.models.encoder_decoder import EncoderDecoder, EncoderDecoderDescription
from aggml.models.encoder_decoder_model import EncoderDecoderModel
from aggml.models.encoder_model import EncoderModel
from aggml.models.engine.engine import staged_slots
from aggml.models.engine.opening import (
    SLOTS,
    WINDOWS,
    EngineLimits,
    allocates_whole,
    engine_of,
    is_short,
)
from aggml.models.errors import ModelError
from aggml.models.fitting import fit_model, fit_text, fit_voice
from aggml.models.kv.page_files import identity_of
from aggml.models.kv.paging import PagedDecoder
from aggml.models.kv.state_rows import Rewind
from aggml.models.model import Model
from aggml.models.rank_head import TEMPLATE as RERANK
from aggml.models.rank_head import labels_of, read_rank_head
from aggml.models.site import site_of
from aggml.models.speech.voice import VOICE, is_voice_file, load_voice
from aggml.models.speech_model import SpeechModel
from aggml.models.text_model import TextModel
from aggml.models.tokenizers import open_vocabulary
from aggml.models.vision import load_pictures
from aggml.models.voice_model import VoiceModel
from aggml.models.weights import load_weights, open_model

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from aggml.models.adapters.reading import AdapterArrays
    from aggml.models.chat.tools import ToolFormat
    from aggml.models.description import AnyDescription
    from aggml.models.drafting import Draft
    from aggml.models.engine.engine import Engine
    from aggml.models.tokenizers import Vocabulary
    from aggml.models.vision import PictureEncoder
    from aggml.models.weights import ModelFile

__all__ = [
    "CACHES",
    "LONGEST",
    "D",
    "Loading",
    "describe_file",
    "load",
    "load_decoder",
    "load_engine",
]

LONGEST: Final = 4096  # positions of a sequence, at most, if the caller does not say how many
CACHES: Final = ("f16", "bf16", "f32", "q8_0", "q4_0")


def load(
    path: str | os.PathLike[str],
    backend: Backend | Scheduler | None = None,
    *,
    ctx: int | None = None,
    slots: int | None = None,
    cache: DType | str = "f16",
    memory: int | None = None,
    draft: str | os.PathLike[str] | TextModel | None = None,
    kv_memory: int | None = None,
    chunk: int = 128,
    max_waiting: int = 256,
    prefix_cache: int | None = None,
    prefix_folder: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    tool_format: str | None = None,
    adapters: Mapping[str, Any] | Sequence[Any] | None = None,
    control_vectors: Sequence[Any] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Loading:
    """Load a model: ``model = await aggml.models.load("model.gguf")``.

    ``async with aggml.models.load("model.gguf") as model: ...`` also closes it. If the device reads
    host memory, weights are mapped and nothing is copied.

    Args:
        path: a GGUF file, or a folder of Hugging Face with config.json and safetensors; of
            Whisper also OpenAI's ``.pt`` and ggml's ``.bin``; of Silero's detector of speech its
            ``.safetensors``. ``~`` is the home directory.
        backend: where to compute; it must stay open while the model is used. A scheduler gives each
            layer to a device that has memory for it and for its caches, the first layers to the
            CPU. None: a backend on the best device, which is closed with the model.
        ctx: positions of each sequence, prompt and answer together; rounded up to a multiple of
            256, which is logged. None: as many as the model was trained for, but at most 4096.
        slots: sequences at a time; for a model of speech, windows that are decoded together. None:
            16, and 4 windows; fewer on a device with memory of its own that has no room for them.
            On a CPU a sequence takes memory as it grows.
        cache: element type of keys and values: f16, bf16, f32, q8_0 or q4_0.
        memory: bytes for all that the model takes: weights, keys and values, scratch. It decides
            how many sequences of which length there are, as `fit` tells. None: the memory that is
            free.
        draft: what guesses the next tokens, so that a step can make several; the answers stay the
            same (docs/generation.md). "lookup": the tokens of each sequence itself, where its last
            ones came before. "ngram": those, and what mostly followed in all sequences;
            "ngram:PATH": this begins with what a file has and is written to it when the model is
            closed. "mtp": the file's own layer that predicts a further token. A path: a smaller
            model with the same vocabulary, a file or a folder, on the same backend. A model: the
            same, where that model is computed; it must stay open. None: nothing does.
        kv_memory: bytes, at most, for keys, values and states of all sequences, and for stored
            beginnings of prompts; requests wait while it is used up. None: half of what is free.
            A device with memory of its own has all of it from the beginning: there ``ctx`` and
            ``slots`` become what fits in it, and what does not fit raises MemoryShortage.
        chunk: tokens of prompts and running sequences in one step: a long prompt lengthens the
            pauses of others by a step of that size.
        max_waiting: requests that wait for a slot; more are refused.
        prefix_cache: bytes of ``kv_memory`` that may keep the beginnings of recent prompts, while
            no running sequence needs them; None: half of it; 0: none.
        prefix_folder: where these are also kept in files, for the next time; None: nowhere.
        dtype: what the matrices of an encoder become when they are loaded: f32, f16, bf16, "q8_0"
            (the matrices that matter most stay bf16), "q8_0 throughout" (faster, and further from
            exact), "q8_0 row scales" (still faster, and further). None: as the file has them.
        chat_template: the text of a template for conversations, or the path of a file with one, in
            place of the file's own; None: that.
        tool_format: how the model writes calls of functions, one of the names in
            docs/answers.md; None: as the family does whose template this is.
        adapters: LoRA adapters, GGUF files or folders of PEFT. ``{name: path}``: requests choose
            one by ``adapter=name``; ``[(path, scale), ...]``: every request has all of them. In
            both, a path and a pair of path and scale may stand for each other; the scale is 1.
        control_vectors: GGUF files with directions that are added after layers, for every request:
            ``[(path, scale), ...]``.
        mmproj: a GGUF file that makes embeddings of pictures, which belongs to this model; then
            prompts and messages may have pictures (docs/pictures.md). None: text alone.
        progress: called with bytes loaded so far and bytes in all.

    Returns:
        An awaitable and asynchronous context manager of the model.

    Raises:
        InvalidArgument: ``ctx`` or ``slots`` below 1, another type of cache, an argument of another
            type; by the await: ``dtype`` for a model that is no encoder, adapters and control
            vectors for one that does not continue text.
        InvalidHandle: ``backend`` is neither a backend nor a scheduler.
        ModelError: by the await: the file cannot be read, is no model, has an unknown architecture,
            or lacks something that the architecture needs; an adapter or a control vector cannot be
            read, or belongs to another model; the draft model has another vocabulary, or ``draft``
            is "mtp" and the file has no layer that predicts further tokens.
        Unsupported: by the await: a draft model that does not continue text, or is on other
            machines.

    Cancellation: nothing of the model stays loaded.
    """
    place = "load"
    where = file_path(place, "path", path)
    asked = None if ctx is None else integer(place, "ctx", ctx, 1, MOST_POSITIONS)
    sequences = None if slots is None else integer(place, "slots", slots, 1, MOST_SLOTS)
    element = _cache_type(cache)
    limits = EngineLimits(
        memory=None if memory is None else integer(place, "memory", memory, 1),
        kv_memory=None if kv_memory is None else integer(place, "kv_memory", kv_memory, 1),
        chunk=integer(place, "chunk", chunk, 1),
        max_waiting=integer(place, "max_waiting", max_waiting, 0),
        prefix_cache=None if prefix_cache is None
        else integer(place, "prefix_cache", prefix_cache, 0),
        prefix_folder=None if prefix_folder is None
        else file_path(place, "prefix_folder", prefix_folder),
    )  # fmt: skip
    told: object = dtype
    if told is not None and not (isinstance(told, str) and told in ELEMENTS):
        raise InvalidArgument(
            f"[{place}] dtype is {show(dtype)}, not one of {', '.join(map(repr, ELEMENTS))}"
        )
    if backend is not None:
        site_of(backend)  # raises if it is neither a Backend nor a Scheduler
    if progress is not None and not callable(progress):
        raise InvalidArgument(f"[{place}] progress is {show(progress)}, expected a function")
    form = None
    if tool_format is not None:
        form = format_called(tool_format)
        if form is None:
            names = ", ".join(sorted(x.name for x in FORMATS))
            raise InvalidArgument(
                f"[{place}] tool_format is {show(tool_format)}, not one of {names}"
            )
    template = None if chat_template is None else _template_text(place, chat_template)
    changes = adapters_of(place, adapters, control_vectors)
    guesses = draft_of(place, draft)
    eyes = None if mmproj is None else file_path(place, "mmproj", mmproj)
    return Loading(
        _load(
            where, backend, asked, sequences, element, limits, dtype, template, form, changes,
            guesses, eyes, progress,
        )
    )  # fmt: skip


def _template_text(place: str, given: Any) -> str | Path:  # noqa: ANN401 whatever was given
    """The text of a template, or the path of its file."""
    if isinstance(given, str) and ("{" in given or "\n" in given):
        return given
    return file_path(place, "chat_template", given)


def _cache_type(cache: Any) -> DType:  # noqa: ANN401 whatever was given
    """The element type of keys and values."""
    known = ", ".join(CACHES)
    try:
        element = DType.parse(cache) if isinstance(cache, (str, DType)) else None
    except AggmlError:  # there is no such type
        element = None
    if element is None:
        raise InvalidArgument(f"[load] cache is {show(cache)}, not one of {known}")
    if element.name.lower() not in CACHES:
        raise InvalidArgument(f"[load] cache is {element.name.lower()!r}, not one of {known}")
    return element


class Loading(Coroutine[Any, Any, Model]):
    """What `load` returns: ``await`` it for the model, or use it in ``async with``.

    It is a coroutine, so that ``asyncio.create_task(load(path))`` and the like take it.
    """

    def __init__(self, steps: Coroutine[Any, Any, Model]) -> None:
        self._steps = steps
        self._model: Model | None = None

    def __await__(self) -> Generator[Any, Any, Model]:
        return self._steps.__await__()

    def send(self, value: Any) -> Any:  # noqa: ANN401 what event loops pass to each other
        """Run one step; called by event loops."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 as `send`
        """Run one step that begins with an exception; called by event loops."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """End without loading."""
        self._steps.close()

    async def __aenter__(self) -> Model:
        self._model = await self._steps
        return await self._model.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        if self._model is not None:
            await self._model.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 always raises
        if not name.startswith("_") and hasattr(Model, name):
            raise AttributeError(
                f"[load] the model is not loaded yet, so it has no {name!r}: write "
                "'model = await aggml.models.load(path)'"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


async def _load(
    path: Path,
    backend: Backend | Scheduler | None,
    ctx: int | None,
    slots: int | None,
    element: DType,
    limits: EngineLimits,
    dtype: str | None,
    given: str | Path | None,
    form: ToolFormat | None,
    adapters: GivenAdapters,
    draft: Draft | None,
    mmproj: Path | None,
    progress: Callable[[int, int], None] | None,
) -> Model:
    own = None
    if backend is None:  # looking for devices may import packages and start drivers
        own = (await anyio.to_thread.run_sync(aggml.best_device)).backend()
    at: Backend | Scheduler | None = backend if backend is not None else own
    assert at is not None
    pictures: PictureEncoder | None = None
    try:
        if await anyio.to_thread.run_sync(is_voice_file, path):
            if dtype is not None:
                raise InvalidArgument(f"[load] dtype is {dtype!r}, but {VOICE} is no encoder")
            _refuse_adapters(adapters, VOICE)
            _refuse_draft(draft, VOICE)
            _refuse_pictures(mmproj, VOICE)
            if limits.memory is not None:
                await fit_voice(path, site_of(at), limits.memory)
            return VoiceModel(await load_voice(at, path, progress), owned=own)
        with await open_model(path) as file:
            template = sources_of(file.metadata)
            if given is not None:
                kept = {k: x for k, x in (template or {}).items() if k == RERANK}
                template = {DEFAULT: await _read_template(given), **kept}
            model = await describe_file(file)
            if not isinstance(model, Description):
                _refuse_adapters(adapters, model.architecture)
                _refuse_draft(draft, model.architecture)
                _refuse_pictures(mmproj, model.architecture)
            tokenizer = await anyio.to_thread.run_sync(_vocabulary, file)
            if isinstance(model, EncoderDescription):
                if limits.memory is not None:
                    await fit_model(model, file, site_of(at), limits.memory, None, None, element)
                return await _load_encoder(at, file, model, tokenizer, own, dtype, progress)
            if dtype is not None:
                raise InvalidArgument(
                    f"[load] dtype is {dtype!r}, but {model.architecture} is no encoder: "
                    "aggml.models.convert writes a file whose matrices have another type"
                )
            if isinstance(model, EncoderDecoderDescription):
                if limits.memory is not None:
                    await fit_model(model, file, site_of(at), limits.memory, None, None, element)
                weights = await load_weights(at, file, model.needs(), progress)
                both = EncoderDecoder(at, model, weights)
                return EncoderDecoderModel(both, tokenizer, owned=own)
            if isinstance(model, SpeechDescription):
                slots = await _windows(at, file, model, slots, element, limits)
                speech = await _load_speech(at, file, model, slots, element, progress)
                return SpeechModel(model, speech, tokenizer, owned=own)
            head = await read_rank_head(file, model, template)
            prompts, prompt = await _prompts(file)
            pictures = None if mmproj is None else await load_pictures(
                at, mmproj, model
            )  # fmt: skip
            engine = await load_engine(
                at,
                file,
                ctx=ctx,
                slots=slots,
                cache=element,
                limits=limits,
                path=path,
                adapters=adapters,
                draft=draft,
                mmproj=mmproj,
                progress=progress,
            )
            if draft is not None:
                await _speculate(draft, engine, tokenizer, at, element)
    except BaseException:
        with anyio.CancelScope(shield=True):
            if pictures is not None:
                await pictures.aclose()
            if own is not None:
                await own.aclose()
        raise
    text = TextModel(
        engine, tokenizer, owned=own, template=template, head=head, prompts=prompts,
        prompt=prompt, tool_format=form, speculation=engine.speculation, pictures=pictures,
    )  # fmt: skip
    text.asked_ctx = ctx
    if ctx is not None and ctx != text.ctx:
        logging.getLogger("aggml").warning(
            "[load] ctx=%d was rounded up to %d, a multiple of 256", ctx, text.ctx
        )
    return text


def _refuse_adapters(adapters: GivenAdapters, architecture: str) -> None:
    if adapters:
        raise refusal("load", adapters, architecture)


def _refuse_draft(draft: Draft | None, architecture: str) -> None:
    if draft is not None:
        raise InvalidArgument(
            f"[load] draft is given, but {architecture} does not continue text: nothing is guessed"
        )


async def _speculate(
    draft: Draft,
    engine: Engine,
    tokenizer: Vocabulary | None,
    backend: Backend | Scheduler,
    cache: DType,
) -> None:
    """Have an engine verify drafts; if that cannot be, its decoder is closed."""
    try:
        engine.speculation = await speculation_of(draft, engine, tokenizer, backend, cache)
    except BaseException:
        engine.decoder.close()
        raise


def _refuse_pictures(mmproj: Path | None, architecture: str) -> None:
    if mmproj is not None:
        raise InvalidArgument(
            f"[load] mmproj is {str(mmproj)!r}, but a model of the architecture {architecture!r} "
            "does not continue text, so it sees no pictures"
        )


async def _read_template(given: str | Path) -> str:
    """The text of a template.

    Raises:
        ModelError: its file cannot be read.
    """
    if isinstance(given, str):
        return given
    try:
        return await anyio.Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the chat template {str(given)!r} cannot be read: {error}") from error


async def _load_encoder(
    backend: Backend | Scheduler,
    file: ModelFile,
    model: EncoderDescription,
    tokenizer: Vocabulary | None,
    owned: Backend | None,
    dtype: str | None,
    progress: Callable[[int, int], None] | None,
) -> EncoderModel:
    layers = [0] * len(model.layers)
    missing = [name for name in model.needs() if name not in file.tensors]
    found = (
        file if missing else EncoderFile(file, model, dtype)
    )  # load_weights tells what is missing
    weights = await load_weights(backend, found, model.needs(), progress, caches=layers)
    prompts, prompt = await _prompts(file)
    separator = None if tokenizer is None else tokenizer.pair_separator
    encoder = Encoder(backend, model, weights, separator=separator)
    labels = labels_of(file, model.architecture, encoder.ranks)
    return EncoderModel(
        encoder, tokenizer, owned=owned, prompts=prompts, prompt=prompt, labels=labels
    )


async def _prompts(file: ModelFile) -> tuple[dict[str, str], str | None]:
    """The prompts of a folder by name, and the default one's name; those of files: none."""
    if isinstance(file, ModelFolder):
        return await anyio.to_thread.run_sync(prompts_of, file.path)
    return {}, None


async def describe_file(file: ModelFile) -> AnyDescription:
    """The model that a file describes, after its hyperparameters and tensors were checked.

    In a thread: the first time it looks for architectures in all installed packages, which takes
    30 to 50 ms.

    Raises:
        ModelError: an unknown architecture; a hyperparameter or a tensor that is wrong or missing.
    """
    return await anyio.to_thread.run_sync(describe_checked, file.metadata, file.tensors)


def _vocabulary(file: ModelFile) -> Vocabulary | None:
    """The vocabulary of a file, after it was checked; None if there is none.

    Raises:
        ModelError: something of it is wrong.
    """
    embeddings = file.tensors.get("token_embd.weight")
    rows = None if embeddings is None else embeddings.ne[1]
    for problem in vocabulary_problems(file.metadata, rows):
        raise ModelError(problem)
    return open_vocabulary(file.metadata)


async def _windows(
    backend: Backend | Scheduler,
    file: ModelFile,
    model: SpeechDescription,
    slots: int | None,
    cache: DType,
    limits: EngineLimits,
) -> int:
    """How many windows of speech are decoded together: what fits, if memory is short.

    Raises:
        MemoryShortage: it does not fit.
    """
    site = site_of(backend)
    size = sum(tensor.nbytes for tensor in file.tensors.values())
    if limits.memory is not None or is_short(site, size):
        found = await fit_model(model, file, site, limits.memory, None, slots, cache)
        return found.slots
    return WINDOWS if slots is None else slots


async def _load_speech(
    backend: Backend | Scheduler,
    file: ModelFile,
    model: SpeechDescription,
    slots: int,
    cache: DType,
    progress: Callable[[int, int], None] | None,
) -> Decoder:
    """The decoder of a model of speech; its weights include those of the encoder."""
    ctx = model.text.context_length
    caches = Decoder.sizes(model.text, ctx=ctx, sequences=slots, cache=cache)
    weights = await load_weights(backend, file, model.needs(), progress, caches=caches)
    return Decoder(backend, model.text, weights, ctx=ctx, sequences=slots, cache=cache)


async def load_engine(
    backend: Backend | Scheduler,
    file: ModelFile,
    *,
    ctx: int | None,
    slots: int | None,
    cache: DType | str,
    limits: EngineLimits,
    path: Path | None = None,
    adapters: GivenAdapters | None = None,
    draft: Draft | None = None,
    mmproj: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """A model that continues text, without its tokenizer; the arguments are those of `load`.

    With a draft its states can go back, so that steps can verify drafts. Neither what makes drafts
    nor what embeds pictures is loaded here; both count for ``memory``.
    """
    model = await describe_file(file)
    if not isinstance(model, Description):
        raise ModelError(f"{model.architecture} does not continue text")
    if draft == MTP:
        check_head(model, file.tensors)
    site = site_of(backend)
    changes = await read_adapters(model, file, adapters or GivenAdapters())
    more = 0 if changes is None else changes.nbytes
    size = sum(tensor.nbytes for tensor in file.tensors.values()) + more
    if limits.memory is not None or is_short(site, size):
        fits = await fit_text(
            model, file, site, limits.memory, ctx, slots, DType.parse(cache), changes, draft,
            mmproj, limits.kv_memory if allocates_whole(site) else None,
        )  # fmt: skip
        ctx, slots = fits.ctx, fits.slots
        if limits.memory is not None:
            pages = fits.pages if limits.kv_memory is None else min(fits.pages, limits.kv_memory)
            limits = replace(limits, kv_memory=pages)
    slots = SLOTS if slots is None else slots
    decoder = await load_decoder(
        backend, file, kind=PagedDecoder, ctx=ctx, sequences=slots + staged_slots(slots),
        cache=cache, progress=progress, adapters=changes,
        rewind=Rewind() if draft is None else rewind_of(model, slots),
        ahead=draft == MTP,
    )  # fmt: skip
    try:
        about = ""
        if limits.prefix_folder is not None and path is not None:
            about = await anyio.to_thread.run_sync(identity_of, path)
            if changes is not None and changes.about:
                about = f"{about} {changes.about}"
        return engine_of(decoder, slots, limits, about)
    except BaseException:
        decoder.close()
        raise


D = TypeVar("D", bound=Decoder)


@overload
async def load_decoder(
    backend: Backend | Scheduler,
    file: ModelFile,
    *,
    ctx: int | None = None,
    sequences: int = 1,
    cache: DType | str = "f16",
    progress: Callable[[int, int], None] | None = None,
    stage: tuple[int, int] | None = None,
    adapters: AdapterArrays | None = None,
    rewind: Rewind = ...,
    ahead: bool = False,
) -> Decoder: ...
@overload
async def load_decoder(
    backend: Backend | Scheduler,
    file: ModelFile,
    *,
    kind: type[D],
    ctx: int | None = None,
    sequences: int = 1,
    cache: DType | str = "f16",
    progress: Callable[[int, int], None] | None = None,
    stage: tuple[int, int] | None = None,
    adapters: AdapterArrays | None = None,
    rewind: Rewind = ...,
    ahead: bool = False,
) -> D: ...
async def load_decoder(
    backend: Backend | Scheduler,
    file: ModelFile,
    *,
    kind: type[Decoder] = Decoder,
    ctx: int | None = None,
    sequences: int = 1,
    cache: DType | str = "f16",
    progress: Callable[[int, int], None] | None = None,
    stage: tuple[int, int] | None = None,
    adapters: AdapterArrays | None = None,
    rewind: Rewind = Rewind(),  # noqa: B008 it is frozen
    ahead: bool = False,
) -> Decoder:
    """The part of a model that computes, without its tokenizer.

    Args:
        backend: where to compute, as for `load`; must stay open while the model is used.
        file: an open model file.
        kind: `Decoder` or a subclass of it.
        ctx: positions of each sequence; None: as many as the model was trained for, at most 4096.
        sequences: how many there may be at a time.
        cache: element type of keys and values.
        progress: called with bytes loaded so far and bytes in all.
        stage: the first layer and the one after the last, for `Description.stage`; None: all.
        adapters: adapters and control vectors of the whole model.
        rewind: how far states can go back.
        ahead: whether the weights of the head that predicts a further token are loaded, too.

    Raises:
        ModelError: the file is no model that this package can run.
        InvalidArgument: ``stage`` is not within its layers.
    """
    model = await describe_file(file)
    if isinstance(model, EncoderDescription):
        raise ModelError(f"{model.architecture} is an encoder: it does not continue text")
    if isinstance(model, EncoderDecoderDescription):
        raise ModelError(f"{model.architecture} reads and writes two texts: it continues none")
    if isinstance(model, SpeechDescription):
        raise ModelError(f"{model.architecture} is a model of speech: it does not continue text")
    if stage is not None:
        model = model.stage(*stage)
    limit = ctx or min(model.context_length, LONGEST)
    caches = kind.sizes(model, ctx=limit, sequences=sequences, cache=cache, rewind=rewind)
    uses, head = model.uses, model.ahead
    if ahead and head is not None:
        caches = [*caches, *kind.sizes(head, ctx=limit, sequences=sequences, cache=cache)]
        uses = functools.partial(_is_used, (model, head))
    weights = await load_weights(backend, file, model.needs(), progress, uses, caches)
    placed = None if adapters is None else await adapters.place(site_of(backend), weights)
    return kind(
        backend, model, weights, ctx=limit, sequences=sequences, cache=cache, adapters=placed,
        rewind=rewind,
    )  # fmt: skip


def _is_used(models: Sequence[Description], name: str) -> bool:
    """Whether any of these models may use a tensor of the file."""
    return any(x.uses(name) for x in models)
