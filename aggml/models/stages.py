"""What a program needs that computes some layers of a model by itself, as a stage of several.

``decoder = await load_decoder(backend, file, stage=(0, 8))``
``future = await decoder.queue(Batch((Group(ids, positions, rows, slot, seen),)))``

`aggml.ray` is such a program. Here: the names; each stands in the room that its module names. Not
here: models that are computed as a whole (`aggml.models.load`).
"""

from __future__ import annotations

from aggml.models.chat.template import sources_of
from aggml.models.decoder.batch import Batch, Best, Group, check
from aggml.models.decoder.decoder import CHUNK, F32, Decoder
from aggml.models.description import Description, Layer
from aggml.models.dividing import SHARE
from aggml.models.engine.policy import AGING, Shares, admit
from aggml.models.engine.requests import (
    Counters,
    PageUsage,
    TextRequest,
    choose_tokens,
    view_of,
)
from aggml.models.kv.rows import round_up
from aggml.models.lifetime import Lifetime
from aggml.models.loading import LONGEST, describe_file, load_decoder
from aggml.models.text_model import TextModel
from aggml.models.tokenizers import Vocabulary, open_vocabulary
from aggml.models.weights import ModelFile, open_model

__all__ = [
    "AGING", "CHUNK", "F32", "LONGEST", "SHARE", "Batch", "Best", "Counters", "Decoder",
    "Description", "Group", "Layer", "Lifetime", "ModelFile", "PageUsage", "Shares", "TextModel",
    "TextRequest", "Vocabulary", "admit", "check", "choose_tokens", "describe_file", "load_decoder",
    "open_model", "open_vocabulary", "round_up", "sources_of", "view_of",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
