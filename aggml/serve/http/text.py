"""Text to tokens and back for requests: messages, stop strings.

Not here: vocabularies and chat templates (aggml/models/tokenizers).
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from aggml.models import ModelError
from aggml.serve.http.schema import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.chat.template import ChatTemplate
    from aggml.models.tokenizers.vocabulary import Vocabulary

__all__ = ["Answer", "Text"]

LONG_TEXT: Final = 500  # characters; longer texts are tokenized in a thread


class Text:
    """Encodes prompts and messages for one model.

    Args:
        vocabulary: the model's vocabulary.
        template: turns messages into text.
    """

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self.vocabulary = vocabulary
        self._template = template

    async def encode(self, prompt: str | list[int], field: str = "prompt") -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: a text, or a list of tokens.
            field: the field of the request that holds the prompt.

        Raises:
            RequestError: it has no tokens, or tokens that the model does not know.
        """
        if isinstance(prompt, list):
            n = len(self.vocabulary.pieces)
            if max(prompt) >= n:
                raise RequestError(
                    400, f"{field}: there is no token {max(prompt)}, the model has 0 to {n - 1}",
                    field=field,
                )  # fmt: skip
            return prompt
        if len(prompt) > LONG_TEXT:
            ids = await anyio.to_thread.run_sync(self.vocabulary.encode_prompt, prompt)
        else:
            ids = self.vocabulary.encode_prompt(prompt)
        if not ids:
            raise RequestError(
                400, f"{field}: is empty, there must be at least one token", field=field
            )
        return ids

    def begin(self) -> list[int]:
        """The prompt of a request without one: the token that begins a text.

        Raises:
            RequestError: the model has no such token.
        """
        if self.vocabulary.bos is None:
            raise RequestError(
                400,
                "prompt: is missing, and the model has no token that begins a text",
                field="prompt",
            )
        return [self.vocabulary.bos]

    async def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to the begin of the assistant's next message.

        Raises:
            RequestError: the model's template refuses the conversation.
        """
        try:
            # in a thread: a template of a few lines may compute for 2 s before it is stopped
            text = await anyio.to_thread.run_sync(self._template.render, messages)
        except ModelError as error:
            raise RequestError(400, f"messages: {error}", field="messages") from error
        return await self.encode(text, "messages")


class Answer:
    """The text of an answer while its tokens arrive; ends at the first of the stop strings.

    Text that may be the beginning of a stop string is held back until more text decides.

    Args:
        vocabulary: the model's vocabulary.
        stops: the stop strings.
        least: stop strings that end within so many first tokens do not count.

    Attributes:
        stopped: whether a stop string has come.
        begins: for each token, how many characters came before it.
        given: how many characters `add` and `end` have returned.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], least: int = 0) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._least = least
        self._past = 0  # characters of the first ``least`` tokens
        self._held = ""
        self.stopped = False
        self.begins: list[int] = []
        self.given = 0

    def add(self, tokens: Sequence[int]) -> str:
        """Add tokens; returns the text that is now certain and was not returned before."""
        for token in tokens:
            if self.stopped:
                break
            self.begins.append(self.given + len(self._held))
            self._held += self._decoder.decode(self._vocabulary.bytes_of(token))
            if len(self.begins) <= self._least:
                self._past = self.given + len(self._held)
            else:
                self._look()
        return self._let_go(final=self.stopped)

    def end(self) -> str:
        """Return the rest of the text: no more tokens come."""
        if not self.stopped:
            self._held += self._decoder.decode(b"", final=True)
            if len(self.begins) > self._least:
                self._look()
        return self._let_go(final=True)

    def _look(self) -> None:
        past = self._past - self.given  # stop strings count only if they end after this
        places = [self._held.find(stop, max(0, past - len(stop) + 1)) for stop in self._stops]
        found = [at for at in places if at >= 0]
        if found:
            self._held = self._held[: min(found)]
            self.stopped = True

    def _let_go(self, *, final: bool) -> str:
        keep = 0
        if not final:
            for stop in self._stops:
                for n in range(min(len(stop) - 1, len(self._held)), keep, -1):
                    if self._held.endswith(stop[:n]):
                        keep = n
                        break
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        self.given += len(text)
        return text
