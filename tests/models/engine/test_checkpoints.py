"""Checkpoints of states within prompts: prompts with the same beginning compute it once.

A state cannot go back, so a prompt can go on only where a state was stored. Here: where states are
stored, and that answers stay the same. Not here: beginnings as such (test_beginnings.py), states of
sequences that run (test_states.py).
"""

from __future__ import annotations

import itertools
import random
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_models
from models.engine.running import all_of, alone, engine_of, running
from models.engine.tiny import settle
from models.layout import VOCABULARY

from aggml.models.engine.steps import APART, CHECKPOINTS, LEAST_STORED, checkpoints_of
from aggml.models.kv.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml.models.text_model import TextModel

LAYOUTS = ("mamba2-groups", "rwkv7-two-heads", "qwen3next")
NEAR = 24  # a prompt's last checkpoint is at most so many tokens before its end


@asynccontextmanager
async def storing(
    folder: Path, layout: str, files: Path | None = None, **options: Any
) -> AsyncIterator[TextModel]:
    """A model that stores beginnings, and nothing in free slots that other requests use."""
    path = folder / f"{layout}.gguf"
    if not path.exists():
        random_models.write(path, layout)
    async with running(path, cache="f32", **{"slots": 1, **options}) as model:
        engine = engine_of(model)
        engine.prefixes = Prefixes(engine.decoder, 32 << 20, files, about="this model")
        yield model


def text(n: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(3, VOCABULARY) for _ in range(n)]


async def answer(model: TextModel, prompt: Sequence[int], n: int = 5) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of its prompt had to be computed."""
    before = engine_of(model).counters.prompt_tokens
    found = await all_of(model, prompt, n)
    return found, engine_of(model).counters.prompt_tokens - before


async def right(folder: Path, layout: str, prompt: list[int], n: int = 5) -> list[int]:
    return await alone(folder / f"{layout}.gguf", prompt, n, cache="f32")


@pytest.mark.long
@given(st.integers(1, 3000), st.integers(0, 500), st.lists(st.integers(0, 3000), max_size=40))
@settings(max_examples=300, deadline=None)
def test_checkpoints_are_few_and_apart_and_the_last_is_near_the_end(
    n: int, computed: int, known: list[int]
) -> None:
    computed = min(computed, n - 1)
    found = checkpoints_of(n, computed, known)
    assert bool(found) == (n - computed >= LEAST_STORED)
    assert found == sorted(found)
    assert len(found) <= CHECKPOINTS
    assert all(computed < x < n for x in found)
    assert all(b - a >= APART for a, b in itertools.pairwise(found))
    if found:
        assert 8 < n - found[-1] <= NEAR
        assert all(x - computed >= APART and x in known for x in found[:-1])


def test_a_checkpoint_is_where_most_tokens_are_saved() -> None:
    assert checkpoints_of(1000, 0, [250] * 8 + [900, 900, 20, 990]) == [250, 900, 976]
    assert checkpoints_of(1000, 240, [250] * 8)[0] > 250  # it is not worth a step
    many = checkpoints_of(3000, 0, [100, 200, 300, 400, 500, 600])
    assert many[:-1] == [400, 500, 600]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_same_prompt_again_computes_its_last_tokens_only(
    tmp_path: Path, layout: str
) -> None:
    prompt = text(200, 1)
    async with storing(tmp_path, layout, tmp_path / "kept") as model:
        wanted, first = await answer(model, prompt)
        assert first == len(prompt)
        await answer(model, text(9, 2))  # it has the slot meanwhile
        again, computed = await answer(model, prompt)
        assert again == wanted
        assert computed <= NEAR
        await engine_of(model).flush()
    async with storing(tmp_path, layout, tmp_path / "kept") as model:  # after a restart
        again, computed = await answer(model, prompt)
    assert again == wanted == await right(tmp_path, layout, prompt)
    assert computed <= NEAR


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS[::2])
async def test_other_questions_behind_the_same_instructions_compute_these_twice_at_most(
    tmp_path: Path, layout: str
) -> None:
    """The first prompt does not show where its instructions end; the second one does."""
    instructions = text(150, 3)
    prompts = [[*instructions, *text(70 + 9 * i, 10 + i)] for i in range(5)]
    async with storing(tmp_path, layout) as model:
        found = []
        for prompt in prompts:
            found.append(await answer(model, prompt))
            await answer(model, text(9, 2))
    assert [n for _, n in found] == [
        len(x) - (len(instructions) if i > 1 else 0) for i, x in enumerate(prompts)
    ]
    assert [x for x, _ in found] == [await right(tmp_path, layout, x) for x in prompts]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS[::2])
async def test_prompts_that_come_together_have_their_beginning_computed_once(
    tmp_path: Path, layout: str
) -> None:
    """Also the same prompt for several answers, some of which leave, and preemption."""
    same, shared = text(180, 4), text(100, 5)
    prompts = [same] * 4 + [[*shared, *text(70, 20 + i)] for i in range(4)]
    found: dict[int, list[int]] = {}

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, prompts[i], 12, priority=i % 3)

    async def leaves(model: TextModel, i: int) -> None:
        async with aclosing(model.generate(prompts[i], max_tokens=9, stop_ids=())) as stream:
            await anext(stream)

    async with storing(tmp_path, layout, slots=3) as model:
        async with anyio.create_task_group() as tasks:
            for i in range(len(prompts)):
                tasks.start_soon(one, model, i)
                if i % 3 == 1:
                    tasks.start_soon(leaves, model, i)
        counters = engine_of(model).counters
        await settle(engine_of(model))
    assert [found[i] for i in range(len(prompts))] == [
        await right(tmp_path, layout, x, 12) for x in prompts
    ]
    if not counters.preemptions:  # a preempted sequence is stored, or computed again
        new = len(same) + 6 * NEAR + len(shared) + 5 * 70
        assert counters.prompt_tokens <= new


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS[::2])
async def test_a_conversation_whose_template_drops_the_end_of_each_prompt_computes_little(
    tmp_path: Path, layout: str
) -> None:
    """As with thoughts: the next turn has neither the prompt's last tokens nor the answer as made.

    Without checkpoints every turn computed the whole conversation.
    """
    opening = text(3, 6)  # begins an answer; later turns do not have it
    conversation = text(80, 7)
    computed, tokens = [], []
    found, prompt = [0], [0]
    async with storing(tmp_path, layout) as model:
        for turn in range(10):
            before = len(conversation)
            conversation += text(20 + turn, 30 + turn)
            prompt = [*conversation, *opening]
            if turn == 9:
                prompt = prompt[:510]
            found, n = await answer(model, prompt, 3)
            await answer(model, text(9, 2))
            computed.append(n)
            tokens.append(len(prompt) - before)
            conversation += found[1:]  # without its thought
    assert found == await right(tmp_path, layout, prompt, 3)
    late = sum(computed[1:])
    assert late <= sum(tokens[1:]) + 9 * (LEAST_STORED + NEAR)
    assert max(computed[1:]) < 2 * LEAST_STORED + NEAR


async def test_without_a_look_at_what_is_stored_the_answer_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise RuntimeError("a test breaks it")

    prompt = text(120, 8)
    async with storing(tmp_path, "mamba2-groups") as model:
        monkeypatch.setattr(Prefixes, "branch", fails)
        assert await all_of(model, prompt, 5) == await right(tmp_path, "mamba2-groups", prompt)
        await settle(engine_of(model))
