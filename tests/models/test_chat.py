"""Conversations: messages checked by name, answers whole and in pieces, the next turn is cheap.

Not here: templates (test_templates.py), names of control tokens in messages
(test_literal_messages.py), conversations over HTTP (tests/serve).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from models import random_models
from support import in_a_thread

import aggml
from aggml import InvalidArgument, InvalidState, Unsupported
from aggml.models import ChatMessage, ModelError, TextModel, Usage
from aggml.models.arguments import prompt_of
from aggml.models.chat.messages import read_messages
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]
OPTIONS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
PLAIN = "user: Hello!\nassistant:"  # what the plain template makes of HELLO


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def model(file: Path) -> AsyncIterator[TextModel]:
    async with aggml.models.load(file, ctx=512, slots=2) as loaded:
        assert isinstance(loaded, TextModel)
        yield loaded


async def text_of(model: TextModel, prompt: str, **options: Any) -> str:
    return "".join([token.text async for token in model.generate(prompt, **options)])


# -- answers


async def test_an_answer_is_what_follows_the_text_of_the_conversation(model: TextModel) -> None:
    wanted = await text_of(model, PLAIN, **OPTIONS)
    answer = await model.chat(HELLO, **OPTIONS)
    assert answer.content == wanted
    assert (answer.role, answer.reasoning, answer.tool_calls) == ("assistant", None, [])
    assert answer.finish_reason == "length"
    prompt = len(model.tokenizer.encode_prompt(PLAIN))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 12)


async def test_the_pieces_of_an_answer_are_its_text_and_the_last_one_says_why_it_ended(
    model: TextModel,
) -> None:
    whole = await model.chat(HELLO, **OPTIONS)
    stream = model.chat_stream(HELLO, **OPTIONS)
    assert stream.usage == Usage()
    deltas = [delta async for delta in stream]
    assert "".join(x.content for x in deltas) == whole.content
    assert all(x.content and x.finish_reason is None for x in deltas[:-1])
    assert (deltas[-1].content, deltas[-1].finish_reason) == ("", "length")
    assert stream.finish_reason == "length"
    assert stream.usage.completion_tokens == 12


async def test_an_answer_ends_before_a_stop_text_that_its_tokens_share(model: TextModel) -> None:
    whole = (await model.chat(HELLO, **OPTIONS)).content
    stop = whole[4:7]
    answer = await model.chat(HELLO, stop=[stop], **OPTIONS)
    assert answer.content == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"


async def test_a_control_token_ends_the_answer_if_its_name_is_a_stop_text(
    model: TextModel,
) -> None:
    # The token <s> has no text, in which a stop text could be found.
    always: dict[str, Any] = {"logit_bias": {1: 100.0}, "max_tokens": 4}
    none = await model.chat(HELLO, **always)
    assert none.usage.completion_tokens == 4
    ended = await model.chat(HELLO, stop="<s>", **always)
    assert (ended.usage.completion_tokens, ended.finish_reason) == (0, "stop")


async def test_the_next_turn_computes_the_new_messages_only(model: TextModel) -> None:
    messages: list[Any] = list(HELLO)
    known = 1
    for turn in range(4):
        answer = await model.chat(messages, **OPTIONS)
        assert answer.usage.cached_tokens >= known - 1
        known = answer.usage.prompt_tokens
        messages += [answer, {"role": "user", "content": f"And {turn}?"}]


async def test_many_tasks_get_the_answers_that_each_gets_alone(file: Path) -> None:
    """With keys in f16 one of these 72 draws falls on the other side with AVX-512.

    A product of several columns adds in another order there than one of one column: logarithms of
    probabilities differ by up to 6e-5 with keys in f16, by 1e-6 with keys in f32.
    """
    asked = [[{"role": "user", "content": f"Tell me about {i}."}] for i in range(6)]
    found: dict[int, str] = {}
    async with aggml.models.load(file, ctx=512, slots=2, cache="f32") as model:
        alone = [(await model.chat(x, seed=i, temperature=1.0, **OPTIONS)).content
                 for i, x in enumerate(asked)]  # fmt: skip

        async def one(i: int) -> None:
            found[i] = (await model.chat(asked[i], seed=i, temperature=1.0, **OPTIONS)).content

        async with anyio.create_task_group() as tasks:
            for i in range(len(asked)):
                tasks.start_soon(one, i)
    assert [found[i] for i in range(len(asked))] == alone


async def test_an_answer_without_max_tokens_ends_when_the_context_is_full(file: Path) -> None:
    async with aggml.models.load(file, ctx=256) as model:
        answer = await model.chat(HELLO, ignore_eos=True)
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 256
    assert answer.finish_reason == "length"


# -- the template


async def test_names_for_the_template_reach_it(model: TextModel) -> None:
    from aggml.models.chat import ChatTemplate

    source = "{{ messages[0].content }}{% if loud is defined and loud %}!!{% endif %}"
    model._template = ChatTemplate(source, {})
    quiet = await model.chat(HELLO, **OPTIONS)
    loud = await model.chat(HELLO, template_args={"loud": True}, **OPTIONS)
    assert quiet.content == await text_of(model, "Hello!", **OPTIONS)
    assert loud.content == await text_of(model, "Hello!!!", **OPTIONS)


async def test_a_template_that_does_not_know_developers_gets_system_messages(
    model: TextModel,
) -> None:
    asked = [{"role": "developer", "content": "Be brief."}, *HELLO]
    wanted = await text_of(model, f"system: Be brief.\n{PLAIN}", **OPTIONS)
    assert (await model.chat(asked, **OPTIONS)).content == wanted


async def test_a_template_that_refuses_a_conversation_is_told_by_the_first_piece(
    model: TextModel,
) -> None:
    from aggml.models.chat import ChatTemplate

    model._template = ChatTemplate("{{ raise_exception('no system messages') }}", {})
    stream = model.chat_stream(HELLO)
    with pytest.raises(ModelError, match="no system messages"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


# -- wrong arguments

MESSAGES = [
    ("Hello!", r"messages is 'Hello!', expected a list"),
    ({"role": "user", "content": "a"}, r"messages is .* put brackets"),
    (5, r"messages is 5 \(int\)"),
    ([], r"messages is empty"),
    (["a"], r"messages\[0\] is 'a'"),
    ([*HELLO, 3], r"messages\[1\] is 3 \(int\)"),
    ([{"content": "a"}], r"messages\[0\].role is missing"),
    ([{"role": "user"}], r"messages\[0\].content is missing"),
    ([{"role": "robot", "content": "a"}], r"messages\[0\].role is 'robot', expected one of system"),
    ([{"role": 5, "content": "a"}], r"messages\[0\].role is 5 \(int\)"),
    ([{"role": ["user"], "content": "a"}], r"messages\[0\].role is \['user'\]"),
    ([*HELLO * 3, {"role": "user", "content": None}], r"messages\[3\].content is None"),
    ([{"role": "user", "content": b"a"}], r"messages\[0\].content is b'a'"),
    ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content has a lone surrogate"),
    (
        [{"role": "user", "content": [5]}],
        r"messages\[0\].content\[0\] is 5 \(int\), expected a text or",
    ),
    (
        [{"role": "user", "content": ["a", "\ud800"]}],
        r"messages\[0\].content\[1\] has a lone surrogate",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        r"messages\[0\].content\[0\].type is 'image_url', expected 'text'",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 5}]}],
        r"messages\[0\].content\[1\].text is 5",
    ),
    ([{"role": "user", "content": [{"type": "text"}]}], r".*content\[0\] has the keys \['type'\]"),
    ([{"role": "user", "content": "a", "name": 5}], r"messages\[0\].name is 5"),
    ([{"role": "user", "content": "a", "weight": 1}], r"messages\[0\] has the key 'weight'"),
]


@pytest.mark.parametrize(("messages", "message"), MESSAGES)
def test_what_is_no_message_is_refused_by_its_place(messages: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^\[chat\] {message}"):
        read_messages("chat", messages)


def test_texts_and_lists_of_texts_and_answers_are_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given: Any = (
        {"role": "system", "content": "s"}, {"role": "user", "content": parts, "name": "ann"},
        ChatMessage("c"), {"role": "user", "content": [], "name": None},
    )  # fmt: skip
    assert read_messages("chat", given) == [
        {"role": "system", "content": "s"}, {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": "c"}, {"role": "user", "content": ""},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template_args": 5}, "template_args is 5"),
        ({"template_args": {5: 1}}, "template_args has the name 5"),
        ({"template_args": {"a b": 1}}, "template_args has the name 'a b'"),
        ({"template_args": {"messages": []}}, "'messages', which the conversation sets"),
        ({"template_args": {"add_generation_prompt": False}}, "'add_generation_prompt'"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"stop": 5}, "stop is 5"),
        ({"deadline": -1}, "deadline is -1"),
    ],
)
async def test_wrong_options_are_refused_by_name_at_the_call(
    model: TextModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        model.chat_stream(HELLO, **options)
    with pytest.raises(InvalidArgument, match=message):
        await model.chat(HELLO, **options)


async def test_a_model_that_does_not_continue_text_does_not_answer(tmp_path: Path) -> None:
    async with aggml.models.load(random_models.write(tmp_path / "bert.gguf", "bert")) as encoder:
        with pytest.raises(Unsupported, match=r"\[chat\] .* does not continue text"):
            await encoder.chat(HELLO)
        with pytest.raises(Unsupported, match=r"\[chat_stream\] .* does not continue text"):
            encoder.chat_stream(HELLO)


# -- ends


async def test_leaving_the_loop_ends_the_answer(model: TextModel) -> None:
    stream = model.chat_stream(HELLO, max_tokens=400, ignore_eos=True)
    async with aclosing(stream):
        async for _ in stream:
            break
    assert model.engine.active == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert (await model.chat(HELLO, **OPTIONS)).finish_reason == "length"


async def test_cancelling_a_task_ends_its_answer_and_no_other(model: TextModel) -> None:
    wanted = (await model.chat(HELLO, **OPTIONS)).content
    begun = anyio.Event()

    async def talk() -> None:
        async for _ in model.chat_stream(HELLO, max_tokens=400, ignore_eos=True):
            begun.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await begun.wait()
        tasks.cancel_scope.cancel()
    assert model.engine.active == 0
    assert (await model.chat(HELLO, **OPTIONS)).content == wanted


async def test_two_tasks_cannot_wait_for_pieces_of_one_answer(model: TextModel) -> None:
    stream = model.chat_stream(HELLO, max_tokens=400, ignore_eos=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, stream)
        while not stream._busy:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(InvalidState, match="another task waits"):
            await anext(stream)
        with pytest.raises(InvalidState, match="another task waits"):
            await stream.aclose()
    await stream.aclose()


async def test_a_closed_model_answers_nobody(file: Path) -> None:
    model = await aggml.models.load(file, ctx=256)
    stream = model.chat_stream(HELLO, **OPTIONS)
    await model.aclose()
    with pytest.raises(InvalidState, match="closed"):
        await model.chat(HELLO)
    with pytest.raises(InvalidState, match="closed"):
        await anext(stream)


def test_conversations_go_on_in_other_loops_and_threads(file: Path) -> None:
    async def load() -> aggml.models.Model:
        return await aggml.models.load(file, ctx=256)

    model = anyio.run(load)
    messages: list[Any] = list(HELLO)

    async def ask() -> None:
        messages.append(await model.chat(messages, **OPTIONS))

    for loop in ("asyncio", "trio", "asyncio"):
        in_a_thread(partial(anyio.run, ask, backend=loop))
        messages.append({"role": "user", "content": "Go on."})
    anyio.run(model.aclose)
    assert [type(x) for x in messages[1::2]] == [ChatMessage] * 3


@pytest.mark.long
async def test_the_tokens_of_a_conversation_are_not_checked_again(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the vocabulary's own: for a message of 1 MB it took 0.1 s of the event loop."""
    checked: list[int] = []

    def check(place: str, value: Any, vocabulary: int) -> Any:
        checked.append(len(value))
        return prompt_of(place, value, vocabulary)

    expected = await model.chat(HELLO, max_tokens=3)
    monkeypatch.setattr("aggml.models.text_model.prompt_of", check)
    answer = await model.chat(HELLO, max_tokens=3)
    assert answer.content == expected.content
    assert sum(checked) <= 1  # that of the check of the options
    with pytest.raises(ModelError, match=r"1000\d+ tokens do not fit into a context"):
        await model.chat([{"role": "user", "content": "x" * 1_000_000}])


async def test_a_conversation_without_a_token_is_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "m.gguf", metadata={"tokenizer.ggml.add_bos_token": False})
    async with aggml.models.load(path, ctx=256, chat_template="{{ '' }}") as model:
        with pytest.raises(InvalidArgument, match=r"^\[chat\] prompt is empty"):
            await model.chat(HELLO)
