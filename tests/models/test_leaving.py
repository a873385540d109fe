"""Leaving a generation early: by break, by an exception, inside a generator of the program.

The next generation of the same task finds the slot free. Python's collector is off meanwhile, but
where a test says that it is needed.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from models import random_models

import aggml

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aggml.models import Model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.write(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")


@pytest.fixture
async def model(path: Path) -> AsyncGenerator[Model]:
    async with await aggml.models.load(path, ctx=256, slots=1) as loaded:
        gc.collect()
        gc.disable()
        try:
            yield loaded
        finally:
            gc.enable()


async def whole(model: Model, **options: Any) -> list[int]:
    return [t.id async for t in model.generate([1, 2, 3], max_tokens=5, **options)]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 3}])
async def test_break(model: Model, options: dict[str, Any]) -> None:
    wanted = await whole(model, **options)
    for _ in range(3):
        async for _ in model.generate([1, 2, 3], max_tokens=50, **options):
            break
        assert "0 of 1 slots" in repr(model)  # at once, without a turn of the loop
        assert await whole(model, **options) == wanted


async def test_an_exception(model: Model) -> None:
    wanted = await whole(model)

    async def fail() -> None:
        async for _ in model.generate([1, 2, 3], max_tokens=50):
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert await whole(model) == wanted


async def test_a_function_that_returns(model: Model) -> None:
    async def first() -> int:
        async for token in model.generate([1, 2, 3], max_tokens=50):
            return token.id
        return -1

    wanted = await whole(model)
    assert [await first() for _ in range(3)] == [wanted[0]] * 3
    assert await whole(model) == wanted


@pytest.mark.filterwarnings("ignore:Async generator.*:ResourceWarning")
@pytest.mark.parametrize("deep", [1, 4])
async def test_generators_around_it_that_the_loop_has_still_to_finish(
    model: Model, deep: int
) -> None:
    async def around(n: int) -> AsyncGenerator[int]:
        if not n:
            async for token in model.generate([1, 2, 3], max_tokens=50):
                yield token.id
            return
        async for i in around(n - 1):
            yield i

    wanted = await whole(model)
    for _ in range(3):
        async for _ in around(deep):
            break
        assert await whole(model) == wanted


@pytest.mark.filterwarnings("ignore:Async generator.*:ResourceWarning")
async def test_a_generator_around_it_that_takes_its_time_to_end(model: Model) -> None:
    async def around() -> AsyncGenerator[int]:
        tokens = model.generate([1, 2, 3], max_tokens=50)
        try:
            async for token in tokens:
                yield token.id
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(200):
                    await checkpoint()

    wanted = await whole(model)
    async for _ in around():
        break
    assert await whole(model) == wanted


async def test_a_generation_in_a_cycle_of_references_is_found_by_the_collector(
    model: Model,
) -> None:
    wanted = await whole(model)
    tokens: Any = model.generate([1, 2, 3], max_tokens=50)
    await anext(tokens)
    cycle: list[Any] = [tokens]
    cycle.append(cycle)
    del tokens, cycle
    assert await whole(model) == wanted


async def test_a_generation_that_is_still_referred_to_goes_on_where_it_was(model: Model) -> None:
    tokens = model.generate([1, 2, 3], max_tokens=50)
    first = [(await anext(tokens)).id]
    wanted = await whole(model)
    assert first + [t.id async for t in tokens] == [
        t.id async for t in model.generate([1, 2, 3], max_tokens=50)
    ]
    tokens = model.generate([1, 2, 3], max_tokens=50)
    await anext(tokens)
    await tokens.aclose()
    assert [t async for t in tokens] == []
    assert await whole(model) == wanted


async def test_a_cancelled_step_ends_the_generation(model: Model) -> None:
    wanted = await whole(model)
    tokens = model.generate([1, 2, 3], max_tokens=50)
    await anext(tokens)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(tokens)
    assert [t async for t in tokens] == []
    assert await whole(model) == wanted


async def test_two_tasks_do_not_take_tokens_of_one_generation_at_the_same_time(
    model: Model,
) -> None:
    tokens = model.generate([1, 2, 3], max_tokens=50)
    refused = []

    async def take() -> None:
        try:
            await anext(tokens)
        except aggml.InvalidState as error:
            refused.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        tasks.start_soon(take)
    assert len(refused) == 1
    assert "another task waits" in refused[0]
    await anext(tokens)
    await tokens.aclose()


async def test_throwing_ends_the_generation(model: Model) -> None:
    tokens = model.generate([1, 2, 3], max_tokens=50)
    await anext(tokens)
    with pytest.raises(KeyError):
        await tokens.athrow(KeyError("enough"))
    assert "0 of 1 slots" in repr(model)
