"""Answers of allowed tokens alone, without bad words, with their stop text; prompts told and cut.

Not here: grammars (test_constraints.py), the fields of the service (tests/serve).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml.models import TextModel
from aggml.models.engine.constraints import NamedTokens, TokenTexts
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PROMPT = "Once upon a time there was a fox"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def model(path: Path) -> AsyncIterator[TextModel]:
    async with aggml.models.load(path, ctx=1024, slots=3, chunk=4) as loaded:
        assert isinstance(loaded, TextModel)
        yield loaded


async def text_of(model: TextModel, prompt: str = "Once", **options: Any) -> str:
    given: Any = {"max_tokens": 24, "stop_ids": [], **options}
    stream = model.generate(prompt, **given)
    return "".join([x.text async for x in stream])


async def test_an_answer_has_allowed_tokens_alone(model: TextModel) -> None:
    options: Any
    for options in ({}, {"temperature": 3.0, "top_k": 0, "seed": 1}, {"samplers": ["min_p"]}):
        stream = model.generate(
            PROMPT, max_tokens=12, allowed_ids=[300, 301, 7], stop_ids=[], **options
        )
        made = [x.id async for x in stream]
        assert len(made) == 12
        assert set(made) <= {300, 301, 7}
    logits = (await model.logits(model.tokenizer.encode_prompt(PROMPT)))[-1]
    first = await anext(model.generate(PROMPT, allowed_ids=[300, 301, 7], logprobs=1))
    assert first.id == max((300, 301, 7), key=lambda x: logits[x])
    with pytest.raises(aggml.InvalidArgument, match="allowed_ids is empty"):
        model.generate(PROMPT, allowed_ids=[])


async def test_allowed_tokens_and_a_grammar_bind_together(model: TextModel) -> None:
    pytest.importorskip("llguidance")
    ids = {x: model.tokenizer.ids[x] for x in "abc"}
    made = await text_of(model, regex="[ab]{6}", allowed_ids=[ids["b"], ids["c"]])
    assert made == "bbbbbb"


@pytest.mark.long
async def test_an_answer_has_no_bad_words_that_it_would_have(model: TextModel) -> None:
    signs = [i for i, x in enumerate(model.tokenizer.pieces) if len(x) == 1 and x.isascii()]
    bad: list[str] = []
    for _ in range(8):  # each time what the model would have written is forbidden, too
        text = await text_of(model, bad_words=bad, allowed_ids=signs)
        assert not [x for x in bad if x in text]
        n = 2 + len(bad) % 3
        bad.append(text[5 : 5 + n])
    free: Any = {"temperature": 2.0, "seed": 3, "top_k": 0, "max_tokens": 80, "allowed_ids": signs}
    text = await text_of(model, bad_words=bad, **free)
    assert not [x for x in bad if x in text]
    words = [text[i : i + 2] for i in range(0, 40, 9)]
    text = await text_of(model, bad_words=words, **free)
    assert not [x for x in words if x in text]
    assert await text_of(model, bad_words=["never written"]) == await text_of(model)


def test_bad_words_are_found_within_tokens_and_over_several_of_them() -> None:
    pieces = ["a", "ab", "abc", "b", "bc", "c", "xab", "bcx", "", "é", "x", "cab"]

    class Words:
        def __init__(self) -> None:
            self.pieces = pieces

        def bytes_of(self, token: int) -> bytes:
            return pieces[token].encode()

    words = Words()
    texts = TokenTexts(words, len(pieces) + 3)  # type: ignore[arg-type]
    chosen = random.Random(5)
    for _ in range(300):
        bad = ["".join(chosen.choices("abcxé", k=chosen.randint(1, 4))) for _ in range(2)]
        allowed = frozenset(chosen.sample(range(12), 8)) if chosen.random() < 0.5 else None
        named = NamedTokens(texts, words.bytes_of, allowed, bad)
        text = ""
        for _ in range(6):
            ids = np.arange(len(pieces))
            right = [
                not any(x in text + y for x in bad) and (allowed is None or i in allowed)
                for i, y in enumerate(pieces)
            ]
            assert named.narrow(None).allows(ids).tolist() == right
            if not any(right):
                break
            token = chosen.choice(np.flatnonzero(right).tolist())
            text += pieces[token]
            named.take(token)


async def test_a_stop_text_may_be_part_of_the_answer(model: TextModel) -> None:
    text = await text_of(model)
    stop = text[6:9]
    end = text.index(stop)
    assert await text_of(model, stop=stop) == text[:end]
    stream = model.generate("Once", max_tokens=24, stop=stop, stop_ids=[], include_stop=True)
    assert "".join([x.text async for x in stream]) == text[: end + len(stop)]
    assert (stream.finish_reason, stream.stop_text) == ("stop", stop)


async def test_names_of_control_tokens_are_shown_if_that_is_asked_for(model: TextModel) -> None:
    words = model.tokenizer
    ids = [words.ids[x] for x in words.control_names()]
    options: Any = {"allowed_ids": [*ids, 300], "ignore_eos": True, "temperature": 1.0, "seed": 2}
    stream = model.generate("Once", max_tokens=12, show_special=True, **options)
    tokens = [x async for x in stream]
    assert {x.id for x in tokens} & set(ids)
    assert [x.text for x in tokens] == [words.pieces[x.id] for x in tokens]
    assert "<" not in await text_of(model, **options)


async def test_the_tokens_of_a_prompt_are_told_as_the_logits_say(model: TextModel) -> None:
    ids = model.tokenizer.encode_prompt(PROMPT)
    assert len(ids) > 3 * 4  # several pieces
    stream = model.generate(PROMPT, max_tokens=2, prompt_logprobs=3)
    made = [x.id async for x in stream]
    told = stream.prompt_logprobs
    assert told is not None
    assert [x.id for x in told] == ids
    assert (told[0].logprob, told[0].top, told[0].rank) == (None, [], None)
    rows = (await model.logits(ids)).astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for i, one in enumerate(told[1:]):
        assert one.logprob == pytest.approx(logs[i, one.id], abs=1e-4)
        assert one.rank == 1 + int((rows[i] > rows[i, one.id]).sum())
        best = np.argsort(-rows[i], kind="stable")[:3]
        assert [x for x, _ in one.top] == best.tolist()
        assert [x for _, x in one.top] == pytest.approx(logs[i, best], abs=1e-4)
    assert made == [x.id async for x in model.generate(PROMPT, max_tokens=2)]
    stream = model.generate(PROMPT, max_tokens=0, prompt_logprobs=0)
    assert [x async for x in stream] == []
    assert stream.prompt_logprobs is not None
    assert [x.logprob for x in stream.prompt_logprobs] == [x.logprob for x in told]
    assert not [y for x in stream.prompt_logprobs for y in x.top]


@pytest.mark.long
async def test_a_prompt_is_cut_to_its_last_tokens(model: TextModel) -> None:
    long = PROMPT * 50
    ids = model.tokenizer.encode_prompt(long)
    assert len(ids) > model.ctx
    wanted = [x.id async for x in model.generate(ids[-40:], max_tokens=6)]
    stream = model.generate(long, max_tokens=6, truncate_prompt=40, prompt_logprobs=0)
    assert [x.id async for x in stream] == wanted
    assert stream.prompt_tokens == 40
    assert stream.prompt_logprobs is not None
    assert [x.id for x in stream.prompt_logprobs] == ids[-40:]
    with pytest.raises(aggml.models.TooLongError):
        await anext(model.generate(long, truncate_prompt=model.ctx + 1))
    chat = [{"role": "user", "content": long}]
    answer = await model.chat(chat, max_tokens=4, truncate_prompt=50)
    assert answer.usage.prompt_tokens == 50
    answer = await model.chat(chat, truncate_prompt=50)
    assert answer.usage.completion_tokens > 4


@pytest.mark.long
async def test_of_allowed_tools_alone_the_model_calls(model: TextModel) -> None:
    pytest.importorskip("llguidance")
    tools = [
        {"name": x, "parameters": {"type": "object", "properties": {}}} for x in ("one", "two")
    ]
    chat = [{"role": "user", "content": "x"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "two"}]}
    for choice in (allowed, {"type": "allowed_tools", "allowed_tools": allowed}):
        answer = await model.chat(chat, tools=tools, tool_choice=choice, max_tokens=200)
        assert {x.name for x in answer.tool_calls} == {"two"}
    for wrong in (
        {**allowed, "tools": []}, {**allowed, "tools": [{"name": "three"}]},
        {**allowed, "mode": "none"}, {"type": "allowed_tools"},
    ):  # fmt: skip
        with pytest.raises(aggml.InvalidArgument, match="tool_choice"):
            model.chat_stream(chat, tools=tools, tool_choice=wrong)
