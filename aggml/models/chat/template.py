"""ChatTemplate: makes of messages the text that a model was trained to answer.

Here: the templates of a model file, the variables that they get, their errors. Not here: what their
code may do (sandbox.py), tokens (../tokenizers).
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
LONGEST_ERROR: Final = 500  # characters

#: The template of models whose files have none.
PLAIN: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class ChatTemplate:
    """The templates of a model, which render conversations.

    A model may have several templates, each with a name. Conversations with ``tools`` take the one
    called "tool_use", others the one called "default".

    Args:
        sources: jinja2: one template, or templates by name; None: one line for each message.
        tokens: variables of the templates: the texts of "bos_token" and "eos_token".

    Attributes:
        environment: of jinja2, with the filters that templates may use.
        names: the names of the templates.
        source: the text of the template for conversations without tools; empty: there is none.

    Raises:
        ModelError: a template is no jinja2, or the package jinja2 is not installed.
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
        #: All templates in one text, in which others look for names that the templates use.
        self.whole_source: str = "\n".join(given.values())
        self._tokens = dict(tokens)
        self._limits = limits
        self._templates = {}
        for name, source in given.items():
            try:
                self._templates[name] = environment.read(source)
            except Exception as error:  # of any class: Python compiles the code that jinja2 makes
                of = "" if len(given) == 1 else f" {name!r}"
                raise ModelError(
                    f"the chat template{of} cannot be read: {_describe_error(error)}"
                ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **more: Any,  # noqa: ANN401 variables of the template
    ) -> str:
        """The text of a conversation.

        A template whose code fails, runs for more than 2 s, or makes a text of more than 16 million
        characters is stopped.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: end where the model's answer begins.
            more: further variables of the template, such as ``tools``.

        Raises:
            ModelError: the template refuses the messages, uses a variable that is not there, fails,
                or takes too much; the model has several templates, and none is for this
                conversation.
        """
        template = self._choose_template(tools=more.get("tools") is not None)
        try:
            # Templates test these with "is none", which is false for an undefined variable.
            defaults: dict[str, Any] = {"tools": None, "documents": None, **self._tokens}
            if "datetime" in self.whole_source:  # Firefunction's template asks for it
                defaults["datetime"] = _now("%b %d %Y")
            if "functools[" in self.whole_source:  # the same one; functions are written elsewhere
                defaults["functions"] = "[]"
            with self._limits():
                context = template.new_context(
                    {
                        **defaults,
                        "messages": list(messages),
                        "add_generation_prompt": add_generation_prompt,
                        **more,
                    }
                )
                text = self.environment.concat(template.root_render_func(context))
            text.encode()
        except Exception as error:  # of any class: the code of a template may do what it likes
            raise ModelError(
                f"the chat template refuses the messages: {_describe_error(error)}"
            ) from error
        return str(text)

    @functools.cached_property
    def takes_json_arguments(self) -> bool:
        """Whether the template must get the arguments of calls as a text of JSON, not as a dict.

        Some templates write the arguments as they are, others write a dict as JSON. A short
        conversation is rendered to see which this one does.
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
            tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters":
                     {"type": "object", "properties": {}}}}]  # fmt: skip
            try:
                found = self.render(messages, tools=tools)
            except ModelError:
                continue
            if "probe" in found and "{'aggml'" not in found and '\\"aggml' not in found:
                return arguments is text
        return False

    @functools.cached_property
    def wants_parts(self) -> bool:
        """Whether the content of a message must be given as a list of parts, not as a text.

        Some templates of models that see pictures write the parts of a content, and nothing of a
        content that is a text. A message is rendered to see whether this is one of them.
        """
        is_written = []
        for content in ("aggml-probe", [{"type": "text", "text": "aggml-probe"}]):
            try:
                found = self.render([{"role": "user", "content": content}])
            except ModelError:
                found = ""
            is_written.append("aggml-probe" in found and "'aggml-probe'" not in found)
        return is_written == [False, True]

    def adapt_contents(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages with contents in the form that the template takes; see `wants_parts`."""
        if not self.wants_parts:
            return [dict(x) for x in messages]
        return [
            dict(x) if not isinstance(x.get("content"), str)
            else {**x, "content": [{"type": "text", "text": x["content"]}]}
            for x in messages
        ]  # fmt: skip

    def _choose_template(self, *, tools: bool) -> Template:
        """The template for conversations with or without tools."""
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
    """The chat templates of a model file by name; None: it has none.

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


def template_of(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ChatTemplate:
    """The templates of a model file, or the plain one if it has none.

    Raises:
        ModelError: as `ChatTemplate`.
    """
    ids = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
    tokens = {k: "" if x is None else vocabulary.pieces[x] for k, x in ids.items()}
    return ChatTemplate(sources_of(metadata), tokens)


def _describe_error(error: Exception) -> str:
    """Describe an error of a template in one line."""
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
    elif not _is_sentence(error):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."


def _is_sentence(error: Exception) -> bool:
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
