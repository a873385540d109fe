"""Transcriber: a model of speech that is served under a name.

Not here: the transcription, for which windows of all clients share batches (aggml.models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggml.models import SpeechModel

__all__ = ["Transcriber"]


@dataclass(frozen=True, slots=True)
class Transcriber:
    """A model that writes what is said.

    Attributes:
        name: the name under which the model is served.
        model: a speech model; closed by its owner.
    """

    name: str
    model: SpeechModel
