"""ChatStream: the answer to a conversation, piece by piece; `answer_messages`: the whole of it.

Here: from messages to a prompt, from tokens to pieces and to a message. Not here: checks of
messages (messages.py), the tokens of a prompt (prompt.py), dividing the text of an answer
(reading.py), generating (aggml.models.TextModel).
"""

from __future__ import annotations

import difflib
import inspect
import json
import time
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import anyio.to_thread

from aggml import InvalidArgument, InvalidHandle, InvalidState
from aggml.models.arguments import flag, integer, show
from aggml.models.chat.asking import read_format, read_think, read_tools
from aggml.models.chat.messages import ChatDelta, ChatMessage, Usage, read_messages
from aggml.models.chat.prompt import (
    Conversing,
    Prompt,
    encode_messages,
    knows_tools,
    read_template_args,
)
from aggml.models.chat.reading import AnswerReader
from aggml.models.chat.thoughts import wishes
from aggml.models.chat.tools.harmony import Harmony
from aggml.models.chat.tools.hermes import Hermes
from aggml.models.engine.constraints import Thinking
from aggml.models.engine.grammars import Grammar, arguments_json, inline_json
from aggml.models.token_stream import Token
from aggml.models.vision.prompt import SeenPrompt
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from aggml.models.chat.asking import Tool, ToolOffer
    from aggml.models.chat.messages import ChatFinish, ToolCall
    from aggml.models.chat.thoughts import Thoughts
    from aggml.models.chat.tools.format import ToolFormat
    from aggml.models.token_stream import TokenStream
    from aggml.models.vision.prompt import PicturePrompt

__all__ = [
    "ANSWER", "Answering", "ChatStream", "answer_messages", "encode_chat", "render_chat",
    "stream_answer",
]  # fmt: skip

ANSWER: Final = 1024  # tokens of an answer, at most, if nothing is said
GENERIC: Final = Hermes()
HARMONY: Final = Harmony()


class Answering(Conversing, Protocol):
    """The part of a `TextModel` that answers a conversation.

    Attributes:
        ctx: positions of a sequence.
    """

    ctx: int

    @property
    def generate(self) -> Callable[..., TokenStream]:
        """Continues a prompt."""
        ...

    @property
    def _tool_form(self) -> ToolFormat | None:
        """How the model writes calls."""
        ...

    @property
    def _thoughts(self) -> Thoughts | None:
        """How the model shows that it thinks."""
        ...

    @property
    def _prepare_prompt(self) -> Callable[[PicturePrompt], Awaitable[SeenPrompt]]:
        """Look at the pictures of a prompt."""
        ...

    @property
    def sees(self) -> bool:
        """Whether messages may have pictures."""
        ...

    @property
    def _compile(self) -> Callable[[str, Sequence[tuple[str, Grammar]]], Awaitable[None]]:
        """Compiles grammars, so that their errors name the arguments they come from."""
        ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked of an answer beside the conversation; see `TextModel.chat`."""

    offer: ToolOffer | None
    form: Grammar | None
    think: bool | int | str | None
    template_args: Mapping[str, Any]
    max_tokens: int | None
    continue_final: bool


class ChatStream:
    """The pieces of one answer: ``async for delta in model.chat_stream(messages): ...``.

    Leaving the loop early ends the answer, as it does for a `TokenStream`.

    Attributes:
        finish_reason: why the answer ended, "stop", "length" or "tool_calls"; None before.
        usage: how many tokens there were so far; 0 before the first piece.
        tokens: the tokens of the answer; None before the prompt is made.
    """

    def __init__(
        self,
        model: Answering,
        place: str,
        messages: list[dict[str, Any]],
        wanted: _Wanted,
        options: Mapping[str, Any],
        before: Sequence[int] = (),
    ) -> None:
        self._model = model
        self._place = place
        self._messages = messages
        self._wanted = wanted
        self._options = dict(options)
        self._began = time.monotonic()
        self.tokens: TokenStream | None = None
        self._reader: AnswerReader | None = None
        self._ready: deque[ChatDelta] = deque()
        self._before = list(before)  # tokens that were made elsewhere
        self._taken: list[Token] = []  # tokens that are in no piece yet
        self._thought = 0  # tokens in pieces of thoughts
        self._busy = False
        self._ended = False
        self._read = False  # all of the text
        self.finish_reason: ChatFinish | None = None

    def __aiter__(self) -> Self:
        return self

    async def open(self) -> None:
        """Make the prompt: render it, compile what restricts the answer. The first piece does it.

        Raises:
            InvalidArgument: a schema or a grammar cannot be served.
            ModelError: the template refuses the conversation.
            TooLongError: the prompt does not fit into the context.

        Cancellation: ends the answer.
        """
        async with _InUse(self):
            if self.tokens is None:
                self.tokens = await self._begin()

    async def start(self) -> None:
        """Do all that can be refused: render, compile, queue. The first piece does it, too.

        Raises:
            InvalidArgument: a schema or a grammar cannot be served.
            ModelError: the template refuses the conversation; as `TokenStream`.

        Cancellation: ends the answer.
        """
        async with _InUse(self):
            if self.tokens is None:
                self.tokens = await self._begin()
            await self.tokens.start()

    async def __anext__(self) -> ChatDelta:
        """The next piece.

        Raises:
            StopAsyncIteration: the answer has ended.
            InvalidArgument: a schema or a grammar cannot be served.
            ModelError: the template refuses the conversation; as `TokenStream`.
            InvalidState: another task waits for a piece of this answer; the model is closed.

        Cancellation: ends the answer.
        """
        if self._ended:
            await CHECKPOINT
            raise StopAsyncIteration
        async with _InUse(self):
            return await self._next()

    async def _next(self) -> ChatDelta:
        if self.tokens is None:
            self.tokens = await self._begin()
        waited = False
        while not self._ready and not self._read:
            waited = True
            await self._more(self.tokens)
        if not waited:
            await CHECKPOINT
        if self._ready:
            return self._ready.popleft()
        self._ended = True
        reader = self._reader
        assert reader is not None
        reason: ChatFinish | None = self.tokens.finish_reason
        if reader.calls and reason != "length":
            reason = "tool_calls"
        self.finish_reason = reason
        return ChatDelta(finish_reason=reason, tokens=self._taken)

    async def _more(self, tokens: TokenStream) -> None:
        """Read the next token."""
        reader = self._reader
        assert reader is not None
        try:
            token = await anext(tokens)
        except StopAsyncIteration:
            self._give(reader.end())
            self._read = True
            return
        self._taken.append(token)
        self._give(reader.feed(token.text))
        offer = self._wanted.offer
        if offer is not None and not offer.parallel and reader.calls:
            await tokens.aclose()  # one call is all that is wanted
            self._read = True

    def _give(self, deltas: list[ChatDelta]) -> None:
        """Have pieces ready; the first one has the tokens that were taken for them."""
        if not deltas:
            return
        taken, self._taken = self._taken, []
        if deltas[0].reasoning is not None:
            self._thought += len(taken)
        self._ready.append(replace(deltas[0], tokens=taken))
        self._ready += deltas[1:]

    async def _begin(self) -> TokenStream:
        model, wanted = self._model, self._wanted
        offer = wanted.offer if wanted.offer is None or wanted.offer.callable else None
        # In a thread: it takes 20 ms to read a template the first time.
        template = (await anyio.to_thread.run_sync(lambda: model.template)).whole_source
        own = model._tool_form
        form = GENERIC if own is None else own
        if not knows_tools(template):
            form = GENERIC
        given = {**wishes(template, wanted.think), **wanted.template_args}
        prompt = await encode_messages(
            model, self._messages, given, wanted.offer, form, continue_final=wanted.continue_final
        )
        seen = await _prepare_prompt(model, prompt)
        thoughts = model._thoughts
        is_open = thoughts is not None and thoughts.is_open(prompt.text)
        options = dict(self._options)
        is_led = prompt.text.endswith(form.leads)
        if offer is not None or wanted.form is not None:
            grammar, form = await self._grammar(offer, form, thoughts, is_led=is_led)
            if grammar is not None:
                options["_grammar"] = grammar
        lead = form.leads if offer is not None and is_led else ""
        self._reader = AnswerReader(
            thoughts, None if offer is None else form,
            {} if offer is None else {x.name: x for x in offer.callable},
            is_open=is_open, several=offer is None or offer.parallel, lead=lead,
        )  # fmt: skip
        options["_shown"] = self._controls_as_text(thoughts, None if offer is None else form)
        options["_thinking"] = self._thoughts_of_engine(thoughts, options, is_open=is_open)
        most = wanted.max_tokens
        if most is None:
            n = min(len(seen.ids), options.get("truncate_prompt") or len(seen.ids))
            most = max(1, min(ANSWER, model.ctx - n))
        if options.get("deadline") is not None:  # it counts from the call
            passed = time.monotonic() - self._began
            options["deadline"] = max(0.0, options["deadline"] - passed)
        tokens = model.generate(
            seen, max_tokens=most, **options,
            _continue=list(self._before), _place=self._place,
        )  # fmt: skip
        tokens.prepare(seen.ids)  # raises if the prompt is too long
        if self._before:
            # Their text comes again, for those who know what was sent of it.
            self._taken = [Token(x, "") for x in self._before]
            self._give(self._reader.feed(tokens.before))
        return tokens

    def _controls_as_text(
        self, thoughts: Thoughts | None, form: ToolFormat | None
    ) -> frozenset[int]:
        """The control tokens whose names are read as text, because they mark thoughts or calls."""
        words = self._model.tokenizer
        names = [] if form is None else list(form.names)
        if thoughts is not None:
            names += [thoughts.opener, thoughts.closer]
            if thoughts.name == "harmony":
                names += HARMONY.names
        return frozenset(
            token for name in words.control_names()
            if any(name in x for x in names) and (token := words.ids.get(name)) is not None
            and token not in words.ends
        )  # fmt: skip

    def _thoughts_of_engine(
        self, thoughts: Thoughts | None, options: Mapping[str, Any], *, is_open: bool
    ) -> Thinking | None:
        """What the engine knows of thoughts; None: it does not have to know."""
        think = self._wanted.think
        budget: int | None = None
        if not isinstance(think, (bool, str)):
            budget = think
        elif think is False and is_open:
            budget = 0
        elif think is False:
            return None  # the prompt has ended the thoughts
        restricted = any(options.get(x) is not None for x in RESTRICTIONS)
        if thoughts is None or thoughts.name == "harmony" or (budget is None and not restricted):
            return None
        words = self._model.tokenizer
        ids = words.encode(thoughts.opener, special=False)
        return Thinking(
            thoughts.opener.encode(), thoughts.closer.encode(), is_open, budget,
            tuple(words.encode(f"\n{thoughts.closer}\n\n", special=False)),
            ids[0] if len(ids) == 1 else None,
        )  # fmt: skip

    async def _grammar(
        self,
        offer: ToolOffer | None,
        form: ToolFormat,
        thoughts: Thoughts | None,
        *,
        is_led: bool,
    ) -> tuple[Grammar | None, ToolFormat]:
        """What restricts the answer, and how calls are written in it.

        Args:
            offer: the functions; None: there are none.
            form: how the family writes calls.
            thoughts: how the model shows that it thinks; None: it does not.
            is_led: the prompt ends with the mark behind which the family's answers begin.
        """
        wanted = self._wanted
        binds = offer is not None and offer.choice == "required"
        if offer is not None and binds:
            named = [
                (f"tools[{i}].function.parameters", Grammar("schema", json.dumps(x.parameters)))
                for i, x in enumerate(offer.tools)
                if x in offer.callable
            ]
            await self._model._compile(self._place, named)
        elif wanted.form is None:
            return await self._grammar_of_strict(offer, form, thoughts), form
        else:
            await self._model._compile(self._place, [("response_format", wanted.form)])
        mark = self._mark
        harmony = thoughts is not None and thoughts.name == "harmony"
        rules: list[str] = []
        parts: list[str] = []
        if offer is not None and (binds or wanted.form is not None):
            right = None
            if not harmony:
                right = None
                if is_led:
                    right = form.grammar(offer.callable, mark, several=offer.parallel)
                if right is None:
                    form = GENERIC
                    right = form.grammar(offer.callable, mark, several=offer.parallel)
            else:
                right = _harmony_calls(offer.callable)
            assert right is not None
            parts.append("calls")
            rules += [f"calls: {right[0]}", right[1]]
        if wanted.form is not None and not binds:
            if offer is None and not harmony:
                return wanted.form, form
            begin = json.dumps("<|channel|>final<|message|>") if harmony else ""
            parts.append("answer")
            rules.append(f"answer: {begin} {inline_json(json.loads(wanted.form.text))}")
        start = " | ".join(parts)
        if harmony:
            rules.append(
                'before[suffix="<|end|>"]: /<\\|channel\\|>analysis<\\|message\\|>(?s:.*)/'
            )
            if wanted.think is not False:
                start = f'(before "<|start|>assistant")? ({start})'
        return Grammar("lark", "\n".join([f"start: {start}", *rules])), form

    async def _grammar_of_strict(
        self, offer: ToolOffer | None, form: ToolFormat, thoughts: Thoughts | None
    ) -> Grammar | None:
        """What restricts the arguments of strict functions, if the model calls one; None: nothing.

        Calls of gpt-oss and of families that do not write JSON between marks are free.
        """
        if offer is None or not any(x.strict for x in offer.callable):
            return None
        if thoughts is not None and thoughts.name == "harmony":
            return None
        text = form.watching_grammar(offer.callable, self._mark, several=offer.parallel)
        if text is None:
            return None
        named = [
            (f"tools[{i}].function.parameters", Grammar("schema", json.dumps(x.parameters)))
            for i, x in enumerate(offer.tools)
            if x.strict and x in offer.callable
        ]
        await self._model._compile(self._place, named)
        return Grammar("lark", text)

    def _mark(self, text: str) -> str:
        """A text in Lark; names of control tokens in it are these tokens."""
        words = self._model.tokenizer
        parts = [x for x in words.control_parts(text) if x != ""]
        return " ".join(
            f"<[{x}]>" if isinstance(x, int) and not words.bytes_of(x)
            else json.dumps(words.bytes_of(x).decode() if isinstance(x, int) else x,
                            ensure_ascii=False)
            for x in parts
        )  # fmt: skip

    @property
    def usage(self) -> Usage:
        """How many tokens there were so far; 0 before the first piece."""
        tokens = self.tokens
        if tokens is None:
            return Usage()
        return Usage(tokens.prompt_tokens, len(tokens.made), tokens.cached_tokens, self._thought)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        return [] if self._reader is None else list(self._reader.calls)

    async def aclose(self) -> None:
        """End the answer, and free what it uses."""
        if self._busy:
            raise InvalidState(
                "[chat_stream] another task waits for the next piece of this answer: cancel that "
                "task"
            )
        self._ended = True
        if self.tokens is None:
            await CHECKPOINT
        else:
            await self.tokens.aclose()


#: Options by which the engine restricts an answer.
RESTRICTIONS: Final = ("_grammar", "schema", "regex", "choices", "grammar")


class _InUse:
    """A block in which one task uses a stream; an error ends the stream."""

    def __init__(self, stream: ChatStream) -> None:
        self._stream = stream

    async def __aenter__(self) -> None:
        if self._stream._busy:
            raise InvalidState("[chat_stream] another task waits for the next piece of this answer")
        self._stream._busy = True

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._stream._busy = False
        if error is not None:
            self._stream._ended = True


def _harmony_calls(tools: Sequence[Tool]) -> tuple[str, str]:
    """The rules of calls of gpt-oss."""
    rules = []
    for i, tool in enumerate(tools):
        head = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        rules.append(f"call_{i}: {json.dumps(head)} {arguments_json(tool.parameters)}")
    return " | ".join(f"call_{i}" for i in range(len(tools))), "\n".join(rules)


async def encode_chat(
    model: Answering,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    *,
    template_args: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] = "auto",
    think: bool | int | str | None = None,
    continue_final: bool = False,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of a conversation, up to where the model's answer begins.

    The positions of pictures have numbers below 0.

    Args:
        model: would answer.
        messages: of the conversation.
        template_args: further names for the template.
        tools: functions that the model is told of.
        tool_choice: as of `TextModel.chat`.
        think: as of `TextModel.chat`.
        continue_final: end within the last message, which is the assistant's.
        add_generation_prompt: end where the assistant's message begins; False: behind the last
            message.

    Raises:
        InvalidArgument: something is no message, as ``messages[3].content``.
        ModelError: the template refuses the conversation.
    """
    prompt = await _prompt(
        "encode_chat", model, messages, template_args, tools, tool_choice, think,
        continue_final=continue_final, add_generation_prompt=add_generation_prompt,
    )  # fmt: skip
    return (await _prepare_prompt(model, prompt)).ids


async def _prepare_prompt(model: Answering, prompt: Prompt) -> SeenPrompt:
    """Look at the pictures of a prompt, and return its positions."""
    if prompt.mixed is None:
        return SeenPrompt(prompt.ids, ())
    return await model._prepare_prompt(prompt.mixed)


async def render_chat(
    model: Answering,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    *,
    template_args: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] = "auto",
    think: bool | int | str | None = None,
    continue_final: bool = False,
    add_generation_prompt: bool = True,
) -> str:
    """The text of a conversation, up to where the model's answer begins; as `encode_chat`.

    Names of control tokens in messages cannot be told from control tokens in it.

    Raises:
        InvalidArgument: something is no message, as ``messages[3].content``.
        ModelError: the template refuses the conversation.
    """
    prompt = await _prompt(
        "render_chat", model, messages, template_args, tools, tool_choice, think,
        continue_final=continue_final, add_generation_prompt=add_generation_prompt,
    )  # fmt: skip
    return prompt.plain


async def _prompt(
    place: str,
    model: Answering,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    template_args: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any],
    think: bool | int | str | None,
    *,
    continue_final: bool,
    add_generation_prompt: bool,
) -> Prompt:
    """The prompt of a conversation, after all arguments were checked."""
    known = _read(model, place, messages)
    given = read_template_args(place, template_args)
    offer = read_tools(place, tools, tool_choice)
    wanted = read_think(place, think)
    if flag(place, "continue_final", continue_final):
        _check_final(place, known)
    given = {**wishes(model.template.whole_source, wanted), **given}
    return await encode_messages(
        model, known, given, offer, continue_final=continue_final,
        begins=flag(place, "add_generation_prompt", add_generation_prompt),
    )  # fmt: skip


def _read(
    model: Answering, place: str, messages: Sequence[Mapping[str, Any] | ChatMessage]
) -> list[dict[str, Any]]:
    """The messages, checked; pictures are refused if the model reads text alone."""
    return read_messages(place, messages, sees=model.sees)


def _check_final(place: str, messages: list[dict[str, Any]]) -> None:
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        raise InvalidArgument(
            f"[{place}] continue_final needs a last message of the assistant without calls, "
            f"messages[{len(messages) - 1}] has the role {last['role']!r}"
            + (" and calls" if "tool_calls" in last else "")
        )


def stream_answer(
    model: Answering,
    place: str,
    messages: Sequence[Mapping[str, Any] | ChatMessage],
    *,
    tools: Any,  # noqa: ANN401 each argument is whatever was given until it is checked
    tool_choice: Any,  # noqa: ANN401
    response_format: Any,  # noqa: ANN401
    think: Any,  # noqa: ANN401
    template_args: Any,  # noqa: ANN401
    max_tokens: int | None,
    continue_final: bool,
    parallel_tool_calls: bool,
    _continue: Sequence[int] = (),
    **options: Any,  # noqa: ANN401 those of `TextModel.generate`
) -> ChatStream:
    """The answer to a conversation, after all arguments were checked.

    Args:
        model: answers.
        place: the call, for errors.
        messages: of the conversation.
        tools: as of `TextModel.chat`.
        tool_choice: as of `TextModel.chat`.
        response_format: as of `TextModel.chat`.
        think: as of `TextModel.chat`.
        template_args: further names for the template.
        max_tokens: the most tokens; None: `ANSWER`, or as many as the context has room for.
        continue_final: as of `TextModel.chat`.
        parallel_tool_calls: as of `TextModel.chat`.
        options: of `TextModel.generate`.

    Raises:
        InvalidArgument: an argument of another type or out of its range.
        InvalidHandle: there is no option of that name.
    """
    _check_names(place, model, options)
    known = _read(model, place, messages)
    given = read_template_args(place, template_args)
    several = flag(place, "parallel_tool_calls", parallel_tool_calls)
    offer = read_tools(place, tools, tool_choice, parallel=several)
    form = read_format(place, response_format)
    thinking = read_think(place, think)
    if flag(place, "continue_final", continue_final):
        _check_final(place, known)
    most = None if max_tokens is None else integer(place, "max_tokens", max_tokens, 0)
    bound = [x for x in RESTRICTIONS if options.get(x) is not None]
    binds = offer is not None and offer.choice == "required"
    if bound and (form is not None or binds):
        other = "response_format" if form is not None else "tool_choice"
        raise InvalidArgument(
            f"[{place}] {bound[0]} and {other} are given: one of them can restrict an answer"
        )
    # Wrong options are refused now, before the template runs.
    model.generate([0], _grammar=form if form is not None else ANYTHING if binds else None,
                   _place=place, **options)  # fmt: skip
    wanted = _Wanted(offer, form, thinking, given, most, continue_final)
    return ChatStream(model, place, known, wanted, options, _continue)


def _check_names(place: str, model: Answering, options: Mapping[str, Any]) -> None:
    """Check that there are options of these names."""
    known = _names_of(type(model))
    for name, value in options.items():
        if name not in known:
            raise InvalidHandle(
                f"[{place}] {name} is {show(value)}, but there is no such option: expected those "
                f"of chat and of generate{_nearest(name, known)}"
            )


@cache
def _names_of(model: type[Any]) -> frozenset[str]:
    """The options of the method `generate`, without the prompt."""
    return frozenset(inspect.signature(model.generate).parameters) - {"self", "prompt"}


def _nearest(name: str, known: Collection[str]) -> str:
    """A name that may have been meant, for a message."""
    found = difflib.get_close_matches(name, [x for x in known if not x.startswith("_")], 1)
    return f", such as {found[0]}" if found else ""


#: A grammar that stands for one that is not made yet.
ANYTHING: Final = Grammar("schema", "{}")


async def answer_messages(stream: ChatStream) -> ChatMessage:
    """The whole answer as a message.

    Cancellation: ends the answer.
    """
    content: list[str] = []
    reasoning: list[str] = []
    tokens: list[Token] = []
    async with aclosing(stream):
        async for delta in stream:
            tokens += delta.tokens
            content.append(delta.content)
            if delta.reasoning is not None:
                reasoning.append(delta.reasoning)
    return ChatMessage(
        "".join(content), "".join(reasoning) or None, stream.calls, stream.finish_reason,
        stream.usage, tokens,
    )  # fmt: skip
