"""ChatTemplate: messages to the text that a model was trained to answer.

Here: the templates of a model file, what they get, their errors. Not here: what their code may do
(sandbox.py), tokens (../tokenizers).
"""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aggml.models.errors import ModelError
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Template
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    from aggml.models.tokenizers.vocabulary import Vocabulary

__all__ = ["PLAIN", "ChatTemplate", "sources_of", "template_of"]

KEY: Final = "tokenizer.chat_template"  # of the metadata; other templates: KEY.NAME
DEFAULT: Final = "default"
TOOLS: Final = "tool_use"
LONGEST: Final = 500  # characters of an error

#: For models that bring no template of their own.
PLAIN: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatTemplate:
    """Renders messages.

    A model may have several templates, each with a name. Conversations with ``tools`` take the one
    called "tool_use", others the one called "default".

    Args:
        sources: jinja2: one template, or templates by name; None: one line for each message.
        tokens: texts of the tokens that the template may name: "bos_token", "eos_token".

    Attributes:
        environment: of jinja2; it has the filters of the templates.
        names: the names of the templates.
        source: the text of the template for conversations without tools; empty: there is none.

    Raises:
        ModelError: a template is no jinja2, or that package is not installed.
    """

    def __init__(self, sources: str | Mapping[str, str] | None, tokens: Mapping[str, str]) -> None:
        try:
            from aggml.models.chat.sandbox import Bounded, limits
        except ImportError as error:
            raise ModelError(
                f"chat templates need jinja2; get it with: {install_command('models')}"
            ) from error
        sources = PLAIN if sources is None else sources
        given = {DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        environment = Bounded(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        self.environment: Bounded = environment
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        environment.add_filter("tojson", _json)
        self.names: tuple[str, ...] = tuple(given)
        self.source: str = given.get(DEFAULT, "")
        #: All templates in one text, to look for what they know.
        self.whole_source: str = "\n".join(given.values())
        self._tokens = dict(tokens)
        self._limits = limits
        self._templates = {}
        for name, source in given.items():
            try:
                self._templates[name] = environment.read(source)
            except Exception as error:  # of any class: Python reads what jinja2 has made of it
                of = "" if len(given) == 1 else f" {name!r}"
                raise ModelError(f"the chat template{of} cannot be read: {_why(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **more: Any,  # noqa: ANN401 what the template names
    ) -> str:
        """The text of a conversation.

        A template whose code fails, runs for more than 2 s, or makes a text of more than 16 million
        characters is stopped.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: end where the model's answer begins.
            more: further names for the template, as ``tools``.

        Raises:
            ModelError: the template refuses the messages, names something that is not there, fails,
                or takes too much; none of several templates is for this conversation.
        """
        template = self._template(tools=more.get("tools") is not None)
        try:
            # Templates test these with "is none", which is false for a name that is not defined.
            usual: dict[str, Any] = {"tools": None, "documents": None, **self._tokens}
            if "datetime" in self.whole_source:  # Firefunction's template asks for it
                usual["datetime"] = _now("%b %d %Y")
            if "functools[" in self.whole_source:  # the same one; functions are told elsewhere
                usual["functions"] = "[]"
            with self._limits():
                context = template.new_context(
                    {
                        **usual,
                        "messages": list(messages),
                        "add_generation_prompt": add_generation_prompt,
                        **more,
                    }
                )
                text = self.environment.concat(template.root_render_func(context))
            text.encode()
        except Exception as error:  # of any class: the code of a template may do what it likes
            raise ModelError(f"the chat template refuses the messages: {_why(error)}") from error
        return str(text)

    @functools.cached_property
    def takes_json_arguments(self) -> bool:
        """Whether the template writes the arguments of calls as they are, so they must be JSON.

        Others write a dict as JSON. A short conversation is rendered to see which it is.
        """
        dict_, text = {"aggml": "probe"}, '{"aggml": "probe"}'
        for arguments in (dict_, text):
            function = {"name": "f", "arguments": arguments}
            call = {"id": "a23456789", "type": "function", "function": function}
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "y", "name": "f", "tool_call_id": "a23456789"},
            ]  # fmt: skip
            told = [{"type": "function", "function": {"name": "f", "description": "", "parameters":
                     {"type": "object", "properties": {}}}}]  # fmt: skip
            try:
                found = self.render(messages, tools=told)
            except ModelError:
                continue
            if "probe" in found and "{'aggml'" not in found and '\\"aggml' not in found:
                return arguments is text
        return False

    @functools.cached_property
    def wants_parts(self) -> bool:
        """Whether the template writes contents only if they are lists of parts.

        Some templates of models that see pictures go through the parts of a content, and write
        nothing of a text. A message is rendered to see which it is.
        """
        written = []
        for content in ("aggml-probe", [{"type": "text", "text": "aggml-probe"}]):
            try:
                found = self.render([{"role": "user", "content": content}])
            except ModelError:
                found = ""
            written.append("aggml-probe" in found and "'aggml-probe'" not in found)
        return written == [False, True]

    def in_parts(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages as the template takes them: with texts, or with lists of parts."""
        if not self.wants_parts:
            return [dict(x) for x in messages]
        return [
            dict(x) if not isinstance(x.get("content"), str)
            else {**x, "content": [{"type": "text", "text": x["content"]}]}
            for x in messages
        ]  # fmt: skip

    def _template(self, *, tools: bool) -> Template:
        for name in (TOOLS,) * tools + (DEFAULT,):
            if name in self._templates:
                return self._templates[name]
        if len(self._templates) == 1:
            return next(iter(self._templates.values()))
        names = ", ".join(repr(name[:64]) for name in self.names)
        raise ModelError(
            f"the model has the chat templates {names}, and none of them is called {DEFAULT!r}"
        )


def sources_of(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """The chat templates of a model file by name; None: it brings none.

    Raises:
        ModelError: a template is no text.
    """
    found = {}
    for key, value in metadata.items():
        if key == KEY or key.startswith(KEY + "."):
            if not isinstance(value, str):
                raise ModelError(f"{key} is {type(value).__name__} {value!r:.64}, must be a text")
            found[key.removeprefix(KEY).removeprefix(".") or DEFAULT] = value
    return found or None


def template_of(metadata: Mapping[str, Any], words: Vocabulary) -> ChatTemplate:
    """The templates of a model file, or the plain one if it brings none.

    Raises:
        ModelError: as `ChatTemplate`.
    """
    names = {"bos_token": words.bos, "eos_token": words.eos}
    tokens = {k: "" if x is None else words.pieces[x] for k, x in names.items()}
    return ChatTemplate(sources_of(metadata), tokens)


def _why(error: Exception) -> str:
    """An error of a template in one line."""
    try:
        text = str(error)
    except Exception:
        text = ""
    text = " ".join(text.split())
    if isinstance(error, RecursionError):
        text = "it calls itself too often"
    elif isinstance(error, MemoryError):
        text = "it takes too much memory"
    elif isinstance(error, UnicodeEncodeError):
        text = "it makes characters that are no Unicode text"
    elif not _speaks(error):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def _speaks(error: Exception) -> bool:
    """Whether the text of an error is a sentence for the user."""
    from jinja2 import TemplateError

    from aggml.models.chat.sandbox import TooMuchError

    return isinstance(error, (TemplateError, TooMuchError, _RefusedError))


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
