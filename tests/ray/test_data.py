"""Models in the workers of Ray Data: recordings become texts; a slow reader holds workers back."""

from __future__ import annotations

import io
import time
import wave
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import ray
from models import speech_file
from ray_cluster import cluster

import aggml
import aggml.models
from aggml.models.speech.subtitles import as_text
from aggml.ray import Transcribe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's own code, which is imported while these tests run.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
PAYLOAD = 1 << 20  # bytes of a row
ROWS = 48
ROOM = 12 << 20  # bytes of the object store that Ray Data may use


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "random.bin"
    speech_file.write_short(path)
    return path


def wav(i: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, 8000, 0, "NONE", ""))
        made.writeframes((speech_file.sound(1 + i) * 32767).astype("<i2").tobytes())
    return file.getvalue()


async def alone(path: Path, recordings: list[bytes], options: dict[str, Any]) -> list[str]:
    async with await aggml.models.load(path) as model:
        found = []
        for data in recordings:
            heard = aggml.models.read_wav(data)
            found.append(as_text([x async for x in model.transcribe(*heard, **options)]))
    return found


def test_workers_write_what_one_machine_writes(nodes: Any, whisper: Path) -> None:
    recordings = [wav(i) for i in range(4)]
    options: dict[str, Any] = {"temperature": 0.0, "language": "en"}
    wanted = anyio.run(alone, whisper, recordings, options)
    assert all(wanted)
    rows = ray.data.from_items([{"bytes": data, "i": i} for i, data in enumerate(recordings)])
    found = rows.map_batches(
        Transcribe, fn_constructor_args=(str(whisper),),
        fn_constructor_kwargs={"slots": 2, "transcription": options, "segments": "told"},
        batch_size=2, concurrency=2, num_cpus=1,
    ).take_all()  # fmt: skip
    assert {row["i"]: row["text"] for row in found} == dict(enumerate(wanted))
    assert all(row["told"].startswith('[{"id": 0') for row in found)


def test_a_slow_reader_holds_workers_back(nodes: Any) -> None:
    """Results that are computed and not yet read fit into the memory that Ray Data was given."""

    class Count:  # a local class is sent to workers by value, as they cannot import the tests
        def __init__(self) -> None:
            self.n = 0

        def add(self) -> None:
            self.n += 1

        def get(self) -> int:
            return self.n

    class Counted:
        """A worker that counts its batches and has large results."""

        def __init__(self, count: Any, size: int) -> None:
            self._count, self._size = count, size

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            ray.get(self._count.add.remote())
            return {"id": batch["id"], "payload": np.zeros((len(batch["id"]), self._size), "u1")}

    context = ray.data.DataContext.get_current()
    kept = context.execution_options.resource_limits
    context.execution_options.resource_limits = kept.copy(object_store_memory=ROOM)
    try:
        remote: Any = ray.remote(Count)
        count = remote.remote()
        rows = ray.data.range(ROWS, override_num_blocks=ROWS).map_batches(
            Counted, fn_constructor_args=(count, PAYLOAD), batch_size=1, concurrency=2, num_cpus=1
        )
        ahead, seen = [], 0
        for _ in rows.iter_batches(batch_size=1, prefetch_batches=0):
            seen += 1
            if seen in (4, 12, 20):
                ahead.append(settled(count) - seen)
        assert seen == ROWS
        assert ray.get(count.get.remote()) == ROWS
    finally:
        context.execution_options.resource_limits = kept
    assert max(ahead) <= 2 * ROOM // PAYLOAD < ROWS - 20, ahead


def settled(count: Any) -> int:
    """How many results were computed, once the number stays the same."""
    before = -1
    while (now := int(ray.get(count.get.remote()))) != before:
        before = now
        time.sleep(2)  # longer than one result takes: then nothing is computed any more
    return now
