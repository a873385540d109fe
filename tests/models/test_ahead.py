"""Steps whose inputs are made many at a time take what each step would be given alone.

Not here: the logits of the steps (test_architectures.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import random_models

import aggml
from aggml.models.decoder.ahead import MOST, Ahead
from aggml.models.decoder.batch import Batch, some_of_each
from aggml.models.decoder.decoder import Decoder

if TYPE_CHECKING:
    from pathlib import Path


async def _decoder(path: Path, name: str, slots: int = 1, ctx: int = 512) -> aggml.models.TextModel:
    model = await aggml.models.load(
        random_models.write(path / f"{name}.gguf", name), ctx=ctx, slots=slots
    )
    assert isinstance(model, aggml.models.TextModel)
    return model


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba2", "qwen3next"])
@pytest.mark.parametrize("positions", [[1], [250], [7, 3], [40, 254, 9]])
async def test_each_step_has_the_inputs_that_it_has_alone(
    tmp_path: Path, name: str, positions: list[int]
) -> None:
    async with await _decoder(tmp_path, name, slots=len(positions)) as model:
        decoder: Any = model._decoder
        assert isinstance(decoder, Decoder)
        first, seen = decoder._first_rows[: len(positions)], decoder.rows_to_read(max(positions))
        n = 256 - max(positions)
        group = some_of_each(positions, n, first, 0, seen)
        alone = [some_of_each([x + i for x in positions], 1, first, 0, seen) for i in range(n)]
        step = await decoder._steps.of(Batch((alone[0],)).shape(0))
        found = step.inputs_in_turn(group)
        assert len(found) == n
        for inputs, one in zip(found, alone, strict=True):
            wanted = step.inputs(Batch((one,)))
            del wanted[step.tokens]
            assert [*inputs] == [*wanted]  # the order, too: by it a prepared run is found again
            for tensor, x in inputs.items():
                assert x.dtype == wanted[tensor].dtype
                assert np.array_equal(x, wanted[tensor])


async def test_a_graph_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    """Behind position 255 attention reads 512 rows; nothing is made for the graph of 256."""
    async with await _decoder(tmp_path, "llama") as model:
        decoder: Any = model._decoder
        ahead, kind = Ahead(1), (0, 1)
        batch = Batch((some_of_each([253], 1, decoder._first_rows, 0, 256),))
        step = await decoder._steps.of(batch.shape(0))
        for position, follows in ((253, True), (254, True), (255, False)):
            ahead.make(kind, step, [position], decoder._ones)
            found = ahead.take(kind, [position + 1])
            assert (found is not None) == follows
            assert found is None or found[0] is step


async def test_what_is_made_serves_its_own_sequence_alone(tmp_path: Path) -> None:
    async with await _decoder(tmp_path, "llama", slots=2) as model:
        decoder: Any = model._decoder
        batch = Batch((some_of_each([5], 1, decoder._first_rows[:1], 0, 256),))
        step = await decoder._steps.of(batch.shape(0))
        ahead, kind = Ahead(2), (0, 1)
        ahead.make(kind, step, [5], decoder._ones)
        assert ahead.take((1, 1), [6]) is None
        assert ahead.take((0, 2), [6]) is None
        assert ahead.take(kind, [7]) is None
        assert ahead.take(kind, [6]) is not None
        assert ahead.take(kind, [7]) is None
        ahead.make(kind, step, [6], decoder._ones)  # all were taken: now there are many
        for i in range(MOST):
            found = ahead.take(kind, [7 + i])
            assert found is not None
            assert found[2] == (i + 1 < MOST)
        ahead.make(kind, step, [6 + MOST], decoder._ones)
        ahead.clear()
        assert ahead.take(kind, [7 + MOST]) is None


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3next"])
async def test_a_sequence_across_graphs_has_the_tokens_of_single_steps(
    tmp_path: Path, name: str
) -> None:
    """Steps that follow each other, against steps that each get their token from the host."""
    async with await _decoder(tmp_path, name) as model:
        decoder: Any = model._decoder
        prompt = [1 + i % 7 for i in range(230)]
        n = 60
        found = [token.id async for token in model.generate(prompt, max_tokens=n, stop_ids=())]
        logits = await decoder.prefill(0, prompt)
        wanted = [int(np.argmax(logits))]
        for i in range(n - 1):
            row = (await decoder.decode([wanted[-1]], [len(prompt) + i]))[0]
            wanted.append(int(np.argmax(row)))
        assert found == wanted
