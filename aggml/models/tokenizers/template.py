"""ChatTemplate: messages to the text that a model was trained to answer.

Here: the template of a model file, rendered in jinja2's sandbox. Not here: tokens (vocabulary.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.tokenizers.vocabulary import Vocabulary

__all__ = ["PLAIN", "ChatTemplate", "template_of"]

#: For models that bring no template of their own.
PLAIN: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatTemplate:
    """Renders messages.

    Args:
        source: jinja2; None: one line for each message.
        tokens: what the template may name: "bos_token", "eos_token".

    Raises:
        ModelError: the template is no jinja2, or that package is not installed.
    """

    def __init__(self, source: str | None, tokens: Mapping[str, str]) -> None:
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise ModelError(
                "chat templates need jinja2; get it with: pip install 'aggml[models]'"
            ) from error
        self.source = PLAIN if source is None else source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        self._tokens = dict(tokens)
        self._errors = jinja2.TemplateError
        try:
            self._template = environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template cannot be read: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **more: Any,  # noqa: ANN401 what the template names
    ) -> str:
        """The text of a conversation.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: end where the model's answer begins.
            more: further names for the template, as ``tools``.

        Raises:
            ModelError: the template refuses the messages, or names something that is not there.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **self._tokens | more,
            )
        except (self._errors, _RefusedError) as error:
            raise ModelError(f"the chat template refuses the messages: {error}") from error


def template_of(metadata: Mapping[str, Any], words: Vocabulary) -> ChatTemplate:
    """The template of a model file, or the plain one if it brings none.

    Raises:
        ModelError: as `ChatTemplate`.
    """
    source = metadata.get("tokenizer.chat_template")
    names = {"bos_token": words.bos, "eos_token": words.eos}
    tokens = {k: "" if x is None else words.pieces[x] for k, x in names.items()}
    return ChatTemplate(source if isinstance(source, str) else None, tokens)


class _RefusedError(Exception):
    """What a template raises by itself."""


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)
