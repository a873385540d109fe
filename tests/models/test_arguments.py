"""Every argument of a model's calls is checked at the call and refused by name; answers and ends.

Not here: requests over HTTP (tests/serve).
"""

from __future__ import annotations

import inspect
import json
import math
import re
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import random_models, speech_file

import aggml
from aggml.models import EncoderModel, Model, ModelError, SpeechModel, TextModel
from aggml.models.arguments import json_text, prompt_of, token_ids
from aggml.models.decoder.sampling import Sampler, choose
from aggml.models.vision.given import is_picture
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: dict[str, Any] = {
    "None": None, "text": "0.5", "bytes": b"1", "list": [1], "dict": {"a": 1}, "object": object(),
    "nan": math.nan, "inf": math.inf, "-1": -1, "-0.5": -0.5, "2.5": 2.5, "True": True,
    "complex": 1j, "huge": 10**30, "array": np.ones(2), "np.nan": np.float32("nan"),
    "unshowable": Unshowable(), "np.bool": np.True_,
}  # fmt: skip

NUMBERS = {"-1", "-0.5", "2.5", "huge"}

#: What is right among ODD.
RIGHT = {
    "max_tokens": {"huge"},
    "temperature": {"2.5", "huge"},
    "top_k": {"huge"},
    "top_p": set(),
    "min_p": set(),
    "seed": {"None", "huge"},
    "stop_ids": {"None", "list"},
    "stop": {"None", "text"},
    "presence_penalty": set(NUMBERS),
    "frequency_penalty": set(NUMBERS),
    "repetition_penalty": {"2.5", "huge"},
    "logit_bias": {"None"},
    "logprobs": {"None"},
    "post_sampling_probs": {"True", "np.bool"},
    "min_tokens": {"huge"},
    "prompt_logprobs": {"None"},
    "truncate_prompt": {"None", "huge"},
    "include_stop": {"True", "np.bool"},
    "show_special": {"True", "np.bool"},
    "allowed_ids": {"None", "list"},
    "bad_words": {"None"},
    "ignore_eos": {"True", "np.bool"},
    "priority": {"-1"},
    "adapter": {"None"},
    "deadline": {"None", "2.5", "huge"},
    "typical_p": set(),
    "top_n_sigma": set(NUMBERS),
    "xtc_probability": set(),
    "xtc_threshold": set(),
    "dry_multiplier": {"2.5", "huge"},
    "dry_base": {"2.5", "huge"},
    "dry_allowed_length": {"huge"},
    "dry_range": {"None", "-1", "huge"},
    "dry_breakers": {"None"},
    "dynatemp_range": {"2.5", "huge"},
    "dynatemp_exponent": {"2.5", "huge"},
    "mirostat": set(),
    "mirostat_tau": {"2.5", "huge"},
    "mirostat_eta": {"2.5", "huge"},
    "samplers": {"None"},
    "regex": {"None", "text"},
    "choices": {"None"},
    "grammar": {"None"},
    "schema": {"None", "dict", "True"},
    "progress": {"None"},
}
#: What is found to be wrong by the first token.
LATER = {"grammar": {"text"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
async def model(folder: Path) -> AsyncIterator[Model]:
    path = llama_files.write(folder / "llama.gguf")
    async with aggml.models.load(path, ctx=256) as loaded:
        yield loaded


@pytest.fixture
async def encoder(folder: Path) -> AsyncIterator[Model]:
    path = random_models.write(folder / "bert.gguf", "bert", random_models.words("▁a"))
    async with aggml.models.load(path) as loaded:
        yield loaded


def test_the_table_has_every_option_of_generate() -> None:
    assert set(RIGHT) == set(inspect.signature(TextModel.generate).parameters) - {
        "self",
        "prompt",
    } - {x for x in inspect.signature(TextModel.generate).parameters if x.startswith("_")}


@pytest.mark.parametrize("as_array", [False, True])
async def test_each_token_id_of_a_prompt_is_not_asked_whether_it_is_a_picture(
    model: Model, monkeypatch: pytest.MonkeyPatch, as_array: bool
) -> None:
    """Asking takes 0.5 us: of a prompt of 128,000 ids, 64 ms in which the loop stands still."""
    asked: list[object] = []

    def ask(value: object) -> bool:
        asked.append(value)
        return is_picture(value)

    ids = [1, 2, 3] * 30
    expected = [t.id async for t in model.generate(ids, max_tokens=2)]
    monkeypatch.setattr("aggml.models.vision.prompt.is_picture", ask)
    prompt: Any = np.array(ids, np.int32) if as_array else ids
    assert [t.id async for t in model.generate(prompt, max_tokens=2)] == expected
    assert len(asked) <= 1


@pytest.mark.parametrize("around", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)])
@pytest.mark.parametrize("leaf", [5, "a", None, True, 0.5])
def test_a_value_of_json_has_at_most_64_levels(around: Any, leaf: Any) -> None:
    value = leaf
    for _ in range(64):
        value = around(value)
    assert json.loads(json_text("f", "x", value)) == json.loads(json.dumps(value))
    with pytest.raises(aggml.InvalidArgument, match=r"^\[f\] x has more than 64 levels"):
        json_text("f", "x", around(value))


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.int64])
def test_arrays_of_ids_are_checked_by_their_range(kind: type[np.integer[Any]]) -> None:
    top = np.iinfo(kind).max
    assert token_ids("f", "ids", np.array([0, 5], kind), 6) == [0, 5]
    assert prompt_of("f", np.array([0, 5], kind), 6) == [0, 5]
    wrong = np.array([2, top], kind)
    with pytest.raises(aggml.InvalidArgument, match=rf"0 to 5, given were 2 to {top}"):
        token_ids("f", "ids", wrong, 6)
    with pytest.raises(aggml.InvalidArgument, match=rf"0 to 5, given were 2 to {top}"):
        prompt_of("f", wrong, 6)


@pytest.mark.long(cases=11)
@pytest.mark.parametrize("name", RIGHT)
async def test_odd_options_of_generate(model: Model, name: str) -> None:
    for what, value in ODD.items():
        if what in RIGHT[name]:
            assert [t async for t in model.generate([1], **{"max_tokens": 2, name: value})]
            continue
        if what in LATER.get(name, ()):
            with pytest.raises(aggml.InvalidArgument, match=rf"^\[generate\] {name}\W"):
                await anext(model.generate([1], **{name: value}))
            continue
        with pytest.raises(aggml.InvalidArgument, match=rf"^\[generate\] {name}\W"):
            model.generate([1], **{name: value})


@pytest.mark.parametrize(
    ("call", "name", "value", "said"),
    [
        ("generate", "temperature", 10**400, "beyond the range of a number"),
        ("generate", "max_tokens", np.zeros((4, 3)), "array([[0., 0., 0.], [0., 0., 0.]"),
        ("generate", "stop", np.array(3), "expected a text or a list of them"),
        ("generate", "prompt", {1, 2}, "expected a text or a list of token ids"),
        ("logits", "ids", {1, 2}, "expected a list of token ids"),
        ("logits", "ids", [], "there must be at least one token"),
        ("embed_ids", "sequences", [[5], []], "has no tokens, there must be at least one"),
        ("embed", "texts", {"a"}, "expected a list of texts"),
        ("embed", "prompt", ["query"], "the model's folder names none"),
        ("embed", "prompt", {"a": 1}, "the model's folder names none"),
        ("embed", "deadline", 10**400, "beyond the range of a number"),
    ],
)
async def test_values_of_unusual_types(
    model: Model, call: str, name: str, value: Any, said: str
) -> None:
    needed: dict[str, dict[str, Any]] = {
        "generate": {"prompt": [1]},
        "logits": {"ids": [1]},
        "embed": {"texts": ["a"]},
        "embed_ids": {"sequences": [[1]]},
    }

    async def ask() -> None:
        found = getattr(model, call)(**{**needed[call], name: value})
        await (anext(found) if call == "generate" else found)

    with pytest.raises(aggml.InvalidArgument) as caught:
        await ask()
    text = str(caught.value)
    assert text.startswith(f"[{call}] {name}"), text
    assert said in text, text
    assert "\n" not in text


async def test_a_number_of_thousands_of_digits(model: Model) -> None:
    """Python refuses to write it."""
    with pytest.raises(aggml.InvalidArgument, match=r"max_tokens is a value that cannot be shown"):
        model.generate([1], max_tokens=-(10**5000))
    with pytest.raises(aggml.InvalidArgument, match=r"given were 1 to a value that cannot be"):
        await model.logits([1, 10**5000])


async def test_sets_are_taken_where_the_order_does_not_matter(model: Model) -> None:
    options: dict[str, Any] = {"stop": {"a", "b"}, "stop_ids": {1, 2}, "choices": {"yes", "no"}}
    for name, value in options.items():
        assert [x async for x in model.generate([1], max_tokens=2, **{name: value})]


async def test_arguments_of_a_tokenizer(model: Model) -> None:
    words: Any = model.tokenizer
    for name in ("special", "literal"):
        for value in (None, "no", 1, np.ones(2)):
            with pytest.raises(aggml.InvalidArgument, match=rf"^\[Vocabulary.encode\] {name} is"):
                words.encode("a", **{name: value})
    with pytest.raises(aggml.InvalidArgument, match=r"text is 5 .*must be a str"):
        words.encode(5)
    wrong: Any
    for wrong in (None, 5, 2.5, "12", {"a": 1}, np.array(3), Unshowable()):
        with pytest.raises(aggml.InvalidArgument, match=r"^\[Vocabulary.decode\] ids is"):
            words.decode(wrong)
    for wrong in ([None], [Unshowable()], [True], ["a"], [math.nan], [10**30], [[1]], [-1]):
        with pytest.raises(aggml.InvalidArgument, match=r"^\[Vocabulary.decode\] ids"):
            words.decode(wrong)
    ids = words.encode("he")
    assert words.decode(np.array(ids)) == words.decode(iter(ids)) == words.decode(ids)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("path", "\ud800", aggml.InvalidArgument),
        ("draft", "\ud800", aggml.InvalidArgument),
        ("mmproj", "\ud800", aggml.InvalidArgument),
        ("prefix_folder", "\ud800", aggml.InvalidArgument),
        ("backend", Unshowable(), aggml.InvalidHandle),
        ("backend", 5, aggml.InvalidHandle),
        ("ctx", 10**30, aggml.InvalidArgument),
        ("slots", 10**30, aggml.InvalidArgument),
        ("dtype", np.ones(2), aggml.InvalidArgument),
        ("tool_format", np.ones(2), aggml.InvalidArgument),
    ],
)
async def test_odd_options_of_load(
    folder: Path, name: str, value: Any, error: type[Exception]
) -> None:
    given: dict[str, Any] = {"path": llama_files.write(folder / "llama.gguf"), name: value}
    with pytest.raises(error, match=rf"^\[[a-z.]+\] {name}\W"):
        await aggml.models.load(**given)
    if name in ("path", "backend", "ctx", "slots", "draft", "mmproj"):
        with pytest.raises(error, match=rf"^\[[a-z.]+\] {name}\W"):
            await aggml.models.fit(**given)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seed", -1, "seed is -1, must be not negative"),
        ("temperature", math.nan, "temperature is nan, expected a finite number"),
        ("temperature", "0.5", "temperature is '0.5', expected a number"),
        ("top_p", 5, r"top_p is 5, must be above 0 and at most 1"),
        ("top_p", 0, r"top_p is 0, must be above 0 and at most 1"),
        ("repetition_penalty", 0, "repetition_penalty is 0, must be above 0"),
        ("repetition_penalty", -1, "repetition_penalty is -1, must be above 0"),
        ("min_p", 1.5, r"min_p is 1.5, must be within 0 and 1"),
        ("max_tokens", 2.5, r"max_tokens is 2.5 \(float\), expected a whole number"),
        ("top_k", -3, "top_k is -3"),
        ("top_k", True, r"top_k is True \(bool\), expected a whole number"),
        ("stop_ids", [1, 99999], "given were 1 to 99999"),
        ("stop_ids", ["</s>"], r"stop_ids\[0\] is '</s>', expected a token id"),
    ],
)
async def test_what_is_said(model: Model, name: str, value: Any, said: str) -> None:
    with pytest.raises(aggml.InvalidArgument, match=said):
        model.generate("he", **{name: value})


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "prompt is None, expected a text or a list of token ids"),
        (5, "prompt is 5 "),
        (b"bytes", "prompt is b'bytes'"),
        ([{"role": "user", "content": "hi"}], r"list of messages.*model.template.render"),
        ({"role": "user", "content": "hi"}, "expected a text or a list of token ids"),
        (["one", "two"], "prompt is a list of texts"),
        ([1, 2.5], r"prompt\[1\] is 2.5"),
        ([1, True], r"prompt\[1\] is True"),
        ([1, 10**30], "given were 1 to 1000000000000000000000000000000"),
        ([[1, 2]], r"prompt\[0\] is \[1, 2\]"),
        ([], "there must be at least one token"),
        ([1, -1], "token ids are 0 to"),
        (np.ones((2, 2), int), "shape \\(2, 2\\)"),
        (np.ones(2), "array of float64"),
        ("a lone \ud800 surrogate", "lone surrogate at character 7"),
        (Unshowable(), "a value that cannot be shown"),
    ],
)
async def test_prompts_that_are_none(model: Model, prompt: Any, said: str) -> None:
    with pytest.raises(aggml.InvalidArgument, match=said):
        model.generate(prompt)


async def test_ids_may_be_of_numpy(model: Model) -> None:
    ids = np.array([1, 40], np.int64)
    wanted = [t.id async for t in model.generate([1, 40], max_tokens=3)]
    assert [t.id async for t in model.generate(ids, max_tokens=np.int8(3))] == wanted
    assert [t.id async for t in model.generate(tuple(ids), max_tokens=3)] == wanted
    np.testing.assert_array_equal(await model.logits(ids), await model.logits([1, 40]))


@pytest.mark.long(cases=4)
@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("embed", "one text", "texts is one text, 'one text', expected a list of texts"),
        ("embed", [1, 2], r"texts\[0\] is 1 \(int\), expected a text"),
        ("embed", None, "texts is None, expected a list of texts"),
        ("embed", 5, "texts is 5"),
        ("embed", ["a", None], r"texts\[1\] is None"),
        ("embed", {"a": "b"}, "expected a list of texts"),
        ("embed", b"a", "expected a list of texts"),
        ("embed_ids", [1, 2], r"sequences\[0\] is 1 .* put brackets around it"),
        ("embed_ids", "text", r"model.tokenizer.encode\(text\)"),
        ("embed_ids", [["a"]], r"sequences\[0\]\[0\] is 'a', expected a token id"),
        ("embed_ids", [[1, 99999]], "given were 1 to 99999"),
        ("embed_ids", [[1], [2, -1]], r"sequences\[1\]: token ids are 0 to .*, given were -1 to 2"),
        ("embed_ids", [[1], [True]], r"sequences\[1\]\[0\] is True"),
        ("embed_ids", None, "sequences is None"),
        ("logits", "text", r"ids is the text 'text'.*model.tokenizer.encode\(text\)"),
        ("logits", None, "ids is None"),
        ("logits", [1, None], r"ids\[1\] is None"),
        ("logits", [[1]], r"ids\[0\] is \[1\]"),
    ],
)
async def test_texts_and_ids_that_are_none(
    model: Model, encoder: Model, call: str, given: Any, said: str
) -> None:
    for of in (model, encoder) if call != "logits" else (model,):
        with pytest.raises(aggml.InvalidArgument, match=said):
            await getattr(of, call)(given)


@pytest.mark.parametrize(
    ("query", "documents", "said"),
    [
        (None, ["a"], "query is None"),
        (["a"], ["a"], r"query is \['a'\]"),
        ("a", "document", "documents is one text"),
        ("a", [None], r"documents\[0\] is None"),
        ("a", None, "documents is None"),
    ],
)
async def test_pairs_that_are_none(encoder: Model, query: Any, documents: Any, said: str) -> None:
    with pytest.raises(aggml.InvalidArgument, match=rf"\[rerank\] {said}"):
        await encoder.rerank(query, documents)


async def test_options_of_an_encoder(encoder: Model) -> None:
    assert isinstance(encoder, EncoderModel)
    for name in ("dimensions", "normalize"):
        for what, value in ODD.items():
            if what == "None" or (name == "normalize" and what in {"True", "np.bool"}):
                continue
            options: dict[str, Any] = {name: value}
            for call, given in ((encoder.embed, ["a"]), (encoder.embed_ids, [[1]])):
                with pytest.raises(aggml.InvalidArgument, match=name):
                    await call(given, **options)  # type: ignore[arg-type]


async def test_options_of_transcribe(folder: Path) -> None:
    speech_file.write_short(path := folder / "random.bin")
    right = {
        "rate": {"None"}, "words": {"True", "np.bool"},
        "temperature": {"2.5", "huge", "list", "array"}, "prompt": {"text"},
        "timestamps": {"True", "np.bool"}, "previous": {"True", "np.bool"},
        "seed": {"None", "huge"}, "language": {"None"}, "task": set(), "beam_size": set(),
        "compression_ratio_threshold": {"None", "2.5", "huge"},
        "logprob_threshold": {"None", "-1", "-0.5", "2.5", "huge"},
        "no_speech_threshold": {"None"},
    }  # fmt: skip
    async with aggml.models.load(path) as model:
        assert isinstance(model, SpeechModel)
        known = set(inspect.signature(SpeechModel.transcribe).parameters)
        assert set(right) == known - {"self", "samples"}
        sound = speech_file.sound(1)
        for name, fine in right.items():
            for what, value in ODD.items():
                if what in fine:
                    model.transcribe(sound, **{name: value})
                    continue
                with pytest.raises(aggml.InvalidArgument, match=name):
                    model.transcribe(sound, **{name: value})
        with pytest.raises(aggml.InvalidArgument, match=r"samples is .*read_sound"):
            model.transcribe(b"RIFF")
        for odd in ([[1.0], [1.0, 2.0]], [None], {"a": 1}):
            with pytest.raises(aggml.InvalidArgument, match="samples"):
                await anext(model.transcribe(odd))  # type: ignore[arg-type]
        with pytest.raises(aggml.InvalidArgument, match="recordings holds numbers"):
            await model.transcribe_all(sound)  # type: ignore[arg-type]


async def test_options_of_load(folder: Path) -> None:
    path = llama_files.write(folder / "llama.gguf")
    right = {
        "ctx": {"None"}, "slots": {"None"}, "cache": set(), "progress": {"None"}, "path": {"text"},
    }  # fmt: skip
    for name, fine in right.items():
        for what, value in ODD.items():
            if what in fine or (what == "huge" and name in {"ctx", "slots"}):
                continue
            given: dict[str, Any] = {"path": path, name: value}
            with pytest.raises(aggml.InvalidArgument, match=rf"^\[load\] {name} is"):
                aggml.models.load(**given)
    with pytest.raises(aggml.InvalidArgument, match="path"):
        aggml.models.load("a\0b")
    for wrong in (5, "CPU"):
        with pytest.raises(aggml.InvalidHandle):
            aggml.models.load(path, wrong)  # type: ignore[arg-type]


# -- why a text ended


async def test_the_last_token_says_why_the_text_ended(model: Model) -> None:
    tokens = model.generate([1, 40], max_tokens=4, stop_ids=[])
    made = [t async for t in tokens]
    assert [t.finish_reason for t in made] == [None, None, None, "length"]
    assert tokens.finish_reason == "length"
    end = made[2].id
    first = [t.id for t in made].index(end)
    tokens = model.generate([1, 40], max_tokens=40, stop_ids=[end])
    again = [t async for t in tokens]
    assert [t.id for t in again] == [t.id for t in made[:first]]
    assert tokens.finish_reason == "stop"
    if again:
        assert [t.finish_reason for t in again] == [None] * (first - 1) + ["stop"]
    assert made[0] == again[0] if first else True


async def test_a_text_without_a_token_says_why_it_ended(model: Model) -> None:
    (first,) = [t.id async for t in model.generate([1, 40], max_tokens=1, stop_ids=[])]
    tokens = model.generate([1, 40], max_tokens=8, stop_ids=[first])
    assert [t async for t in tokens] == []
    assert tokens.finish_reason == "stop"
    tokens = model.generate([1, 40], max_tokens=0)
    assert [t async for t in tokens] == []
    assert tokens.finish_reason == "length"
    tokens = model.generate([1, 40], max_tokens=8)
    assert tokens.finish_reason is None
    await tokens.aclose()
    assert tokens.finish_reason is None


async def test_a_full_context_is_a_length(model: Model) -> None:
    ids = [1, *[60] * (model.ctx - 3)]
    made = [t async for t in model.generate(ids, max_tokens=100, stop_ids=[])]
    assert len(made) == 3
    assert made[-1].finish_reason == "length"


# -- logits that are no numbers


def bad(folder: Path, name: str, value: float, rows: Any = slice(None)) -> Path:
    """A model of which some tokens get logits that are no numbers."""
    made = llama_files.weights("llama")  # it has an output matrix of its own
    made["output.weight"] = made["output.weight"].copy()
    made["output.weight"][rows] = value
    return llama_files.write(folder / f"{name}.gguf", "llama", tensors=made)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 0}]
)
async def test_nan_is_never_drawn(folder: Path, options: dict[str, Any]) -> None:
    rows = slice(None, None, 2)
    async with aggml.models.load(bad(folder, "some", math.nan, rows), ctx=256) as model:
        logits = await model.logits([1, 41])
        assert np.isnan(logits[-1, ::2]).all()
        assert np.isfinite(logits[-1, 1::2]).all()
        made = [t.id async for t in model.generate([1, 41], max_tokens=20, stop_ids=[], **options)]
        assert len(made) == 20
        assert all(i % 2 for i in made)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 0}]
)
async def test_a_model_whose_logits_are_all_nan(folder: Path, options: dict[str, Any]) -> None:
    async with aggml.models.load(bad(folder, "all", math.nan), ctx=256) as model:
        with pytest.raises(ModelError, match="all logits are NaN or -inf"):
            [t async for t in model.generate([1, 41], **options)]
        assert re.search(r", 0 of \d+ slots>", repr(model))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}])
async def test_logits_that_become_nan_later(folder: Path, options: dict[str, Any]) -> None:
    """A token whose embedding is NaN: the step after it has no number, and the prompt has."""
    async with aggml.models.load(llama_files.write(folder / "q.gguf"), ctx=256) as model:
        ids = [t.id async for t in model.generate([1, 41], max_tokens=4, stop_ids=[], **options)]
    made = llama_files.weights("llama")
    made["token_embd.weight"] = made["token_embd.weight"].copy()
    made["token_embd.weight"][ids[0]] = math.nan
    path = llama_files.write(folder / "later.gguf", "llama", tensors=made)
    async with aggml.models.load(path, ctx=256) as model:
        found = []

        async def run() -> None:
            async for token in model.generate([1, 41], max_tokens=8, stop_ids=[], **options):
                found.append(token.id)  # noqa: PERF401 those before the error are kept

        with pytest.raises(ModelError, match="all logits are NaN or -inf"):
            await run()
        assert found == ids[:1]


@pytest.mark.parametrize("seed", range(20))
def test_draws_from_random_rows_with_nan_and_infinities(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(300).astype(np.float32)
    row[rng.random(300) < 0.6] = np.nan
    row[rng.random(300) < 0.2] = -np.inf
    if seed % 3 == 0:
        row[rng.integers(0, 300, 2)] = np.inf
    allowed = set(np.flatnonzero(row > -np.inf).tolist())
    ids = np.arange(300, dtype=np.int32)[None]
    for options in ({"temperature": 0.0}, {"top_k": 5}, {"top_k": 0}, {"top_p": 0.1, "min_p": 0.2}):
        sampler = Sampler(**{"temperature": 1.5, "seed": seed, **options})  # type: ignore[arg-type]
        for _ in range(10):
            assert sampler(row) in allowed
            assert choose([sampler], ids, row[None])[0] in allowed
    for none in (np.nan, -np.inf):
        with pytest.raises(ModelError, match="all logits"):
            Sampler(0.0)(np.full(9, none, np.float32))
        with pytest.raises(ModelError, match="all logits"):
            Sampler(1.0)(np.full(9, none, np.float32))


# -- how a file wants its vectors made


@pytest.mark.parametrize(
    ("kind", "of"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")]
)
async def test_vectors_are_pooled_as_the_file_says(folder: Path, kind: int | None, of: str) -> None:
    more = {} if kind is None else {"llama.pooling_type": kind}
    path = random_models.write(folder / f"pooled{kind}.gguf", "llama", more)
    texts = [[1, 2, 3], [7], [5, 6, 7, 8, 9]]
    async with aggml.models.load(path, ctx=256) as model:
        assert isinstance(model, TextModel)
        found = await model.embed_ids(texts)
        for ids, vector in zip(texts, found, strict=True):
            hidden = (await model._decoder.hidden(ids)).astype(np.float64)
            wanted = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[of]
            np.testing.assert_allclose(
                vector, wanted / np.linalg.norm(wanted), rtol=1e-4, atol=1e-5
            )


async def test_a_decoder_that_ranks_gives_no_vectors(folder: Path) -> None:
    path = random_models.write(folder / "ranks.gguf", "llama", {"llama.pooling_type": 4})
    async with aggml.models.load(path, ctx=256) as model:
        with pytest.raises(aggml.Unsupported, match=r"llama.pooling_type is 4 \(rank\)"):
            await model.embed_ids([[1]])
    path = random_models.write(folder / "new.gguf", "llama", {"llama.pooling_type": 9})
    with pytest.raises(ModelError, match="pooling_type is 9"):
        await aggml.models.load(path)


@pytest.mark.long
async def test_speech_whose_logits_are_nan(folder: Path) -> None:
    made = speech_file.weights()
    made["decoder.ln.weight"] = np.full_like(made["decoder.ln.weight"], math.nan)
    speech_file.write_bin(path := folder / "nan.bin", made)
    async with aggml.models.load(path) as model:
        with pytest.raises(ModelError, match="all logits are NaN or -inf"):
            await anext(model.transcribe(speech_file.sound(1)))


EXTREMES: list[dict[str, Any]] = [
    *({name: x} for name in ("presence_penalty", "frequency_penalty") for x in (1e300, -1e300)),
    {"presence_penalty": 1e300, "frequency_penalty": -1e300, "logit_bias": {7: 1e300}},
    *({"repetition_penalty": x} for x in (1e300, 1e-300)),
    *({"logit_bias": {7: x, 9: -x}} for x in (1e300, 1e-300)),
    *({"temperature": x} for x in (1e300, 1e-300)),
    *({"temperature": x, "typical_p": 0.5} for x in (1e300, 1e-300)),
    {"top_p": 1e-300}, {"min_p": 1.0}, {"top_n_sigma": 1e300}, {"top_n_sigma": 1e-300},
    {"dynatemp_range": 1e300, "dynatemp_exponent": 1e300}, {"dynatemp_range": 1e-300},
    {"dry_multiplier": 1e300, "dry_base": 1e300, "dry_allowed_length": 1},
    *({"mirostat": i, "mirostat_tau": x, "mirostat_eta": y}
      for i in (1, 2) for x in (0.0, 1e300) for y in (0.0, 1e300)),
    {"logprobs": 3, "post_sampling_probs": True, "temperature": 1e-300},
]  # fmt: skip


@pytest.mark.long(cases=7)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
async def test_extreme_numbers_are_nobody_else_s_concern(
    model: Model, extreme: dict[str, Any]
) -> None:
    """Also where warnings of overflow are errors: these would end all requests of a step."""
    wanted = [t.id async for t in model.generate([1, 40], max_tokens=9, stop_ids=())]
    found: list[int] = []

    async def innocent() -> None:
        found.extend([t.id async for t in model.generate([1, 40], max_tokens=9, stop_ids=())])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(innocent)
        options = {"temperature": 0.9, "seed": 1, "max_tokens": 7, "stop_ids": (), **extreme}
        assert len([t async for t in model.generate([1, 50, 50, 50], **options)]) == 7
    assert found == wanted
