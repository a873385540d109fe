"""ChatTemplate: messages to the text that a model was trained to answer.

Here: the template of a model file, rendered in jinja2's sandbox. Not here: tokens (vocabulary.py).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aggml.models.errors import ModelError
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.ext import Extension
    from jinja2.parser import Parser

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
        tokens: texts of the tokens that the template may name: "bos_token", "eos_token".

    Raises:
        ModelError: the template is no jinja2, or that package is not installed.
    """

    def __init__(self, source: str | None, tokens: Mapping[str, str]) -> None:
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise ModelError(
                f"chat templates need jinja2; get it with: {install_command('models')}"
            ) from error
        self.source = PLAIN if source is None else source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        environment.filters["tojson"] = _json
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
            # Templates test these with "is none", which is false for a name that is not defined.
            usual: dict[str, Any] = {"tools": None, "documents": None, **self._tokens}
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **usual | more,
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
    """Raised by a template that calls ``raise_exception``."""


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _now(form: str) -> str:
    """The local time, formatted by strftime."""
    return datetime.now().astimezone().strftime(form)


def _json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes characters for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _generation() -> type[Extension]:
    """The tag ``{% generation %} ... {% endgeneration %}`` around answers; it changes nothing."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 as the base declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation
