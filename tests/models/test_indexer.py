"""The indexer of MiniMax-M3: the blocks of keys that a token sees, compared with the rule in numpy.

Here also: prompts that are computed beside each other see their own blocks. Not here: whole models
beside llama.cpp and transformers (test_architectures.py, test_folders.py).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest
from models import random_models

import aggml
from aggml import DType, Graph
from aggml.models.blocks import Indexer
from aggml.models.decoder.batch import Part

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.blocks.scope import Scope

LENGTH, HEADS = 16, 2


def blocks_of(indexer: Indexer, q: np.ndarray, keys: np.ndarray, own: int) -> set[int]:
    """The blocks that a token at a position sees of one head of keys."""
    scores = keys[: own + 1] @ q
    visible = own // indexer.size + 1
    best = [scores[i * indexer.size : (i + 1) * indexer.size].max() for i in range(visible)]
    forced = [i for i in range(visible) if i > own // indexer.size - indexer.near]
    others = sorted((i for i in range(visible) if i not in forced), key=lambda i: -best[i])
    return {*forced, *others[: indexer.count - len(forced)]}


@pytest.mark.parametrize(
    ("indexer", "rows", "tokens", "sequences"),
    [
        (Indexer(HEADS, LENGTH, size=8, count=3, near=1), 64, 20, 1),
        (Indexer(HEADS, LENGTH, size=8, count=4, near=2), 72, 5, 3),
        (Indexer(HEADS, LENGTH, size=7, count=3, near=1), 64, 9, 2),  # the last block is short
        (Indexer(HEADS, LENGTH, size=8, count=2, near=0), 128, 1, 3),  # its rows are copied
        (Indexer(HEADS, LENGTH, size=8, count=3, near=2), 128, 1, 2),
        (Indexer(HEADS, LENGTH, size=49, count=2, near=1), 49 * 5, 3, 1),
    ],
)
async def test_a_token_sees_the_blocks_with_the_best_keys(
    indexer: Indexer, rows: int, tokens: int, sequences: int
) -> None:
    random = np.random.default_rng(rows + tokens)
    q = random.standard_normal((sequences, tokens, HEADS, LENGTH)).astype(np.float32)
    keys = random.standard_normal((sequences, 1, rows, LENGTH)).astype(np.float32)
    last = random.integers(tokens - 1, rows, sequences)
    last[0] = rows // indexer.size * indexer.size  # the first row of a block, or past the end
    last = np.minimum(last, rows - 1)
    at = last[:, None] + np.arange(1 - tokens, 1)
    mask = np.where(np.arange(rows) <= at[:, None, :, None], 0, -np.inf).astype(np.float16)

    q_leaf = aggml.new_tensor(DType.F32, ne=(LENGTH, HEADS, tokens * sequences), name="q")
    k_leaf = aggml.new_tensor(DType.F32, ne=(LENGTH, rows, 1, sequences), name="keys")
    m_leaf = aggml.new_tensor(DType.F16, ne=(rows, tokens, 1, sequences), name="mask")
    layer = cast("Scope", types.SimpleNamespace(passed={}))
    part = Part(sequences, tokens, 0, rows)
    chosen = indexer.choose(layer, q_leaf, k_leaf, part, 0, m_leaf)
    assert chosen is not None
    wanted: list[Any] = [x for seen in chosen for x in (seen.mask, seen.rows) if x is not None]
    graph = Graph(*(x.set_output() for x in wanted))
    async with aggml.get_device("CPU").backend(n_threads=1) as backend:
        backend.alloc_graph(graph)
        leafs = {q_leaf: q.reshape(-1, HEADS, LENGTH), k_leaf: keys, m_leaf: mask}
        got = iter(await backend.run(graph, leafs, wanted))
    for head, seen in enumerate(chosen):
        masks = np.asarray(next(got), np.float32).reshape(sequences, tokens, -1)
        order = None if seen.rows is None else np.asarray(next(got)).reshape(sequences, -1)
        for i in range(sequences):
            for j in range(tokens):
                open_ = np.flatnonzero(masks[i, j] == 0)
                found = open_ if order is None else order[i][open_]
                assert len(set(found.tolist())) == len(found)
                own = int(at[i, j])
                blocks = blocks_of(indexer, q[i, j, head], keys[i, 0], own)
                assert set(found.tolist()) == {
                    x for x in range(own + 1) if x // indexer.size in blocks
                }
    assert all((seen.rows is not None) == (tokens == 1) for seen in chosen)


def test_few_blocks_are_all_seen() -> None:
    indexer = Indexer(HEADS, LENGTH, size=8, count=8, near=1)
    mask = aggml.new_tensor(DType.F16, ne=(64, 4, 1, 1), name="mask")
    q = aggml.new_tensor(DType.F32, ne=(LENGTH, HEADS, 4), name="q")
    keys = aggml.new_tensor(DType.F32, ne=(LENGTH, 64, 1, 1), name="keys")
    layer = cast("Scope", types.SimpleNamespace(passed={}))
    assert indexer.choose(layer, q, keys, Part(1, 4, 0, 64), 0, mask) is None


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("lengths", [(40, 9, 23, 70), (300, 33, 280)])
async def test_prompts_beside_each_other_have_the_tokens_that_each_has_alone(
    tmp_path: Path, lengths: tuple[int, ...]
) -> None:
    path = random_models.write(tmp_path / "model.gguf", "minimax-m3")
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 320, n).tolist() for n in lengths]
    made: dict[int, list[int]] = {}

    async with await aggml.models.load(path, ctx=512, slots=len(lengths)) as model:

        async def go_on(i: int) -> list[int]:
            return [x.id async for x in model.generate(prompts[i], max_tokens=12)]

        async def note(i: int) -> None:
            made[i] = await go_on(i)

        async with anyio.create_task_group() as tasks:
            for i in range(len(prompts)):
                tasks.start_soon(note, i)
    async with await aggml.models.load(path, ctx=512, slots=1) as model:
        for i in range(len(prompts)):
            assert made[i] == await go_on(i)


async def test_quantizing_leaves_the_indexer_as_it_is(tmp_path: Path) -> None:
    """As llama.cpp does: a choice is not a matter of small errors."""
    path = random_models.write(tmp_path / "model.gguf", "minimax-m3")
    await aggml.models.convert(path, tmp_path / "small.gguf", "q8_0")
    with aggml.GGUFFile.open(tmp_path / "small.gguf") as file:
        types = {name: x.dtype for name, x in file.tensors.items()}
    assert types["blk.1.attn_q.weight"] is DType.Q8_0
    for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
        assert types[f"blk.1.indexer.{part}.weight"] is DType.F32


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_size", 48), ("block_size", 512), ("block_size", 64), ("head_count", 4),
     ("local_blocks", 3)],
)  # fmt: skip
async def test_settings_that_cannot_be_carried_out_are_refused(
    tmp_path: Path, name: str, value: int
) -> None:
    told = random_models.metadata_of("minimax-m3")
    told[f"minimax-m3.attention.indexer.{name}"] = value
    with aggml.GGUFWriter(tmp_path / "model.gguf") as writer:
        for key, x in (told | dict(random_models.NO_WORDS)).items():
            writer.add(key, x)
        for tensor, values in random_models.weights("minimax-m3").items():
            writer.add_tensor(tensor, values)
    with pytest.raises(aggml.models.ModelError, match="indexer"):
        await aggml.models.load(tmp_path / "model.gguf")
