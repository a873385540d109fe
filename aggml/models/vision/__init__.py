"""Pictures: from pixels or files to embeddings that stand among the tokens of a prompt.

Here: the names that other rooms use. Not here: the positions that have them in a step
(../decoder/), requests (../engine/), messages (../chat/).
"""

from __future__ import annotations

from aggml.models.vision.encoder import (
    EmbeddedPicture,
    PictureEncoder,
    load_pictures,
    picture_problems,
    picture_program,
    read_projector,
)
from aggml.models.vision.given import GivenPicture, picture_of
from aggml.models.vision.prompt import PicturePrompt, SeenPrompt, mixed_prompt, place_pictures

__all__ = [
    "EmbeddedPicture", "GivenPicture", "PictureEncoder", "PicturePrompt", "SeenPrompt",
    "load_pictures", "mixed_prompt", "picture_of", "picture_problems", "picture_program",
    "place_pictures", "read_projector",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
