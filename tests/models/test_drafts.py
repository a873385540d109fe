"""``load(draft=)``: what it takes, what it refuses, and that answers stay the same.

Not here: steps that verify drafts (engine/test_speculation.py), ``--draft`` (tests/cli).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import adapter_files, random_models
from models.all_drafts import verify_all_drafts

import aggml
from aggml.models import small
from aggml.models.engine.ngram_files import read_ngrams
from aggml.models.errors import ModelError
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aggml.models.text_model import TextModel

pytestmark = pytest.mark.anyio

TEXT = "one two three one two three one two"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return write_small(folder / "small.gguf")


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    async with aggml.get_device("CPU").backend(n_threads=2) as opened:
        yield opened


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify all drafts, four tokens of each sequence in a step."""
    verify_all_drafts(monkeypatch)


def random_file(folder: Path, layout: str) -> Path:
    path = folder / f"{layout}.gguf"
    return path if path.exists() else random_models.write(path, layout)


async def load(path: Path, backend: aggml.Backend | None = None, **options: Any) -> TextModel:
    loaded: Any = await aggml.models.load(path, backend, ctx=512, slots=2, **options)
    return loaded  # type: ignore[no-any-return]


async def answers(model: TextModel, **options: Any) -> list[list[int]]:
    """Two answers, which are made at a time."""
    found: list[list[int]] = [[], []]

    async def one(i: int) -> None:
        prompt = TEXT[i:] if model._tokenizer is not None else [1, 5 + i, 7, 5 + i, 7]
        options_ = {"temperature": 0.0 if i else 0.9, "seed": 3, "stop_ids": (), **options}
        found[i] = [x.id async for x in model.generate(prompt, max_tokens=30, **options_)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, 0)
        tasks.start_soon(one, 1)
    return found


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("draft", ["lookup", "ngram", "a path", "a model", "its own file"])
async def test_every_kind_of_draft_leaves_the_answers_as_they_are(
    draft: str, file: Path, backend: aggml.Backend, always: None
) -> None:
    async with await load(file, backend) as plain:
        wanted = await answers(plain)
        others = {"a path": file, "a model": plain, "its own file": str(file)}
        given = others.get(draft, draft)
        async with await load(file, backend, draft=given) as model:
            assert await answers(model) == wanted
            counters = model.engine.counters
            if given != draft:
                assert counters.accepted_tokens == counters.draft_tokens > 20
        assert await answers(plain) == wanted  # its weights are still there


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_statistics_in_a_file_guess_what_an_earlier_process_said(
    folder: Path, file: Path, backend: aggml.Backend, always: None
) -> None:
    kept = folder / "answers.ngrams"
    ids = [i % 40 + 3 for i in range(0, 400, 7)]  # nothing in the prompt comes again in the answer
    counts, found = [], []
    for draft in ("ngram", f"ngram:{kept}", f"ngram:{kept}"):
        async with await load(file, backend, draft=draft) as model:
            answer = model.generate(ids, max_tokens=60, temperature=0.9, seed=5, stop_ids=())
            found.append([x.id async for x in answer])
            counts.append(model.engine.counters.accepted_tokens)
        assert kept.exists() == (len(counts) > 1)
    assert found[0] == found[1] == found[2]
    assert counts[2] > counts[1] + 10
    assert counts[0] == counts[1]  # the file was not there yet
    with aggml.GGUFFile.open(kept) as opened:
        rows = opened.tensors["young.4"].ne[1]
        assert rows > 40
    assert not [name for name in os.listdir(folder) if name.endswith(".writing")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_file_of_statistics_that_does_not_fit_is_refused_by_name(
    folder: Path, file: Path, backend: aggml.Backend
) -> None:
    kept = folder / "other.ngrams"
    async with await load(random_file(folder, "llama"), backend, draft=f"ngram:{kept}") as model:
        _ = [x async for x in model.generate([3, 4, 5, 6] * 4, max_tokens=9, stop_ids=())]
    with pytest.raises(ModelError, match=r"other\.ngrams has statistics .* of another vocabulary"):
        await load(file, backend, draft=f"ngram:{kept}")
    with pytest.raises(ModelError, match=r"small\.gguf has no statistics of n-grams"):
        await load(file, backend, draft=f"ngram:{file}")
    kept.write_bytes(kept.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"other\.ngrams cannot be read"):
        await load(random_file(folder, "llama"), backend, draft=f"ngram:{kept}")
    with pytest.raises(ModelError, match="no such folder"):
        await load(file, backend, draft=f"ngram:{folder / 'nowhere' / 'x.ngrams'}")


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("young.4", [1, 2, 3, 4, 320, 1], "tokens that are not 0 to 319"),
        ("young.4", [1, 2, 3, 4, -1, 1], "tokens that are not 0 to 319"),
        ("old.2", [1, 2, 3, 0], "votes that are not 1 to"),
        ("old.2", [1, 2, 3, 99], "votes that are not 1 to"),
        ("old.3", [1, 2, 3, 1], "another form"),
    ],
)
def test_statistics_with_impossible_values_are_refused(
    tmp_path: Path, name: str, row: list[int], text: str
) -> None:
    path = tmp_path / "x.ngrams"
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "ngrams")
        writer.add("general.type", "ngrams")
        writer.add("ngrams.version", 1)
        writer.add("ngrams.vocabulary", "v")
        writer.add_tensor(name, np.array([row], np.int32))
    with pytest.raises(ModelError, match=text):
        read_ngrams(path, "v", 320)


async def test_an_answer_tells_how_many_of_its_tokens_were_guessed(
    file: Path, backend: aggml.Backend, always: None
) -> None:
    async with await load(file, backend, draft=file) as model:
        stream = model.generate("Once upon a time", max_tokens=24, stop_ids=[])
        assert (stream.drafted_tokens, stream.accepted_tokens) == (0, 0)
        assert len([x async for x in stream]) == 24
        counters = model.engine.counters
        assert stream.drafted_tokens == counters.draft_tokens > 8
        assert stream.accepted_tokens == counters.accepted_tokens > 8


async def test_a_draft_model_may_lie_on_another_backend(file: Path, always: None) -> None:
    async with (
        aggml.get_device("CPU").backend(n_threads=1) as other,
        await load(file, other) as draft,
        await load(file, draft=draft) as model,
    ):
        wanted = await answers(draft)
        assert await answers(model) == wanted
        assert model.engine.counters.accepted_tokens > 20


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_draft_model_that_is_closed_ends_speculation_and_no_answer(
    file: Path, backend: aggml.Backend, always: None
) -> None:
    draft = await load(file, backend)
    async with await load(file, backend, draft=draft) as model:
        wanted = await answers(model)
        before = model.engine.counters.drafts
        assert before
        await draft.aclose()
        assert await answers(model) == wanted
        assert model.engine.counters.drafts == before


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_memory_of_a_draft_model_is_counted_and_freed(
    file: Path, backend: aggml.Backend, always: None
) -> None:
    async with await load(file, backend) as plain:
        await answers(plain)
        alone = plain.memory
    async with await load(file, backend, draft=file) as model:
        await answers(model)
        both = model.memory
        assert both.mapped > 1.5 * alone.mapped
        assert both.pages > 1.5 * alone.pages
    with pytest.raises(aggml.InvalidState):
        _ = model.memory


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_with_an_adapter_is_not_guessed_by_the_model_without_it(
    folder: Path, backend: aggml.Backend, always: None
) -> None:
    path = random_file(folder, "llama")
    adapter = adapter_files.example_adapter(folder / "adapter.gguf", "llama")
    async with await load(path, backend, draft=path, adapters={"a": adapter}) as model:
        with_it = await answers(model, adapter="a")
        assert model.engine.counters.drafts == 0
        without = await answers(model)
        assert model.engine.counters.drafts > 0
    async with await load(path, backend, draft="lookup", adapters={"a": adapter}) as model:
        assert await answers(model, adapter="a") == with_it != without


async def test_a_constrained_answer_beside_a_guessed_one_matches(
    file: Path, backend: aggml.Backend, always: None
) -> None:
    pytest.importorskip("llguidance")
    async with await load(file, backend) as plain, await load(file, backend, draft=file) as model:
        found: dict[str, list[str]] = {"plain": [], "drafted": []}
        for name, one in (("plain", plain), ("drafted", model)):

            async def read(one: TextModel = one, name: str = name, **options: Any) -> None:
                text = [x.text async for x in one.generate(TEXT, max_tokens=24, **options)]
                found[name].append("".join(text))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                tasks.start_soon(partial(read, regex="[a-c]{4,9}x"))
        assert sorted(found["plain"]) == sorted(found["drafted"])


@pytest.mark.parametrize("given", [5, True, "", ["lookup"], b"x"])
async def test_a_draft_of_another_type_is_refused_at_the_call(given: Any, file: Path) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"\[load\] draft is .*'lookup'"):
        aggml.models.load(file, draft=given)


@pytest.mark.long
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_draft_model_with_another_vocabulary_is_refused(
    folder: Path, file: Path, backend: aggml.Backend, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="same vocabulary"):
        await load(random_file(folder, "llama"), backend, draft=file)
    names, kinds = small.tokens()
    other = [*names[:-1], "odd"], kinds
    monkeypatch.setattr(small, "tokens", lambda: other)
    odd = write_small(folder / "odd.gguf")
    for draft in (odd, await load(odd, backend)):
        with pytest.raises(ModelError, match=rf"token {len(names) - 1} is 'odd'.*{names[-1]!r}"):
            await load(file, backend, draft=draft)
    padding = [*names, "[PAD356]", "[PAD357]"], [*kinds, 5, 5]
    monkeypatch.setattr(small, "tokens", lambda: padding)
    longer = write_small(folder / "longer.gguf")
    for one, another in ((file, longer), (longer, file)):
        async with await load(one, backend, draft=another) as model:
            await answers(model)
            assert model.engine.counters.drafts > 5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_file_s_own_head_makes_drafts_and_its_memory_is_counted_and_freed(
    folder: Path, backend: aggml.Backend, always: None
) -> None:
    path = random_file(folder, "qwen35-ahead")
    async with await load(path, backend) as plain, await load(path, backend, draft="mtp") as model:
        assert await answers(model) == await answers(plain)
        assert model.engine.counters.drafts > 5
        assert model.memory.pages > plain.memory.pages
    with pytest.raises(aggml.InvalidState):
        _ = model.memory


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_file_without_a_head_is_told_what_it_lacks(
    folder: Path, backend: aggml.Backend
) -> None:
    with pytest.raises(
        ModelError, match=r"'mtp', but the file has no layer .*llama.*nextn_predict"
    ):
        await load(random_file(folder, "llama"), backend, draft="mtp")
    with pytest.raises(ModelError, match=r"'qwen35\.nextn_predict_layers'"):
        await load(random_file(folder, "qwen35"), backend, draft="mtp")
    for left_out in ("blk.5.nextn.eh_proj.weight", "blk.5.attn_q.weight"):
        cut = folder / "cut.gguf"
        with aggml.GGUFWriter(cut) as writer:
            for key, value in random_models.metadata_of("qwen35-ahead").items():
                writer.add(key, value)
            writer.add("tokenizer.ggml.model", "no_vocab")
            for name, values in random_models.weights("qwen35-ahead").items():
                if name != left_out:
                    writer.add_tensor(name, values)
        with pytest.raises(ModelError, match=f"'mtp', but the file has no tensor '{left_out}'"):
            await load(cut, backend, draft="mtp")
        async with await load(cut, backend, draft="lookup"):  # it needs no head
            pass


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("layout", ["rwkv7", "qwen3next"])
async def test_a_model_with_states_can_have_drafts_and_make_them(
    layout: str, folder: Path, backend: aggml.Backend, always: None
) -> None:
    path = random_file(folder, layout)
    async with await load(path, backend) as plain, await load(path, backend, draft="lookup") as one:
        bias = {"logit_bias": dict.fromkeys((3, 4, 5), 60.0)}  # so that what came comes again
        assert await answers(one, **bias) == await answers(plain, **bias)
        assert one.engine.counters.drafts > 5
        assert one.memory.pages > plain.memory.pages
        wanted = await answers(plain)
        for draft in (path, plain):
            async with await load(path, backend, draft=draft) as model:
                assert await answers(model) == wanted
                counters = model.engine.counters
                assert counters.accepted_tokens == counters.draft_tokens > 20
        assert await answers(plain) == wanted  # its weights are still there
        llama = random_file(folder, "llama")
        async with await load(llama, backend) as alone:
            wanted = await answers(alone)
        async with await load(llama, backend, draft=path) as model:
            assert await answers(model) == wanted
            assert model.engine.counters.draft_tokens > 20


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_models_that_do_not_continue_text_take_no_draft(
    folder: Path, backend: aggml.Backend
) -> None:
    path = random_file(folder, "bert")
    with pytest.raises(aggml.InvalidArgument, match="does not continue text"):
        await aggml.models.load(path, backend, draft="lookup")
    with pytest.raises(aggml.Unsupported, match="does not continue text"):
        await load(random_file(folder, "llama"), backend, draft=path)


async def test_a_file_that_is_not_there_is_named(file: Path, backend: aggml.Backend) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        await load(file, backend, draft=file.with_name("nowhere.gguf"))
