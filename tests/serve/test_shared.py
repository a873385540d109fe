"""aggml.serve reads the keys that running sequences share only once: the same tokens as alone.

Not here: attention over such keys (tests/ops/test_flash_few.py), stored pages (test_prefixes.py).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from aggml.models.engine.jobs import Job
from aggml.models.engine.prefixes import key_of
from models import random_models
from serve.support import until

import aggml
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from aggml.serve import steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CTX = 1024
PATIENCE = 100


def job_of(prompt: Sequence[int], n: int = 1) -> Job:
    return Job(prompt, n, Sampler(temperature=0))


def text(n: int, seed: int) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(3, 290, n - 1).tolist()]


def queued_are(engine: Engine, n: int) -> bool:
    return engine.queued + engine.active >= n


def hashed(pages: int, own: int, seed: int) -> Job:
    """A job whose first ``pages`` keys are the same in all such jobs, the rest its own."""
    job = job_of([1])
    for i in range(pages + own):
        job.keys.append(key_of(job.keys[-1] if job.keys else b"", [i, seed * (i >= pages)]))
    return job


@pytest.mark.parametrize(
    ("pages", "shared"), [(0, 0), (7, 0), (8, 512), (11, 512), (12, 768), (31, 1536), (512, 32768)]
)
def test_the_last_common_page_is_found(pages: int, shared: int) -> None:
    jobs = [hashed(pages, own, 1 + own) for own in (0, 3, 40)]
    assert steps.shared_by(jobs) == shared
    assert steps.shared_by(jobs[::-1]) == shared
    assert steps.shared_by(jobs[:1]) == 0
    assert steps.shared_by([*jobs, hashed(0, 600, 9)]) == 0


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
async def test_sequences_that_begin_alike_get_the_tokens_that_they_get_alone(
    tmp_path: Path, cache: str
) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama-wide-heads")
    begin = text(600, 1)
    asked = [begin + text(5 + 60 * i, 10 + i)[1:] for i in range(4)]
    # the first sequence ends first: from then on another sequence's keys are read
    lengths = (4, 12, 16, 20)
    seen: list[tuple[int, int]] = []
    found: dict[bool, list[list[int]]] = {}
    for together in (False, True):
        with await open_model(file) as opened:
            async with aggml.get_device("CPU").backend() as backend:
                model = await load_decoder(
                    backend, opened, kind=PagedDecoder, ctx=CTX, cache=cache,
                    sequences=4 + STAGED + 32 * PAGE // CTX,
                )  # fmt: skip
                queue = model.queue

                async def queued(batch: Any, *given: Any, queue: Any = queue, **more: Any) -> Any:
                    seen.extend((x.shared, x.shared_from) for x in batch.groups if x.shared)
                    return await queue(batch, *given, **more)

                model.queue = queued  # type: ignore[method-assign]
                async with Engine(model, slots=4, budget=128, stored=32, chunk=64) as engine:
                    answers: list[list[int]] = [[] for _ in asked]
                    found[together] = answers

                    async def ask(i: int, engine: Engine, answers: list[list[int]]) -> None:
                        job = job_of(asked[i], lengths[i])
                        async with aclosing(engine.stream(job)) as stream:
                            answers[i] = [token async for tokens in stream for token in tokens]

                    with anyio.fail_after(PATIENCE):
                        if together:
                            async with anyio.create_task_group() as tasks:
                                for i in range(len(asked)):
                                    tasks.start_soon(ask, i, engine, answers)
                                    await until(partial(queued_are, engine, i + 1))
                        else:
                            for i in range(len(asked)):
                                await ask(i, engine, answers)
                            assert not seen
    assert found[True] == found[False]
    assert [len(x) for x in found[True]] == list(lengths)
    assert {shared for shared, _ in seen} == {512}
    assert len({first for _, first in seen}) > 1
