"""ChatPrompt: the tokens of a conversation, up to where the model's answer begins.

The text of a message stays text: a name of a control token in it, such as ``<|im_end|>``, would end
the message, so somebody else's text could speak for the system. Such a name is replaced by private
characters before the template sees it. They become the name's letters again when the tokens between
the template's own control tokens are made. Here: that, and arguments of templates. Not here:
templates (template.py), tokens of a text (../tokenizers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.to_thread

from aggml import InvalidArgument
from aggml.models.arguments import shown

if TYPE_CHECKING:
    from aggml.models.chat.template import ChatTemplate
    from aggml.models.tokenizers import Vocabulary

__all__ = ["Conversing", "encode_messages", "read_template_args"]

#: Names of a template that `template_args` may not replace.
OURS: Final = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"}
)


def read_template_args(place: str, given: Any) -> dict[str, Any]:  # noqa: ANN401
    """Further names for the template, such as ``enable_thinking``.

    Raises:
        InvalidArgument: no mapping from texts; a name that the conversation itself sets.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"[{place}] template_args is {shown(given)}, expected names with their values"
        )
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(
                f"[{place}] template_args has the name {shown(name)}, expected an identifier"
            )
        if name in OURS:
            raise InvalidArgument(
                f"[{place}] template_args has the name {name!r}, which the conversation sets"
            )
    return dict(given)


class Conversing(Protocol):
    """The part of a `TextModel` that makes a prompt of a conversation."""

    @property
    def tokenizer(self) -> Vocabulary:
        """Text to token ids and back."""
        ...

    @property
    def template(self) -> ChatTemplate:
        """From messages to text."""
        ...


async def encode_messages(
    model: Conversing, messages: list[dict[str, str]], template_args: Mapping[str, Any]
) -> list[int]:
    """Token ids of a conversation, with one BOS if the model expects it.

    In a thread: reading a template takes 20 ms the first time, and one of a few lines may compute
    for 2 s before it is stopped.

    Args:
        model: has the template.
        messages: as `read_messages` gives them.
        template_args: as `read_template_args` gives them.

    Raises:
        ModelError: the template refuses the conversation, or fails.
    """

    def encode() -> list[int]:
        template, vocabulary = model.template, model.tokenizer
        known = messages
        if "developer" not in template.source:
            known = [x | {"role": "system"} if x["role"] == "developer" else x for x in messages]
        quotes = vocabulary.quotes([text for x in known for text in x.values()])
        if quotes:
            known = [{key: quotes.quote(text) for key, text in x.items()} for x in known]
        text = template.render(known, **template_args)
        return vocabulary.encode_quoted(text, quotes) if quotes else vocabulary.encode_prompt(text)

    return await anyio.to_thread.run_sync(encode)
