"""Models in blocking code: the same results as awaited, from any thread, with types and docstrings.

Not here: what the methods do (the tests of the asynchronous classes).
"""

from __future__ import annotations

import gc
import inspect
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models, speech_file
from support import child, in_a_thread, in_threads

import aggml
from aggml import InvalidState
from aggml.models import (
    ChatStream,
    EncoderDecoderModel,
    EncoderModel,
    Host,
    Model,
    SpeechModel,
    TextModel,
    TokenStream,
    blocking,
    load,
)
from aggml.models.host import ModelUse
from aggml.models.portal import (
    BlockingObject,
    BlockingStream,
    _portal,
    _portals,
    as_blocking,
    plain,
)
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

ROOT = Path(aggml.__file__).parent.parent
PAIRS = [
    (Model, blocking.BlockingModel),
    (TextModel, blocking.BlockingTextModel),
    (EncoderDecoderModel, blocking.BlockingEncoderDecoderModel),
    (EncoderModel, blocking.BlockingEncoderModel),
    (SpeechModel, blocking.BlockingSpeechModel),
    (TokenStream, blocking.BlockingTokenStream),
    (ChatStream, blocking.BlockingChatStream),
    (Host, blocking.BlockingHost),
    (ModelUse, blocking.BlockingModelUse),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    speech_file.write_short(folder / "speech.bin", 32)
    return {
        "llama": random_models.write(folder / "llama.gguf", "llama"),
        "bert": random_models.write(folder / "bert.gguf", "bert"),
        "speech": folder / "speech.bin",
    }


@pytest.fixture
def model(files: dict[str, Path]) -> Iterator[Any]:
    with blocking.load(files["llama"], ctx=256, slots=2) as opened:
        yield opened


def ids_of(model: Any, prompt: list[int], n: int = 6) -> list[int]:
    return [token.id for token in model.generate(prompt, max_tokens=n, stop_ids=[])]


# -- the same results


def test_conversations_are_answered_without_a_loop(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello!"}]
    with blocking.load(write_small(tmp_path / "small.gguf"), ctx=256) as model:
        whole = model.chat(messages, max_tokens=6, ignore_eos=True)
        stream = model.chat_stream(messages, max_tokens=6, ignore_eos=True)
        assert isinstance(stream, blocking.BlockingChatStream)
        assert "".join(delta.content for delta in stream) == whole.content
        assert (stream.finish_reason, stream.usage.completion_tokens) == ("length", 6)


def test_results_are_those_of_the_asynchronous_model(files: dict[str, Path], model: Any) -> None:
    async def awaited() -> tuple[list[int], Any, Any]:
        async with load(files["llama"], ctx=256) as other:
            made = [t.id async for t in other.generate([1, 2], max_tokens=6, stop_ids=[])]
            return made, await other.logits([1, 2, 3]), await other.embed_ids([[1], [2, 3]])

    made, logits, vectors = anyio.run(awaited)
    assert ids_of(model, [1, 2]) == made
    np.testing.assert_array_equal(model.logits([1, 2, 3]), logits)
    np.testing.assert_array_equal(model.embed_ids([[1], [2, 3]]), vectors)
    assert isinstance(model, blocking.BlockingTextModel)
    assert isinstance(model, blocking.BlockingModel)
    assert (model.ctx, model.slots, model.architecture) == (256, 2, "llama")
    assert model.width == vectors.shape[1]
    assert model.memory.total > 0
    assert "TextModel llama" in repr(model)


def test_encoders_and_models_of_speech(files: dict[str, Path]) -> None:
    with blocking.load(files["bert"]) as bert:
        assert isinstance(bert, blocking.BlockingEncoderModel)
        assert bert.embed_ids([[1, 2]], dimensions=8).shape == (1, 8)
    with blocking.load(files["speech"]) as speech:
        assert isinstance(speech, blocking.BlockingSpeechModel)
        segments = speech.transcribe(np.zeros(1600, np.float32), temperature=0.0)
        assert isinstance(segments, BlockingStream)
        list(segments)
        with speech.transcribe(np.zeros(48000, np.float32), temperature=0.0) as opened:
            next(opened, None)
        assert list(opened) == []
    assert blocking.fit(files["llama"], ctx=256, slots=1).ctx == 256


def test_a_closed_model_and_wrong_arguments_raise_as_always(files: dict[str, Path]) -> None:
    model = blocking.load(files["llama"], ctx=256)
    with pytest.raises(aggml.InvalidArgument, match="max_tokens is -1"):
        model.generate([1], max_tokens=-1)
    with pytest.raises(aggml.Unsupported):
        model.rerank("a", ["b"])
    with pytest.raises(TypeError):
        model.logits()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        _ = model.nothing
    with pytest.raises(AttributeError, match="_secret"):
        _ = model._secret
    model.close()
    model.close()
    assert model.closed
    with pytest.raises(aggml.InvalidState, match="the model is closed"):
        model.logits([1])
    with pytest.raises(aggml.models.ModelError):
        blocking.load(files["llama"].with_name("nothing.gguf"))
    with pytest.raises(aggml.InvalidArgument, match="ctx is 0"):
        blocking.load(files["llama"], ctx=0)


# -- iterators


def test_the_reason_of_the_end_is_told(model: Any) -> None:
    stream = model.generate([1], max_tokens=3, stop_ids=[])
    assert isinstance(stream, blocking.BlockingTokenStream)
    assert stream.finish_reason is None
    assert len(list(stream)) == 3
    assert stream.finish_reason == "length"
    assert next(stream, None) is None
    assert iter(stream) is stream


def test_a_loop_that_is_left_gives_its_slot_back(model: Any) -> None:
    for how in ("dropped", "closed", "with"):
        for _ in range(4):  # there are two slots
            stream = model.generate([1], max_tokens=100, stop_ids=[])
            if how == "with":
                with stream:
                    next(stream)
            else:
                next(stream)
                if how == "closed":
                    stream.close()
            assert how == "dropped" or list(stream) == []
            del stream
    gc.collect()
    in_threads([partial(ids_of, model, [1]) for _ in range(2)])


def test_an_asynchronous_generator_is_closed_when_its_iterator_is() -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[int]:
        try:
            for i in range(10):
                yield i
        finally:
            ended.set()

    for leave in (lambda x: x.close(), lambda _: None):
        ended.clear()
        stream = as_blocking(numbers())
        assert [next(stream), next(stream)] == [0, 1]
        leave(stream)
        del stream
        gc.collect()
        assert ended.wait(30)


# -- threads and loops


def test_any_threads_at_once(model: Any) -> None:
    wanted = {i: ids_of(model, [i, 3]) for i in range(8)}
    found: dict[int, list[int]] = {}

    def one(i: int) -> None:
        for _ in range(3):
            found[i] = ids_of(model, [i, 3])
            assert model.logits([i]).shape == (1, model.vocabulary_size)

    in_threads([partial(one, i) for i in range(8)])
    assert found == wanted
    assert len(_portals) == 1
    assert sum(x.name == "aggml blocking" for x in threading.enumerate()) == 1


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_it_works_in_the_thread_of_a_running_loop(model: Any, loop: str) -> None:
    async def inside() -> list[int]:
        return ids_of(model, [4, 2])

    found: list[list[int]] = []
    in_a_thread(lambda: found.append(anyio.run(inside, backend=loop)))
    assert found == [ids_of(model, [4, 2])]


def test_a_callback_must_not_call_back(files: dict[str, Path], model: Any) -> None:
    errors = []

    def progress(_done: int, _total: int) -> None:
        try:
            model.logits([1])
        except aggml.InvalidState as error:
            errors.append(str(error))

    device = aggml.devices.sim.SimDevice("SIM", memory=64 << 20)
    with (
        device.backend() as backend,
        blocking.load(files["llama"], backend, ctx=256, progress=progress),
    ):
        pass
    assert errors
    assert "would wait for itself" in errors[0]


@pytest.mark.long
def test_ctrl_c_cancels_the_call_and_the_model_stays_usable(files: dict[str, Path]) -> None:
    code = (
        "import os, signal, threading\n"
        "from aggml.models import blocking\n"
        f"with blocking.load({str(files['llama'])!r}, ctx=512) as model:\n"
        "    ids = [t.id for t in model.generate([1], max_tokens=4, stop_ids=[])]\n"
        "    stream = model.generate([1], max_tokens=500, stop_ids=[])\n"
        "    next(stream)\n"
        "    seen = threading.Event()\n"
        "    import anyio\n"
        "    from aggml.models.portal import as_blocking\n"
        "    async def endless():\n"
        "        try:\n"
        "            seen.set()\n"
        "            await anyio.sleep_forever()\n"
        "            yield 1\n"
        "        except BaseException as error:\n"
        "            print(type(error).__name__, flush=True)\n"
        "            raise\n"
        "    def interrupt():\n"
        "        seen.wait()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Thread(target=interrupt).start()\n"
        "    try:\n"
        "        next(as_blocking(endless()))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "    del stream\n"
        "    print(ids == [t.id for t in model.generate([1], max_tokens=4, stop_ids=[])])\n"
    )
    done = subprocess.run(child(code), capture_output=True, text=True)
    assert done.stdout.split() == ["CancelledError", "interrupted", "True"], done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.long
def test_a_program_ends_with_open_models_and_streams(files: dict[str, Path]) -> None:
    code = (
        "from aggml.models import blocking\n"
        f"model = blocking.load({str(files['llama'])!r}, ctx=256)\n"
        "stream = model.generate([1], max_tokens=100, stop_ids=[])\n"
        "print(next(stream).id >= 0)\n"
    )
    done = subprocess.run(child(code), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.long
def test_after_a_fork_objects_of_the_parent_refuse_and_new_ones_work(
    files: dict[str, Path],
) -> None:
    code = (
        "import os\n"
        "from aggml import InvalidState\n"
        "from aggml.models import blocking\n"
        f"path = {str(files['llama'])!r}\n"
        "model = blocking.load(path, ctx=256)\n"
        "stream = model.generate([1], max_tokens=9, stop_ids=[])\n"
        "wanted = next(stream).id\n"
        "if os.fork() == 0:\n"
        "    for call in (lambda: model.logits([1]), lambda: next(stream)):\n"
        "        try:\n"
        "            call()\n"
        "        except InvalidState as error:\n"
        "            print('parent process of a fork' in str(error), flush=True)\n"
        "    with blocking.load(path, ctx=256) as mine:\n"
        "        print(next(mine.generate([1], stop_ids=[])).id == wanted, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(next(stream).id >= 0)\n"
    )
    done = subprocess.run(child(code), capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 4, done.stderr


@pytest.mark.long
def test_importing_starts_no_thread() -> None:
    code = "import threading\nfrom aggml.models import blocking\nprint(threading.active_count())\n"
    done = subprocess.run(child(code), capture_output=True, text=True)
    assert done.stdout.strip() in ("1", "2"), done.stderr  # 2: the watch of this test


# -- several models


def test_a_host_gives_blocking_models_to_any_threads(files: dict[str, Path]) -> None:
    with blocking.load(files["llama"], ctx=64, slots=1) as alone:
        expected = ids_of(alone, [1, 2, 3])
    with blocking.Host(memory=1 << 30) as host:
        host.add("text", files["llama"], ctx=64, slots=1)
        host.add("vectors", files["bert"])
        assert {x.state for x in host.models.values()} == {"unloaded"}

        def work(i: int) -> Any:
            with host.use("vectors" if i % 2 else "text") as model:
                if i % 2:
                    return model.embed_ids([[1, 2, 3]]).shape
                return ids_of(model, [1, 2, 3])

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(work, range(8)))
        assert all(x == expected for x in found[::2])
        assert {x[0] for x in found[1::2]} == {1}
        assert {x.state for x in host.models.values()} == {"loaded"}
        host.unload("text")
        assert host.models["text"].state == "unloaded"
    with pytest.raises(InvalidState, match="closed"):
        host.use("text")


def test_a_thread_that_would_wait_for_its_own_model_is_refused(files: dict[str, Path]) -> None:
    with blocking.Host(memory=1 << 30) as host:
        host.add("one", files["llama"], ctx=64, slots=1)
        with host.use("one") as model:
            bound = model.memory.total
    with blocking.Host(memory=bound * 3 // 2) as host:
        host.add("one", files["llama"], ctx=64, slots=1)
        host.add("two", files["llama"], ctx=64, slots=1)
        with host.use("one"), pytest.raises(InvalidState, match="one"), host.use("two"):
            pass
        with host.use("two") as model:  # "one" gives way now
            assert ids_of(model, [1, 2, 3])


# -- names, types and docstrings


@pytest.mark.parametrize(("of", "made"), PAIRS)
def test_every_public_method_has_a_blocking_one(of: type, made: type) -> None:
    for name, value in inspect.getmembers_static(of):
        if name.startswith("_") or name in ("asend", "athrow"):
            continue
        if not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        own = "close" if name == "aclose" else name
        there = inspect.getattr_static(made, own)
        assert not inspect.iscoroutinefunction(there)
        if inspect.isfunction(value):
            assert inspect.signature(there) == inspect.signature(value)
            assert there.__doc__
            for word in ("await ", "async ", "aclose", "Cancellation:"):
                assert word not in there.__doc__, (name, word)
        if isinstance(value, property):
            assert isinstance(there, property)
            assert there.__doc__
    assert issubclass(made, BlockingObject)
    assert made.__name__ == f"Blocking{of.__name__}"
    assert getattr(blocking, made.__name__) is made


def test_names_are_listed(model: Any) -> None:
    names = dir(model)
    assert {"generate", "close", "memory", "ctx", "slots"} <= set(names)
    assert "aclose" not in names
    assert dir(blocking) == sorted(blocking.__all__)
    assert inspect.signature(blocking.load) == inspect.signature(load)
    assert "blocking" in dir(aggml.models)


def test_docstrings_are_translated() -> None:
    assert plain(None) is None
    text = "``async with load(p) as m:`` ``async for t in m`` await model.embed(x)\nCancellation: a"
    assert plain(text) == "``with load(p) as m:`` ``for t in m`` model.embed(x)\nCtrl-C: a"


def test_the_stub_is_what_the_classes_say() -> None:
    pytest.importorskip("ruff")  # lays the stub out
    stubs = runpy.run_path(str(ROOT / "tools" / "blocking_stubs.py"))
    assert stubs["STUB"].read_text(encoding="utf-8") == stubs["stub"](), (
        "run python tools/blocking_stubs.py"
    )


@pytest.mark.long
def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "from aggml.models import blocking\n"
        "with blocking.load('x') as model:\n"
        "    for token in model.generate('a'):\n"
        "        reveal_type(token.text)\n"
        "    reveal_type(model.embed(['a']).shape)\n"
        "    reveal_type(model.memory.total)\n"
        "    model.embed(3)\n"
        "    model.nothing\n"
        "with blocking.Host(memory=1) as host, host.use('a') as used:\n"
        "    reveal_type(used.memory.total)\n"
    )
    # with the cache of the repository, which `make check-types` has filled
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert 'Revealed type is "str"' in done.stdout or "builtins.str" in done.stdout, done.stdout
    assert "program.py:7: error" in done.stdout
    assert "program.py:4: error" not in done.stdout
    assert "program.py:9: error" not in done.stdout
    assert "program.py:10: error" not in done.stdout


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_while_a_call_is_handed_over_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    ran: list[str] = []
    there = threading.Event()

    async def forever() -> None:
        there.set()
        try:
            await anyio.sleep_forever()
        finally:
            ran.append("ended")

    blocking_call = _portal().call
    portal: Any = _portal()._portal
    start = portal.start_task_soon

    def interrupted(function: Any, *args: Any) -> Any:
        monkeypatch.undo()
        start(function, *args)
        if begun:
            there.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(portal, "start_task_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        blocking_call(forever)
    assert not begun or ran == ["ended"]
    blocking_call(anyio.lowlevel.checkpoint)
    assert not there.is_set() or ran == ["ended"]
