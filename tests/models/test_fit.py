"""What `fit` says before loading is what `model.memory` measures afterwards, and bounds it.

Not here: several models in one process (test_host.py), the command (tests/cli/test_fit.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import numpy as np
import pytest
from models import encoder_decoders, picture_files, random_models, speech_file
from models.all_drafts import verify_all_drafts

import aggml
from aggml.devices.sim import SimDevice
from aggml.models import Fit, Host, MemoryShortage, SpeechModel, TextModel, fit, load
from aggml.models.checking import describe_checked
from aggml.models.description import Description
from aggml.models.fitting import _bytes_left_in_group, available
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.kv.rows import round_up
from aggml.models.memory import measure
from aggml.models.small import write_small
from aggml.models.weights import load_weights, open_model
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aggml.devices.cpu import CPUDevice
    from aggml.models import Memory

TEXT = sorted(n for n in random_models.LAYOUTS if n not in random_models.ENCODERS)
ENCODERS = sorted(random_models.ENCODERS)
CPU: Final = cast("CPUDevice", aggml.get_device("CPU"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture
async def sim() -> AsyncGenerator[tuple[SimDevice, aggml.Backend]]:
    device = SimDevice("SIM", memory=64 << 20)
    async with device.backend() as backend:
        yield device, backend


def bounded(memory: Memory, said: Fit) -> None:
    """Each part is at most what was said before."""
    assert memory.mapped == said.weights
    assert memory.packed <= said.packed
    assert memory.pages <= said.pages + 64 * 4096  # the system's pages at the ends of caches
    assert memory.scratch <= said.scratch
    assert memory.total == sum(
        getattr(memory, name) for name in ("mapped", "packed", "pages", "scratch", "graphs")
    )


# -- the estimate and the measurement


@pytest.mark.long(cases=6)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] if i % 4 else []) for i, x in enumerate(TEXT)],
)
async def test_a_decoder_takes_what_was_said_before(tmp_path: Path, name: str) -> None:
    path = random_models.write(tmp_path / "model.gguf", name)
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        said = await fit(path, backend, ctx=512, slots=2)
        assert (said.ctx, said.slots, said.cache) == (512, 2, aggml.DType.F16)
        async with load(path, backend, ctx=512, slots=2) as model:
            before = model.memory
            assert before.mapped == said.weights
            ids = np.arange(500) % model.vocabulary_size
            async for _ in model.generate(ids, max_tokens=8, stop_ids=[]):
                pass
            after = model.memory
            bounded(after, said)
            assert after.total > before.total
            assert after.graphs > 0


# A head of the file counts as a draft, though the model holds its weights.
DRAFTS = {
    "lookup": ("lookup", "llama"), "n-grams": ("ngram", "llama"),
    "lookup of a model with states": ("lookup", "mamba2"),
    "mtp": ("mtp", "qwen35-ahead"), "a path": ("path", "llama"),
    "a path of a model with states": ("path", "mamba2"),
}  # fmt: skip


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", DRAFTS)
async def test_a_draft_takes_at_most_what_was_said_before(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_all_drafts(monkeypatch)
    draft, layout = DRAFTS[name]
    path = random_models.write(tmp_path / "model.gguf", layout)
    given = path if draft == "path" else draft
    ids = np.tile(np.arange(40) + 3, 10)
    async with CPU.backend(n_threads=2) as backend:
        plain = await fit(path, backend, ctx=512, slots=2)
        said = await fit(path, backend, ctx=512, slots=2, draft=given)
        assert said.weights == plain.weights
        assert said.pages >= plain.pages
        assert said.total > plain.total
        assert (said.pages > plain.pages) == (layout in ("mamba2", "qwen35-ahead"))
        assert (said.draft > 0) == (draft not in ("lookup", "ngram"))
        async with load(path, backend, ctx=512, slots=2, draft=given) as model:
            async for _ in model.generate(ids, max_tokens=20, stop_ids=[]):
                pass
            after, parts = model.memory, ("mapped", "packed", "pages", "scratch")
        assert sum(getattr(after, x) for x in parts) <= said.total + 64 * 4096
        assert after.mapped > said.weights or draft in ("lookup", "ngram")
        least = await fit(path, backend, ctx=512, slots=2, draft=given, memory=said.total)
        assert (least.ctx, least.slots) == (512, 2)
        with pytest.raises(MemoryShortage, match="draft" if said.draft else "pages"):
            await fit(path, backend, ctx=512, slots=2, draft=given, memory=said.total - 1)
        if draft == "path":
            async with load(path, backend, ctx=512, slots=2) as other:
                again = await fit(path, backend, ctx=512, slots=2, draft=cast("Any", other))
                assert 0 < again.draft < said.draft  # its weights are there already


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", [
    pytest.param(x, marks=() if x.startswith(("gemma3", "qwen3vl")) else pytest.mark.slow)
    for x in sorted(picture_files.KINDS)
])  # fmt: skip
async def test_a_mmproj_file_takes_at_most_what_was_said_before(tmp_path: Path, name: str) -> None:
    path = picture_files.write_text(tmp_path / "text.gguf", name)
    eyes = picture_files.write_eyes(tmp_path / "eyes.gguf", name)
    async with CPU.backend(n_threads=2) as backend:
        plain = await fit(path, backend, ctx=512, slots=1)
        said = await fit(path, backend, ctx=512, slots=1, mmproj=eyes)
        async with load(path, backend, ctx=512, slots=1) as model:
            alone = model.memory
        async with load(path, backend, ctx=512, slots=1, mmproj=eyes) as model:
            await model.embed_image(np.zeros((64, 96, 3), np.uint8))
            parts = ("mapped", "packed", "scratch")
            more = sum(getattr(model.memory, x) - getattr(alone, x) for x in parts)
        assert 0 < more <= said.mmproj == said.total - plain.total


async def test_what_makes_drafts_and_pictures_counts_for_memory_and_in_a_host(
    tmp_path: Path,
) -> None:
    path = random_models.write(tmp_path / "model.gguf", "llama")
    wanted = await fit(path, ctx=512, slots=2, draft=path)
    async with load(path, memory=wanted.total, ctx=512, slots=2, draft=path) as model:
        assert cast("Any", model).slots == 2
    with pytest.raises(MemoryShortage, match="draft"):
        await load(path, memory=wanted.total - 1, ctx=512, slots=2, draft=path)
    plain = await fit(path, ctx=512, slots=2)
    assert plain.total < wanted.total
    async with Host(memory=1 << 40) as host:
        host.add("plain", path, ctx=512, slots=2)
        host.add("drafts", path, ctx=512, slots=2, draft=str(path))
        async with host.use("plain"), host.use("drafts"):
            states = host._entries
            assert states["plain"].fit is not None
            assert states["drafts"].fit is not None
            assert states["plain"].fit.total == plain.total
            assert states["drafts"].fit.total == wanted.total


async def test_a_draft_or_a_mmproj_that_does_not_belong_to_a_model_is_refused(
    tmp_path: Path,
) -> None:
    llama = random_models.write(tmp_path / "llama.gguf", "llama")
    bert = random_models.write(tmp_path / "bert.gguf", "bert")
    with pytest.raises(aggml.models.ModelError, match=r"\'mtp\', but the file has no layer"):
        await fit(llama, draft="mtp")
    with pytest.raises(aggml.Unsupported, match="does not continue text"):
        await fit(llama, draft=bert)
    with pytest.raises(aggml.InvalidArgument, match="does not continue text"):
        await fit(bert, draft="lookup")
    with pytest.raises(aggml.models.ModelError, match="no mmproj file"):
        await fit(llama, mmproj=llama)
    with pytest.raises(aggml.InvalidArgument, match=r"\[fit\] draft is 5"):
        await fit(llama, draft=cast("Any", 5))


@pytest.mark.parametrize("name", ENCODERS)
async def test_an_encoder_takes_what_was_said_before(tmp_path: Path, name: str) -> None:
    path = random_models.write(tmp_path / "model.gguf", name)
    said = await fit(path)
    assert (said.pages, said.cache, said.slots) == (0, None, 1)
    async with load(path) as model:
        assert said.ctx == model.ctx
        texts = [np.arange(n) % model.vocabulary_size for n in (3, 100, model.ctx)]
        await model.embed_ids(texts)
        bounded(model.memory, said)
        assert model.memory.scratch > 0
        assert model.memory.pages == 0


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("kind", encoder_decoders.KINDS)
async def test_an_encoder_with_a_decoder_takes_what_was_said_before(
    tmp_path: Path, kind: str
) -> None:
    path = encoder_decoders.write(tmp_path / "t5.gguf", kind)
    said = await fit(path)
    assert (said.slots, said.cache, said.pages) == (1, None, 0)
    with pytest.raises(MemoryShortage):
        await load(path, memory=said.total - 1)
    async with Host(memory=said.total) as host:
        host.add("t5", path)
        async with host.use("t5") as model:
            ids = [5] * said.ctx
            if encoder_decoders.KINDS[kind][0]:
                await model.logits(ids, ids)  # type: ignore[call-arg]
            else:
                await model.embed_ids([ids])
            bounded(model.memory, said)
            assert model.memory.graphs == said.graphs
            assert model.memory.total <= said.total


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_model_of_speech_takes_what_was_said_before(tmp_path: Path, slots: int) -> None:
    speech_file.write_short(path := tmp_path / "speech.bin", 32)
    said = await fit(path, slots=slots)
    async with load(path, slots=slots) as model:
        assert (said.ctx, said.slots) == (model.ctx, slots)
        async for _ in model.transcribe(np.zeros(16000, np.float32), temperature=0.0):
            pass
        bounded(model.memory, said)
        assert model.memory.pages > 0


@pytest.mark.long
async def test_a_model_of_speech_gets_as_many_windows_as_fit(tmp_path: Path) -> None:
    speech_file.write_short(path := tmp_path / "speech.bin", 32)
    one, two, most = [await fit(path, slots=n) for n in (1, 2, None)]
    assert most.slots > 2
    async with load(path) as model:
        assert isinstance(model, SpeechModel)
        assert model.slots == most.slots
        bounded(model.memory, most)
    async with load(path, memory=two.total + 1) as model:
        assert isinstance(model, SpeechModel)
        assert model.slots == (await fit(path, memory=two.total + 1)).slots == 2
        await model.transcribe_all([np.zeros(16000, np.float32)] * 3)
        bounded(model.memory, two)
    with pytest.raises(MemoryShortage, match="are missing"):
        await load(path, memory=one.total - 1)


async def test_an_encoder_that_does_not_fit_is_not_loaded(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    total = (await fit(path)).total
    with pytest.raises(MemoryShortage) as e:
        await load(path, memory=total - 1)
    assert e.value.missing == 1
    async with load(path, memory=total) as model:
        assert len(await model.embed_ids([[1, 2, 3]])) == 1


async def test_weights_that_several_names_share_count_once(small: Path) -> None:
    async with load(small, ctx=256) as model:
        assert model.memory.mapped == (await fit(small, ctx=256, slots=1)).weights
        text = str(model.memory)
    assert "mapped" in text
    assert "total" in text


async def test_only_written_pages_count(small: Path) -> None:
    async with CPU.backend(n_threads=1) as backend:
        with await open_model(small) as file:
            model = describe_checked(file.metadata, file.tensors)
            assert isinstance(model, Description)
            weights = await load_weights(backend, file, model.needs())
            decoder = PagedDecoder(backend, model, weights, ctx=4096, sequences=2)
        took = [measure(decoder).pages]
        for n in (3, 1000, 2000):
            await decoder.prefill(1, [i % 200 for i in range(n)])
            took.append(measure(decoder).pages)
        row = sum(cache.nb[1] for cache, _ in decoder.caches.rows)
        edges = 2 * 4096 * len(decoder.caches.all)
        assert took[0] == 0
        for n, pages in zip((3, 1000, 2000), took[1:], strict=True):
            assert n * row <= pages <= round_up(n) * row + edges  # attention reads whole steps
        for give_back in decoder.forget_parts(1):
            give_back()
        assert measure(decoder).pages <= edges
        decoder.close()


async def test_packed_copies_of_all_models_are_those_of_the_device(tmp_path: Path) -> None:
    blocks = {
        name: aggml.quantize(x, "q4_0") if x.ndim == 2 else x
        for name, x in llama_files.weights("llama").items()
    }
    small = llama_files.write(tmp_path / "model.gguf", tensors=blocks, dtype="q4_0")
    before = CPU.packed_bytes
    async with load(small, ctx=256) as one, load(small, ctx=256) as two:
        for model in (one, two):
            async for _ in model.generate([1, 2], max_tokens=4, stop_ids=[]):
                pass
        assert one.memory.packed == (await fit(small, ctx=256, slots=1)).packed
        assert one.memory.packed + two.memory.packed == CPU.packed_bytes - before > 0


async def test_a_closed_model_has_no_memory(small: Path) -> None:
    model = await load(small, ctx=256)
    await model.aclose()
    with pytest.raises(aggml.InvalidState, match=r"\[memory\] the model is closed"):
        _ = model.memory


async def test_memory_on_a_device_and_under_a_scheduler(
    small: Path, sim: tuple[SimDevice, aggml.Backend]
) -> None:
    device, backend = sim
    said = await fit(small, backend, ctx=256, slots=1)
    assert said.packed == 0  # the device keeps no packed copies
    assert [x.device for x in said.placement] == ["SIM"]
    async with load(small, backend, ctx=256) as model:
        async for _ in model.generate([1, 2, 3], max_tokens=4, stop_ids=[]):
            pass
        memory = model.memory
        free, total = device.memory()
        assert memory.mapped == said.weights
        assert memory.mapped + memory.pages <= memory.total <= (total - free) * 1.1
    async with (
        CPU.backend(n_threads=1) as cpu,
        aggml.Scheduler([backend, cpu], parallel=True) as scheduler,
    ):
        said = await fit(small, scheduler, ctx=256, slots=1)
        assert {x.device for x in said.placement} == {"SIM", "CPU"}
        async with load(small, scheduler, ctx=256) as model:
            async for _ in model.generate([1, 2, 3], max_tokens=4, stop_ids=[]):
                pass
            assert model.memory.mapped == said.weights
            assert model.memory.scratch > 0


async def test_the_placement_is_that_of_load(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    size = sum(t.nbytes for t in aggml.GGUFFile.open(path).tensors.values())
    device = SimDevice("SIM", memory=size // 2)
    async with (
        device.backend() as backend,
        CPU.backend(n_threads=1) as cpu,
        aggml.Scheduler([backend, cpu]) as scheduler,
    ):
        said = await fit(path, scheduler, ctx=256, slots=1)
        async with load(path, scheduler, ctx=256, slots=1) as model:
            weights = model._computer.weights  # type: ignore[attr-defined]
            found = {}
            for name, tensor in weights.items():
                if name.startswith("blk."):
                    at = tensor.buffer.type.device
                    found[int(name.split(".")[1])] = "CPU" if at is None else at.name
        for part in said.placement:
            assert [i for i, at in found.items() if at == part.device] == [
                *range(part.first, part.stop)
            ]


# -- what fits


async def test_pages_are_those_of_all_sequences(small: Path) -> None:
    one = await fit(small, ctx=512, slots=1)
    four = await fit(small, ctx=512, slots=4)
    long = await fit(small, ctx=1024, slots=1)
    assert one.page == PAGE
    assert four.pages == 4 * one.pages
    assert long.pages == 2 * one.pages
    assert one.weights == four.weights == long.weights
    half = await fit(small, ctx=512, slots=1, cache="q8_0")
    assert half.pages * 32 == one.pages * 17


@pytest.mark.long
async def test_less_memory_gives_fewer_slots_and_then_a_shorter_context(small: Path) -> None:
    whole = await fit(small, memory=1 << 34)
    assert whole.slots == 16
    previous = whole
    seen = set()
    for share in range(95, 0, -3):
        bound = whole.total * share // 100
        try:
            found = await fit(small, memory=bound)
        except MemoryShortage as raised:
            error = raised
            break
        assert found.total <= bound
        assert found.ctx <= previous.ctx
        seen.add((found.ctx, found.slots))
        previous = found
    else:
        pytest.fail("a model fits into nothing")
    assert error.memory == bound
    assert error.missing == error.needed - bound > 0
    assert error.ctx is None
    assert len(seen) > 5


async def test_what_the_error_offers_fits_and_no_more(small: Path) -> None:
    least = await fit(small, ctx=1024, slots=2)
    with pytest.raises(
        MemoryShortage, match=r"these would fit: ctx=\d+ with slots=6, or slots="
    ) as e:
        await fit(small, memory=least.total, ctx=2048, slots=6)
    error = e.value
    assert isinstance(error, (aggml.AggmlError, MemoryError))
    assert error.ctx is not None
    assert error.slots is not None
    for name in ("weights", "pages", "scratch", "graphs", f"{error.missing} bytes"):
        assert name in str(error)
    assert (await fit(small, memory=least.total, ctx=error.ctx, slots=6)).slots == 6
    assert (await fit(small, memory=least.total, ctx=2048, slots=error.slots)).ctx == 2048
    with pytest.raises(MemoryShortage):
        await fit(small, memory=least.total, ctx=error.ctx + 256, slots=6)
    with pytest.raises(MemoryShortage):
        await fit(small, memory=least.total, ctx=2048, slots=error.slots + 1)


async def test_the_needed_bytes_suffice_and_one_less_does_not(small: Path) -> None:
    found = await fit(small, ctx=512, slots=3)
    assert (await fit(small, memory=found.total, ctx=512, slots=3)).total == found.total
    with pytest.raises(MemoryShortage) as e:
        await fit(small, memory=found.total - 1, ctx=512, slots=3)
    assert e.value.missing == 1


async def test_a_device_is_not_promised_more_than_it_has(
    small: Path, sim: tuple[SimDevice, aggml.Backend]
) -> None:
    _, backend = sim
    found = await fit(small, backend)
    assert found.memory == available(backend.device)
    assert found.memory is not None
    assert found.total <= found.memory
    with pytest.raises(MemoryShortage, match="the free memory is"):
        await fit(small, backend, ctx=1 << 20, slots=4)
    with pytest.raises(MemoryShortage):
        await fit(small, backend, memory=1 << 40, ctx=1 << 20, slots=4)


@pytest.mark.parametrize("kv_memory", [600_000, 3_000_000, 6_000_000])
async def test_kv_memory_binds_where_caches_are_allocated_whole(
    small: Path, sim: tuple[SimDevice, aggml.Backend], kv_memory: int
) -> None:
    """Counted are the bytes that the device gave out, not those that the engine plans with."""
    device, backend = sim
    before = device.memory()[0]
    async with load(small, backend, kv_memory=kv_memory) as model:
        assert isinstance(model, TextModel)
        taken = before - device.memory()[0] - model.memory.mapped - model.memory.scratch
        assert model.memory.pages <= kv_memory
        assert taken <= kv_memory + 4096
        made = [x async for x in model.generate([1, 2, 3], max_tokens=4, stop_ids=[])]
        assert len(made) == 4
        assert model.memory.pages <= kv_memory
    async with load(small, kv_memory=kv_memory, ctx=4096, slots=2) as model:
        assert model.ctx == 4096  # in host memory sequences take memory as they grow
    with pytest.raises(MemoryShortage, match=rf"kv_memory= is {kv_memory} bytes") as e:
        await load(small, backend, kv_memory=kv_memory, ctx=1024, slots=4)
    assert e.value.ctx is None or e.value.ctx < 1024


@pytest.mark.parametrize("name", ["bert", "speech"])
async def test_models_without_a_choice_say_what_is_missing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    if name == "speech":
        speech_file.write_short(path := tmp_path / "speech.bin")
    else:
        random_models.write(path, name)
    with pytest.raises(MemoryShortage, match="100 bytes") as e:
        await fit(path, memory=100)
    assert e.value.ctx is None
    assert e.value.slots is None


async def test_nothing_is_loaded(small: Path) -> None:
    before = CPU.packed_bytes
    async with CPU.backend(n_threads=1) as backend:
        await fit(small, backend)
        assert backend.memory.size == 0
        assert backend.pending == 0
    assert CPU.packed_bytes == before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"memory": 0}, "memory is 0, must be at least 1"),
    ({"memory": 1.5}, "memory is 1.5"),
    ({"memory": "1G"}, "memory is '1G'"),
    ({"ctx": 0}, "ctx is 0, must be within 1 and 1073741824"),
    ({"ctx": True}, "ctx is True"),
    ({"slots": -1}, "slots is -1, must be within 1 and 65536"),
    ({"slots": [1]}, "slots is"),
    ({"cache": "q5_K"}, "cache is 'q5_K', not one of f16"),
    ({"cache": 3}, "cache is 3"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
async def test_wrong_arguments_are_refused_by_name(
    small: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(aggml.InvalidArgument, match=rf"\[fit\] .*{message}"):
        await fit(small, **options)


async def test_wrong_paths_and_backends_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(aggml.InvalidArgument, match=r"\[fit\] path"):
        await fit(3)  # type: ignore[arg-type]
    with pytest.raises(aggml.models.ModelError):
        await fit(tmp_path / "nothing.gguf")
    with pytest.raises(aggml.InvalidHandle):
        await fit(small, "CPU")  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument):
        await fit(small, cache="f17")


async def test_other_tasks_run_meanwhile(small: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await fit(small)
        tasks.cancel_scope.cancel()
    assert turns > 20


# -- free memory


def group(folder: Path, limit: str, used: int, file: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {file}\n")


def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Path.read_text
    where = {"/proc/self/cgroup": "0::/a/b\n"}
    monkeypatch.setattr(Path, "read_text", lambda self: where.get(str(self)) or told(self))
    assert _bytes_left_in_group(tmp_path) is None
    group(tmp_path / "a" / "b", "max\n", 100, 0)
    assert _bytes_left_in_group(tmp_path) is None
    group(tmp_path / "a", "5000\n", 3000, 500)
    assert _bytes_left_in_group(tmp_path) == 2500
    group(tmp_path / "a" / "b", "9000\n", 8000, 200)
    assert _bytes_left_in_group(tmp_path) == 1200
    group(tmp_path / "a" / "b", "9000\n", 10000, 200)
    assert _bytes_left_in_group(tmp_path) == 0
    monkeypatch.setattr(
        "aggml.models.fitting._bytes_left_in_group",
        lambda root=tmp_path: _bytes_left_in_group(root),
    )
    assert available(CPU) == 0


def test_the_host_keeps_some_memory_for_others() -> None:
    found = available(CPU)
    assert found is not None
    assert 0 < found < CPU.memory()[1]
