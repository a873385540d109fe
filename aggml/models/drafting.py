"""The argument ``draft`` of `load`: from what it names to what makes drafts.

Not here: drafts (engine/lookup.py, engine/draft_model.py), when they pay (engine/speculation.py).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from aggml import InvalidArgument, Unsupported
from aggml.models.arguments import file_path, show
from aggml.models.checking import describe_checked, tensor_problems
from aggml.models.description import Description
from aggml.models.engine.draft_model import DraftModel
from aggml.models.engine.ngram_files import identity_of_tokens, read_ngrams, write_ngrams
from aggml.models.engine.ngrams import NgramTable
from aggml.models.engine.prediction_head import PredictionHead
from aggml.models.engine.speculation import WIDTHS, LookupDrafter, Speculation
from aggml.models.errors import ModelError
from aggml.models.kv.paging import PagedDecoder
from aggml.models.kv.room import State
from aggml.models.kv.state_rows import Rewind
from aggml.models.text_model import TextModel
from aggml.models.tokenizers import open_vocabulary
from aggml.models.weights import load_weights, open_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Backend, DType, Scheduler, Tensor
    from aggml.models.engine.engine import Engine
    from aggml.models.tokenizers import Vocabulary

__all__ = [
    "LOOKUP",
    "MTP",
    "NGRAM",
    "Draft",
    "NgramFile",
    "check_head",
    "draft_of",
    "head_weights",
    "rewind_of",
    "speculation_of",
]

LOOKUP: Final = "lookup"
NGRAM: Final = "ngram"
MTP: Final = "mtp"
#: What a head may have of its own, and what of its model it has else.
OWN: Final = {
    "embed_tokens": "token_embd", "shared_head_norm": "output_norm", "shared_head_head": "output",
}  # fmt: skip
FURTHEST: Final = WIDTHS[1] - 1  # tokens that a state can go back
#: States of all sequences may take so many bytes for that; else they go back less far.
MOST_FOR_STATES: Final = 1 << 30
PADDING: Final = re.compile(r"\[PAD\d+\]")  # as converters fill a vocabulary up

OF_FILE: Final = f"{NGRAM}:"  #: "ngram:PATH"


@dataclass(frozen=True, slots=True)
class NgramFile:
    """Statistics of n-grams that a file keeps: read by `load`, written when the model is closed."""

    path: Path


#: What makes drafts: the word "lookup", "ngram" or "mtp", statistics in a file, the path of a
#: model, or a model.
Draft = str | Path | TextModel | NgramFile


def draft_of(place: str, given: Any) -> Draft | None:  # noqa: ANN401 whatever was given
    """The argument, checked.

    Raises:
        InvalidArgument: it is nothing of that kind.
    """
    if given is None or isinstance(given, TextModel):
        return given
    if isinstance(given, str) and given in (LOOKUP, NGRAM, MTP):
        return given
    if isinstance(given, str) and given.startswith(OF_FILE) and given != OF_FILE:
        return NgramFile(file_path(place, "draft", given.removeprefix(OF_FILE)))
    try:
        return file_path(place, "draft", given)
    except InvalidArgument:
        raise InvalidArgument(
            f"[{place}] draft is {show(given)}, expected {LOOKUP!r}, {NGRAM!r}, "
            f"'{OF_FILE}PATH', {MTP!r}, the "
            "path of a model's file or folder, or a model that continues text"
        ) from None


def rewind_of(model: Description, slots: int) -> Rewind:
    """How far states must be able to go back, so that steps can verify drafts or make them.

    Args:
        model: whose tokens are guessed, or which guesses them.
        slots: sequences of its engine.
    """
    kept = (x for layer in model.layers for x in layer.caches().values())
    state = sum(4 * x.width for x in kept if isinstance(x, State))
    if not state:
        return Rewind()
    fits = state * slots * (1 + FURTHEST) <= MOST_FOR_STATES
    return Rewind(slots, FURTHEST if fits else WIDTHS[0] - 1)


async def speculation_of(
    draft: Draft,
    engine: Engine,
    tokenizer: Vocabulary | None,
    backend: Backend | Scheduler,
    cache: DType,
) -> Speculation:
    """What an engine speculates with.

    Args:
        draft: what makes drafts.
        engine: of the model whose tokens are guessed.
        tokenizer: of that model.
        backend: where a draft model is computed that is loaded here.
        cache: element type of its keys and values.

    Raises:
        Unsupported: a draft model of another kind, or on other machines.
        ModelError: the draft model cannot be loaded, or has another vocabulary.
        InvalidState: the draft model is closed.
    """
    decoder = engine.decoder
    if draft in (LOOKUP, NGRAM):
        drafter = LookupDrafter(NgramTable() if draft == NGRAM else None)
        return Speculation(drafter, decoder.ctx, decoder.widest)
    if isinstance(draft, NgramFile):
        drafter = await _open_ngrams(draft.path, tokenizer, decoder.vocabulary)
        return Speculation(drafter, decoder.ctx, decoder.widest)
    if draft == MTP:
        head = PredictionHead(_head_decoder(engine, cache), engine.slots)
        return Speculation(head, decoder.ctx, decoder.widest, head)
    sequences = engine.slots + 1  # the last one is for padding
    if isinstance(draft, TextModel):
        other = draft.engine.decoder
        if not isinstance(other, PagedDecoder):
            raise Unsupported("[load] draft is a model on other machines: it cannot make drafts")
        _check_vocabularies(
            (tokenizer, decoder.vocabulary), (draft._tokenizer, other.vocabulary), repr(draft)
        )
        own = PagedDecoder(
            other.site, other.model, other.weights, ctx=min(decoder.ctx, other.ctx),
            sequences=sequences, cache=cache, owns_weights=False,
            rewind=rewind_of(other.model, engine.slots),
        )  # fmt: skip
        return Speculation(
            DraftModel(own, engine.slots, decoder.vocabulary, lambda: not draft.closed),
            decoder.ctx, decoder.widest,
        )  # fmt: skip
    path = Path(draft)
    with await open_model(path, "draft") as file:
        model = await anyio.to_thread.run_sync(describe_checked, file.metadata, file.tensors)
        if not isinstance(model, Description):
            raise Unsupported(
                f"[load] draft is {str(path)!r}, but a {model.architecture} does not continue text"
            )
        words = await anyio.to_thread.run_sync(open_vocabulary, file.metadata)
        ctx = min(decoder.ctx, model.context_length)
        rewind = rewind_of(model, engine.slots)
        sizes = PagedDecoder.sizes(model, ctx=ctx, sequences=sequences, cache=cache, rewind=rewind)
        _check_vocabularies(
            (tokenizer, decoder.vocabulary), (words, _rows(file.tensors)), repr(str(path))
        )
        weights = await load_weights(backend, file, model.needs(), None, model.uses, sizes)
        loaded = PagedDecoder(
            backend, model, weights, ctx=ctx, sequences=sequences, cache=cache, rewind=rewind
        )  # fmt: skip
    made = DraftModel(loaded, engine.slots, decoder.vocabulary)
    return Speculation(made, decoder.ctx, decoder.widest)


async def _open_ngrams(path: Path, words: Vocabulary | None, vocabulary: int) -> LookupDrafter:
    """Drafts from the statistics of a file, which are written back when the model is closed.

    Raises:
        ModelError: the file cannot be read, or has another vocabulary.
    """

    def read() -> tuple[str, NgramTable]:
        identity = identity_of_tokens(None if words is None else words.pieces, vocabulary)
        return identity, read_ngrams(path, identity, vocabulary)

    identity, table = await anyio.to_thread.run_sync(read)
    return LookupDrafter(table, functools.partial(write_ngrams, path, identity))


def check_head(model: Description, tensors: Mapping[str, Tensor]) -> Description:
    """The head of a model that predicts a further token.

    Raises:
        ModelError: the file has none, or a tensor of it is missing or wrong.
    """
    head = model.ahead
    if head is None:
        raise ModelError(
            f"[load] draft is {MTP!r}, but the file has no layer that predicts further tokens: a "
            f"model of the architecture {model.architecture!r} needs the key "
            f"'{model.architecture}.nextn_predict_layers' and tensors 'blk.N.nextn.*'; "
            f"{LOOKUP!r} and {NGRAM!r} need nothing"
        )
    for problem in tensor_problems(head, tensors):
        raise ModelError(f"[load] draft is {MTP!r}, but {problem}")
    return head


def head_weights(head: Description, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a head by the names of a whole model: its own, or those of its model."""
    weights, prefix = dict(tensors), f"blk.{head.first}.nextn."
    weights.setdefault("output.weight", weights["token_embd.weight"])
    for own, shared in OWN.items():
        if f"{prefix}{own}.weight" in weights:
            weights[f"{shared}.weight"] = weights[f"{prefix}{own}.weight"]
    return weights


def _head_decoder(engine: Engine, cache: DType) -> PagedDecoder:
    """A decoder of the head of a model, whose weights are those of the model's decoder."""
    decoder = engine.decoder
    head = decoder.model.ahead
    assert head is not None
    return PagedDecoder(
        decoder.site, head, head_weights(head, decoder.weights), ctx=decoder.ctx,
        sequences=engine.slots + 1, cache=cache, owns_weights=False,
    )  # fmt: skip


def _rows(tensors: Mapping[str, Tensor]) -> int:
    embeddings = tensors.get("token_embd.weight")
    return 0 if embeddings is None else embeddings.ne[1]


def _check_vocabularies(
    one: tuple[Vocabulary | None, int], other: tuple[Vocabulary | None, int], what: str
) -> None:
    """Refuse a draft model whose tokens are others.

    Args:
        one: the vocabulary of the model, and how many tokens it has.
        other: those of the draft model.
        what: the draft model.

    Raises:
        ModelError: a token of one of them has another text in the other.
    """
    (words, size), (others, other_size) = one, other
    if words is None or others is None:
        if size != other_size:
            raise ModelError(
                f"[load] draft is {what}, which has {other_size} tokens, and the model has {size}: "
                "both must have the same vocabulary"
            )
        return
    pieces, found = _without_padding(words), _without_padding(others)
    if pieces == found:
        return
    for i, (piece, another) in enumerate(zip(pieces, found, strict=False)):
        if piece != another:
            raise ModelError(
                f"[load] draft is {what}, whose token {i} is {another!r}; in the model it is "
                f"{piece!r}: both must have the same vocabulary"
            )
    raise ModelError(
        f"[load] draft is {what}, which has {len(found)} tokens, and the model has {len(pieces)}: "
        "both must have the same vocabulary"
    )


def _without_padding(words: Vocabulary) -> list[str]:
    pieces = [*words.pieces]
    while pieces and PADDING.fullmatch(pieces[-1]):
        pieces.pop()
    return pieces
