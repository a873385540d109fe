"""The engine reads the keys that running sequences share only once: the same tokens as alone.

Not here: attention over such keys (tests/ops/test_flash_decode.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from models import random_models
from models.engine.running import PATIENCE, all_of, text, until

import aggml
from aggml.models.engine import steps
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.engine.requests import TextRequest
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.text_model import TextModel
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.decoder import Batch

CTX = 1024


def of_pages(pages: int, own: int, seed: int) -> TextRequest:
    """A running request whose first ``pages`` pages are the same in all such requests."""
    tokens = [i // PAGE for i in range(pages * PAGE)] + [1000 + seed] * (own * PAGE + 1)
    request = TextRequest(tokens)
    request.computed = len(tokens) - 1
    return request


@pytest.mark.parametrize(
    ("pages", "shared"), [(0, 0), (7, 0), (8, 512), (11, 512), (12, 768), (31, 1536), (512, 32768)]
)
def test_whole_steps_of_the_common_tokens_are_read_once(pages: int, shared: int) -> None:
    requests = [of_pages(pages, own, 1 + own) for own in (0, 3, 40)]
    assert (
        steps.shared_prefix_length(requests)
        == steps.shared_prefix_length(requests[::-1])
        == pages * PAGE
    )
    assert steps._read_once(steps.shared_prefix_length(requests)) == shared
    assert steps.shared_prefix_length(requests[:1]) == 0
    assert steps.shared_prefix_length([*requests, of_pages(0, 600, 9)]) == 0


def have_come(engine: Engine, n: int) -> bool:
    """Whether so many requests wait or run."""
    return engine.queued + engine.active >= n


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
async def test_sequences_that_begin_alike_get_the_tokens_that_they_get_alone(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama-wide-heads")
    begin = text(600, 1)
    asked = [begin + text(5 + 60 * i, 10 + i)[1:] for i in range(4)]
    # the first sequence ends first: from then on another sequence's keys are read
    lengths = (4, 12, 16, 20)
    seen: list[tuple[int, int]] = []
    run_step = PagedDecoder.run_step

    def watched(
        decoder: PagedDecoder, step: Any, inputs: Any, batch: Batch, *, chained: bool
    ) -> Any:
        seen.extend((x.shared, x.shared_from) for x in batch.groups if x.shared)
        return run_step(decoder, step, inputs, batch, chained=chained)

    monkeypatch.setattr(PagedDecoder, "run_step", watched)
    found: dict[bool, list[list[int]]] = {}
    for together in (False, True):
        with await open_model(file) as opened:
            async with aggml.get_device("CPU").backend(n_threads=2) as backend:
                decoder = await load_decoder(
                    backend, opened, kind=PagedDecoder, ctx=CTX, cache=cache, sequences=4 + STAGED
                )
                engine = Engine(decoder, slots=4, budget=128, chunk=64)
                answers: list[list[int]] = [[] for _ in asked]
                found[together] = answers
                async with TextModel(engine, None) as model:

                    async def ask(i: int, model: TextModel, answers: list[list[int]]) -> None:
                        answers[i] = await all_of(model, asked[i], lengths[i])

                    with anyio.fail_after(PATIENCE):
                        if together:
                            async with anyio.create_task_group() as tasks:
                                for i in range(len(asked)):
                                    tasks.start_soon(ask, i, model, answers)
                                    await until(partial(have_come, engine, i + 1))
                        else:
                            for i in range(len(asked)):
                                await ask(i, model, answers)
                            assert not seen
    assert found[True] == found[False]
    assert [len(x) for x in found[True]] == list(lengths)
    assert {shared for shared, _ in seen} == {512}
