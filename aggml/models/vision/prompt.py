"""Prompts of texts and pictures: their positions, and keys that stand for what a picture shows.

At the positions of a picture a prompt has numbers below 0 in place of token ids. They are made of
the picture's content, so that two prompts that begin alike, pictures included, share what was
computed, and others do not. Not here: the embeddings (encoder.py), steps (../engine/).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml import InvalidArgument
from aggml.models.arguments import one_text, show, token_ids
from aggml.models.engine.requests import PlacedPicture
from aggml.models.vision.given import GivenPicture, is_picture, picture_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.tokenizers import Vocabulary
    from aggml.models.vision.encoder import EmbeddedPicture

__all__ = ["PicturePrompt", "SeenPrompt", "mixed_prompt", "place_pictures"]


@dataclass(frozen=True, slots=True, eq=False)
class PicturePrompt:
    """A prompt as it was given.

    Attributes:
        parts: texts, token ids and pictures.
        special: whether the tokens that begin and end a text are added, as the model expects.
    """

    parts: tuple[str | list[int] | GivenPicture, ...]
    special: bool = True

    @property
    def pictures(self) -> list[GivenPicture]:
        """The pictures, in order."""
        return [x for x in self.parts if isinstance(x, GivenPicture)]


@dataclass(frozen=True, slots=True, eq=False)
class SeenPrompt:
    """A prompt as the engine takes it.

    Attributes:
        ids: token ids; below 0 at the positions of pictures.
        pictures: the embeddings there.
    """

    ids: list[int]
    pictures: tuple[PlacedPicture, ...]


def mixed_prompt(place: str, name: str, value: Any, vocabulary: int) -> PicturePrompt | None:  # noqa: ANN401
    """A prompt that is a list with pictures in it, or one picture; None: it is something else.

    Raises:
        InvalidArgument, Unsupported: a part is no text, no list of token ids and no picture.
    """
    if (is_picture(value) and not isinstance(value, (bytes, bytearray, np.ndarray))) or (
        isinstance(value, np.ndarray) and value.ndim == 3
    ):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return None
    kinds = {*map(type, value)}  # asking each of 100,000 token ids would hold up the loop for 50 ms
    if kinds <= {int, str} or not any(is_picture(x) for x in value):
        return None
    parts: list[str | list[int] | GivenPicture] = []
    for i, x in enumerate(value):
        at = f"{name}[{i}]"
        if is_picture(x):
            parts.append(picture_of(place, at, x))
        elif isinstance(x, str):
            parts.append(one_text(place, at, x))
        elif isinstance(x, (list, tuple, np.ndarray)):
            parts.append(token_ids(place, at, x, vocabulary))
        else:
            raise InvalidArgument(
                f"[{place}] {at} is {show(x)}, expected a text, a list of token ids or a picture"
            )
    return PicturePrompt(tuple(parts))


def place_pictures(
    words: Vocabulary, prompt: PicturePrompt, embedded: Sequence[EmbeddedPicture], *, whole: bool
) -> SeenPrompt:
    """The positions of a prompt.

    Args:
        words: of the model.
        prompt: as it was given.
        embedded: its pictures, in order.
        whole: as of `PlacedPicture`.
    """
    ids: list[int] = []
    placed: list[PlacedPicture] = []
    coming = iter(embedded)
    begins = prompt.special and words.add_bos and words.bos is not None
    for part in prompt.parts:
        if isinstance(part, GivenPicture):
            picture = next(coming)
            for i, one in enumerate(picture.parts):
                if isinstance(one, str):
                    ids += words.encode(one, special=False)
                else:
                    at = len(ids) + bool(begins and ids[:1] != [words.bos])
                    placed.append(PlacedPicture(at, one, whole, picture.tokens))
                    ids += _keys(picture.digest, i, len(one))
        else:
            ids += words.encode(part, special=False) if isinstance(part, str) else part
    if begins and ids[:1] != [words.bos]:
        assert words.bos is not None
        ids.insert(0, words.bos)
    if prompt.special and words.add_eos and words.eos is not None:
        ids.append(words.eos)
    return SeenPrompt(ids, tuple(placed))


def _keys(digest: bytes, part: int, n: int) -> list[int]:
    """A number below 0 for each position of a part of a picture."""
    made = hashlib.shake_128(digest + part.to_bytes(4, "little")).digest(4 * n)
    found: list[int] = (np.frombuffer(made, "<i4") | np.int32(-(1 << 31))).tolist()
    return found
