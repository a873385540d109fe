"""What all adapters share: the model that they were given, and parts of its answers.

Here: an open model or a file, prompts for queries and documents, log-probabilities, messages. Not
here: the classes of a library (the file with its name).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from aggml import InvalidArgument
from aggml.models import Model, blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models import Token
    from aggml.models.blocking import BlockingModel

__all__ = [
    "DOCUMENT", "QUERY", "OpenedModel", "call_of", "logprobs_of", "open_given", "parse_arguments",
    "prompt_for",
]  # fmt: skip

#: Names of prompts that sentence-transformers tries, in order.
QUERY: Final = ("query",)
DOCUMENT: Final = ("document", "passage", "corpus")


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """An open model with both of its faces.

    Attributes:
        model: to await.
        face: the same, for code that does not await.
        name: what the adapter tells as the name of its model.
        owned: whether the adapter has loaded it.
    """

    model: Model
    face: BlockingModel
    name: str
    owned: bool


def open_given(
    place: str, given: object, load_options: Mapping[str, Any] | None, name: str | None
) -> OpenedModel:
    """The model that an adapter was given.

    Args:
        place: the adapter, for errors.
        given: a model of `aggml.models.load` or of `aggml.models.blocking.load`; or the path of a
            file, which is loaded now, while the caller waits.
        load_options: for a path: options of `aggml.models.load`.
        name: of the model; None: that of the file, or else its architecture.

    Raises:
        InvalidArgument: it is no model and no path; an open model is given load options.
        ModelError: the file cannot be loaded.
    """
    of = cast("object", blocking.unwrap(cast("Any", given)))
    if isinstance(of, Model):
        if load_options:
            raise InvalidArgument(
                f"[{place}] load_options are {sorted(load_options)}, but the model is open "
                "already: give them to load"
            )
        return OpenedModel(of, blocking.wrap(of), name or of.architecture, owned=False)
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidArgument(
            f"[{place}] model is {given!r}, expected a model of aggml.models.load, or a path"
        )
    face = blocking.load(cast("Any", given), **(load_options or {}))
    return OpenedModel(blocking.unwrap(face), face, name or Path(given).stem, owned=True)


def prompt_for(model: Model, names: Sequence[str]) -> str | None:
    """The first of these names of which the model's folder has a prompt; None: it has none."""
    return next((name for name in names if name in model.prompts), None)


def logprobs_of(model: Model, tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, as OpenAI's answers have them.

    Tokens of which none is known are left out.
    """
    words = model.tokenizer

    def one(token: int, logprob: float) -> dict[str, Any]:
        spelt = words.bytes_of(token)
        return {"token": spelt.decode(errors="replace"), "bytes": list(spelt), "logprob": logprob}

    return [
        one(x.id, x.logprob) | {"top_logprobs": [one(*best) for best in x.top or ()]}
        for x in tokens
        if x.logprob is not None
    ]


def call_of(number: str | None, name: str, arguments: object) -> dict[str, Any]:
    """A call of an assistant's message, as `TextModel.chat` reads it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": text}}


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None: it is not complete."""
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
