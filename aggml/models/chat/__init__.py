"""Conversations: messages become a prompt, the answer becomes a message.

Here: the names that programs import. messages.py checks messages, template.py runs the template of
a model file within the bounds of sandbox.py, prompt.py makes tokens of its text, answers.py reads
the answer. Not here: generating tokens (aggml.models.TextModel.generate).
"""

from __future__ import annotations

from aggml.models.chat.answers import (
    ANSWER,
    ChatStream,
    answer_messages,
    encode_chat,
    render_chat,
    stream_answer,
)
from aggml.models.chat.messages import ChatDelta, ChatMessage, ToolCall, ToolCallDelta, Usage
from aggml.models.chat.template import ChatTemplate, sources_of, template_of

__all__ = [
    "ANSWER", "ChatDelta", "ChatMessage", "ChatStream", "ChatTemplate", "ToolCall", "ToolCallDelta",
    "Usage", "answer_messages", "encode_chat", "render_chat", "sources_of", "stream_answer",
    "template_of",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
