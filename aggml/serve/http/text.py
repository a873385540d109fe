"""Prompts of requests as token ids; errors name the request's field.

Not here: vocabularies (aggml/models/tokenizers), templates (aggml/models/chat).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from aggml import InvalidArgument
from aggml.models import ModelError
from aggml.models.chat import encode_chat
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models import Model, TextModel

__all__ = ["begin_text", "encode_conversation", "encode_input", "encode_prompt"]

LONG_TEXT: Final = 500  # characters; longer texts are tokenized in a thread


async def encode_prompt(model: TextModel, prompt: str | list[int]) -> list[int]:
    """Token ids of a prompt.

    Args:
        model: continues it.
        prompt: a text, or a list of tokens.

    Raises:
        RequestError: it has no tokens, or tokens that the model does not know.
    """
    if isinstance(prompt, list):
        n = model.vocabulary_size
        if max(prompt) >= n:
            raise RequestError(
                400, f"prompt: there is no token {max(prompt)}, the model has 0 to {n - 1}",
                field="prompt",
            )  # fmt: skip
        return prompt
    ids = await _encode(model.tokenizer.encode_prompt, prompt)
    if not ids:
        raise RequestError(
            400, "prompt: is empty, there must be at least one token", field="prompt"
        )
    return ids


def begin_text(model: TextModel) -> list[int]:
    """The prompt of a request without one: the token that begins a text.

    Raises:
        RequestError: the model has no such token.
    """
    bos = model.tokenizer.bos
    if bos is None:
        raise RequestError(
            400,
            "prompt: is missing, and the model has no token that begins a text",
            field="prompt",
        )
    return [bos]


async def encode_conversation(model: TextModel, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation, up to the begin of the assistant's next message.

    Raises:
        RequestError: something is no message; the model's template refuses the conversation.
    """
    try:
        ids = await encode_chat(model, messages)
    except (ModelError, InvalidArgument) as error:
        why = str(error).removeprefix("[encode_chat] ")
        why = why if why.startswith("messages") else f"messages: {why}"
        raise RequestError(400, why, field="messages") from error
    if not ids:
        raise RequestError(
            400, "messages: the model's template makes no text of them", field="messages"
        )
    return ids


async def encode_input(model: Model, encode: Callable[..., list[int]], *texts: str) -> list[int]:
    """Token ids of a text, or of a query and a document, for a model with vectors or ranks.

    Raises:
        ModelError: there are more than the model takes, or none.
    """
    ids = await _encode(encode, *texts)
    if not 0 < len(ids) <= model.ctx:
        raise ModelError(f"{len(ids)} tokens, but the model takes 1 to {model.ctx}")
    return ids


async def _encode(encode: Callable[..., list[int]], *texts: str) -> list[int]:
    if sum(map(len, texts)) > LONG_TEXT:
        return await anyio.to_thread.run_sync(encode, *texts)
    return encode(*texts)
