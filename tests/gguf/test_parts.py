"""A model in several files is read as one, whichever part is opened.

Here, too: files in memory, and copying and removing metadata values. Not here: single files on disk
(test_reading.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from models import random_models

import aggml
from aggml.gguf import GGUFError, GGUFFile, GGUFParts, GGUFWriter, open_gguf


def split(source: Path, folder: Path, sizes: list[int], **changes: Any) -> list[Path]:
    """Write a file as parts with so many tensors each; the last part has the rest."""
    names: list[Path] = []
    with GGUFFile.open(source) as file:
        rest = [*file.tensors]
        for i, size in enumerate(sizes):
            path = folder / f"model-{i + 1:05}-of-{len(sizes):05}.gguf"
            names.append(path)
            mine, rest = (rest, []) if i == len(sizes) - 1 else (rest[:size], rest[size:])
            with GGUFWriter(path) as writer:
                if i == 0:
                    writer.add_all(file)
                told = {"no": i, "count": len(sizes), "tensors.count": len(file.tensors)}
                for key, value in (told | changes.get(f"part{i}", {})).items():
                    writer.add(
                        f"split.{key}", value, "uint16" if key != "tensors.count" else "int32"
                    )
                for name in mine:
                    t = file.tensors[name]
                    writer.add_tensor(name, file.data(name), t.dtype, ne=t.ne[: t.ndim])
    return names


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return random_models.write(tmp_path / "whole.gguf", "llama")


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("sizes", [[10, 10, 0], [0, 7, 0], [38, 0]])
async def test_a_model_in_parts_is_the_model_whichever_part_is_opened(
    tmp_path: Path, source: Path, sizes: list[int]
) -> None:
    parts = split(source, tmp_path, sizes)
    ids = [3, 4, 5, 6]
    async with await aggml.models.load(source, ctx=256) as model:
        wanted = await model.logits(ids)
    for part in parts:
        async with await aggml.models.load(part, ctx=256) as model:
            np.testing.assert_array_equal(await model.logits(ids), wanted)
    with open_gguf(parts[-1]) as file, GGUFFile.open(source) as whole:
        assert isinstance(file, GGUFParts)
        assert [*file.tensors] == [*whole.tensors]
        assert file.nbytes == whole.nbytes
        for name in whole.tensors:
            np.testing.assert_array_equal(file.data(name), whole.data(name))
        with pytest.raises(aggml.InvalidArgument, match=r"has no tensor 'nothing'"):
            file.data("nothing")


async def test_parts_are_converted_to_one_file(tmp_path: Path, source: Path) -> None:
    parts = split(source, tmp_path, [5, 5, 0])
    await aggml.models.convert(parts[1], tmp_path / "one.gguf", "q8_0")
    with GGUFFile.open(tmp_path / "one.gguf") as file:
        assert not [key for key in file.metadata if key.startswith("split.")]
        assert len(file.tensors) == 39


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("most", [40_000, 2_000_000])
async def test_a_model_is_written_in_parts_of_a_size(
    tmp_path: Path, source: Path, most: int, bare: bool
) -> None:
    done = await aggml.models.convert(
        source, tmp_path / "model.gguf", "q8_0", split_max_size=most, no_tensor_first_split=bare
    )
    await aggml.models.convert(source, tmp_path / "one.gguf", "q8_0")
    paths = [Path(path) for path in done.paths]
    n = len(paths)
    assert [x.name for x in paths] == [f"model-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    assert n > 3 if most == 40_000 else n == 1 + bare
    assert done.nbytes == sum(path.stat().st_size for path in paths)
    counts = []
    for i, path in enumerate(paths):
        with GGUFFile.open(path) as part:
            counts.append(len(part.tensors))
            told = {x: (part.metadata[x], part.types[x]) for x in ("split.no", "split.count")}
            assert told == {"split.no": (i, "uint16"), "split.count": (n, "uint16")}
            assert ("general.architecture" in part.metadata) == (i == 0)
            assert path.stat().st_size <= most or counts[-1] == 1
    assert (counts[0] == 0) == bare
    assert min(counts[1:], default=1) > 0
    with open_gguf(paths[-1]) as file, GGUFFile.open(tmp_path / "one.gguf") as whole:
        assert [*file.tensors] == [*whole.tensors]
        for name in whole.tensors:
            np.testing.assert_array_equal(file.data(name), whole.data(name))
        kept = {k: x for k, x in file.metadata.items() if not k.startswith("split.")}
        assert kept == whole.metadata
        assert file.metadata["split.tensors.count"] == len(whole.tensors)
    async with await aggml.models.load(paths[0], ctx=256) as model:
        got = await model.logits([3, 4, 5])
    async with await aggml.models.load(tmp_path / "one.gguf", ctx=256) as model:
        np.testing.assert_array_equal(got, await model.logits([3, 4, 5]))
    again = await aggml.models.convert(paths[-1], paths[-1], split_max_size=1 << 30)
    assert [Path(x).name for x in again.paths] == ["model-00001-of-00001.gguf"]


async def test_parts_that_cannot_be_written_leave_nothing(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "into"
    folder.mkdir()
    old = folder / "model-00001-of-00002.gguf"
    old.write_bytes(b"old")

    def fail(done: int, total: int) -> None:
        if done == total:
            raise OSError("enough")

    for most in (40_000, 300_000):
        with pytest.raises(OSError, match="enough"):
            await aggml.models.convert(
                source, folder / "model.gguf", split_max_size=most, progress=fail
            )
    assert [(x.name, x.read_bytes()) for x in folder.iterdir()] == [(old.name, b"old")]
    wrong: Any
    for wrong in (0, -1, 1.5, True, "2G"):
        with pytest.raises(aggml.InvalidArgument, match=r"\[convert\] split_max_size is"):
            await aggml.models.convert(source, folder / "model.gguf", split_max_size=wrong)
    with pytest.raises(aggml.InvalidArgument, match="no_tensor_first_split needs split_max_size"):
        await aggml.models.convert(source, folder / "m.gguf", no_tensor_first_split=True)


async def test_parts_are_copied_to_a_device_that_reads_no_host_memory(
    tmp_path: Path, source: Path
) -> None:
    parts = split(source, tmp_path, [5, 5, 0])
    told: list[tuple[int, int]] = []
    device = aggml.devices.sim.SimDevice("parts", memory=64 << 20)
    async with device.backend() as backend:
        with open_gguf(parts[0]) as file:
            await file.load(backend, progress=lambda done, total: told.append((done, total)))
            assert told[-1] == (file.nbytes, file.nbytes)


def test_a_part_that_is_missing_is_named(tmp_path: Path, source: Path) -> None:
    parts = split(source, tmp_path, [10, 10, 0])
    parts[1].unlink()
    for part in (parts[0], parts[2]):
        with pytest.raises(GGUFError, match=r"the first is 'model-00002-of-00003.gguf'"):
            open_gguf(part)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, source: Path) -> None:
    def wrong(why: str, opened: int = 0, **changes: Any) -> None:
        parts = split(source, tmp_path, [10, 10, 0], **changes)
        with pytest.raises(GGUFError, match=why):
            open_gguf(parts[opened])

    wrong("split.no is 2, but by its name it is part 1", part0={"no": 2})
    wrong("split.no is 0, expected was 1", part1={"no": 0})
    wrong("split.count is 4, expected was 3", part2={"count": 4})
    wrong("split.tensors.count is 40, but the parts have 39", part0={"tensors.count": 40})
    wrong("split.count is 7, so its name should end", part0={"count": 7})
    parts = split(source, tmp_path, [10, 10, 0])
    parts[0].rename(tmp_path / "other.gguf")
    with pytest.raises(GGUFError, match=r"its name should end in '-00001-of-00003.gguf'"):
        open_gguf(tmp_path / "other.gguf")
    split(source, tmp_path, [10, 10, 0])
    first = parts[0].read_bytes()
    parts[1].write_bytes(first)
    with pytest.raises(GGUFError, match=r"split.no is 0, expected was 1"):
        open_gguf(parts[0])


def test_a_file_in_memory_is_read(source: Path) -> None:
    raw = source.read_bytes()
    with GGUFFile.open(source) as wanted:
        for data in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint8)):
            with GGUFFile.from_buffer(data) as file:
                assert [*file.tensors] == [*wanted.tensors]
                for name in file.tensors:
                    np.testing.assert_array_equal(file.data(name), wanted.data(name))
        with GGUFFile.from_reader(lambda at, n: raw[at : at + n]) as file:
            np.testing.assert_array_equal(file.data("output_norm.weight"),
                                          wanted.data("output_norm.weight"))  # fmt: skip
    for cut in (0, 3, 100, len(raw) - 64):
        with pytest.raises(GGUFError, match="buffer"):
            GGUFFile.from_buffer(raw[:cut])
    with pytest.raises(GGUFError, match="more than 100 bytes"):
        GGUFFile.from_reader(lambda at, n: raw[at : at + n], most=100)
    with pytest.raises(aggml.InvalidArgument, match="from_reader"):
        GGUFFile.from_reader(lambda at, n: 7)  # type: ignore[arg-type,return-value]
    with pytest.raises(aggml.InvalidArgument, match="no contiguous memory"):
        GGUFFile.from_buffer("text")


async def test_tensors_of_a_file_in_memory_are_computed_with(source: Path) -> None:
    with GGUFFile.from_buffer(await anyio.Path(source).read_bytes()) as file:
        device = aggml.get_device("CPU")
        async with device.backend() as backend:
            file.map(device)
            got = await backend.get(file.tensors["output_norm.weight"])
            np.testing.assert_array_equal(got.view(np.uint8), file.data("output_norm.weight"))


def test_metadata_is_copied_replaced_and_removed(tmp_path: Path, source: Path) -> None:
    with GGUFFile.open(source) as file, GGUFWriter(tmp_path / "copy.gguf") as writer:
        writer.add("llama.block_count", 7)
        writer.add("own", [[1, 2], [3]])
        writer.add_all(file)
        assert writer.remove("llama.context_length")
        assert not writer.remove("llama.context_length")
        assert not writer.remove("nothing")
        wanted, types = dict(file.metadata), dict(file.types)
    with GGUFFile.open(tmp_path / "copy.gguf") as copy:
        del wanted["llama.context_length"], types["llama.context_length"]
        own = copy.metadata.pop("own")
        assert [x.tolist() for x in own] == [[1, 2], [3]]
        assert copy.metadata == wanted
        assert {k: v for k, v in copy.types.items() if k != "own"} == types
