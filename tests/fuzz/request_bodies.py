"""Draws bodies of requests to aggml.serve, and notes which fields of each are wrong.

Here: for each field values that are accepted and values that are refused, as in docs/serve.md. Not
here: asking and what an answer must look like (requests.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import random

__all__ = ["CTX", "FIELDS", "VOCABULARY", "WIDTH", "Body", "broken", "drawn"]

VOCABULARY = 354
CTX = 256
WIDTH = 64
ENCODER = "encoder"  # the name of the model for embeddings
LETTERS = "abc xyz,\n<s>é天\u2028\U0001f600"


class Body(NamedTuple):
    """A request.

    Attributes:
        path: without the leading /v1/.
        fields: by name.
        wrong: names of the fields whose values must be refused.
        status: the expected one: 200 if no field is wrong, 404 if only the model is, else 400.
    """

    path: str
    fields: dict[str, Any]
    wrong: set[str]
    status: int


def text(source: random.Random, most: int = 20) -> str:
    return "".join(source.choices(LETTERS, k=source.randint(1, most)))


def tokens(source: random.Random, most: int = 40) -> list[int]:
    return [source.randrange(3, VOCABULARY) for _ in range(source.randint(1, most))]


def prompt(source: random.Random) -> Any:
    one = (lambda: text(source), lambda: tokens(source))
    kind = source.randrange(6)
    if kind == 0:
        return None
    if kind < 5:
        return one[kind % 2]()
    return [one[kind % 2]() for _ in range(source.randint(1, 3))]


def message(source: random.Random) -> dict[str, Any]:
    parts = [{"type": "text", "text": text(source)} for _ in range(source.randint(0, 2))]
    found: dict[str, Any] = {"role": source.choice(["user", "system", "assistant", "developer"])}
    found["content"] = source.choice([text(source), parts, None])
    if source.random() < 0.2:
        found["name"] = text(source, 5)
    if source.random() < 0.2:
        found |= {"refusal": None, "tool_calls": []}
    return found


def number(low: float, high: float) -> tuple[Any, Any]:
    """Two functions that draw: a value from ``low`` to ``high``; a value that must be refused."""
    return (
        lambda r: r.choice([low, high, r.uniform(low, high)]),
        lambda r: r.choice([low - 1e-3, high + 1e-3, 1e300, -1e300, "1", True, [], {}]),
    )


def count(low: int, high: int, beyond: int) -> tuple[Any, Any]:
    """As `number`, for whole numbers; ``beyond`` is a number above those that are taken."""
    return (
        lambda r: r.choice([low, r.randint(low, high)]),
        lambda r: r.choice([low - 1, beyond, 1 << 70, -(1 << 70), 1.5, "1", False, [], {}]),
    )


def flag() -> tuple[Any, Any]:
    return (lambda r: r.random() < 0.5, lambda r: r.choice([0, 1, "true", [], {}]))


def no(name: str) -> Any:
    """A function that draws a value of a type which the field ``name`` refuses."""
    odd = [7, -1.5, True, {"a": 1}, [[]], [None], [{}], "", [[1, "a"]], {"": []}]
    if name in ("prompt", "stop"):
        odd = [7, True, {"a": 1}, [True], [1.5], [None], [{}]]
    return lambda r: r.choice(odd)


LIMIT = (lambda r: r.randint(4, 8), count(-2, 8, 1 << 31)[1])
GENERATION: dict[str, tuple[Any, Any]] = {
    "temperature": number(-1, 100),
    "top_p": (lambda r: r.choice([1, 1e-6, r.uniform(0.01, 1)]), number(0, 1)[1]),
    "min_p": number(0, 1),
    "top_k": (lambda r: r.randint(-1, 500), count(-1, 9, 1 << 31)[1]),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": number(0.01, 100),
    "logit_bias": (
        lambda r: {
            str(r.randrange(VOCABULARY)): r.uniform(-100, 100) for _ in range(r.randint(0, 9))
        },
        lambda r: r.choice(
            [
                {"a": 1},
                {"-1": 1},
                {str(VOCABULARY): 1},
                {"5": 101},
                {"5": "1"},
                {"1.5": 1},
                [1],
                "5",
                {str(i): 0 for i in range(1025)},
            ]
        ),
    ),
    "n": count(1, 4, 65),
    "seed": (
        lambda r: r.choice([0, -1, 1 << 70, r.getrandbits(40)]),
        lambda r: r.choice([1.5, "1", []]),
    ),
    "stop": (
        lambda r: r.choice([text(r, 3), [text(r, 3) for _ in range(r.randint(0, 4))], ""]),
        no("stop"),
    ),
    "stop_token_ids": (
        lambda r: tokens(r, 5) if r.random() < 0.8 else [],
        lambda r: r.choice([[-1], [VOCABULARY], 5, ["5"], [1.5], [0] * 65]),
    ),
    "min_tokens": count(0, 3, 1 << 21),
    "ignore_eos": flag(),
    "stream": flag(),
    "stream_options": (
        lambda r: r.choice([{}, {"include_usage": True}, {"include_usage": None}]),
        lambda r: r.choice([1, [], {"include_usage": 1}]),
    ),
    "timeout": (lambda r: r.choice([60, 1e9]), lambda r: r.choice([0, -1, 1e10, "1", []])),
    "model": (lambda _: "small", lambda r: r.choice([7, [], {}])),
    "user": (lambda r: r.choice(["me", {"a": [1]}, 7]), None),
    "metadata": (lambda _: {"a": "b"}, None),
    "tools": (lambda _: [], lambda r: r.choice([[{"type": "function"}], {}, 1, "x"])),
    "tool_choice": (lambda _: "none", lambda r: r.choice(["required", {"type": "function"}, 0])),
    "response_format": (
        lambda _: {"type": "text"},
        lambda r: r.choice([{"type": "xml"}, 5, "json"]),
    ),
    "grammar": (lambda _: "", lambda r: r.choice([5, [], {}])),
    "use_beam_search": (lambda _: False, lambda r: r.choice([True, 0, "no"])),
    "mirostat": (lambda _: 0, lambda r: r.choice([3, False, "0"])),
}
FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "completions": GENERATION | {
        "prompt": (prompt, no("prompt")),
        "max_tokens": LIMIT,
        "logprobs": count(0, 20, 21),
        "echo": (lambda _: False, lambda r: r.choice([0, "x"])),
        "suffix": (lambda _: "", lambda r: r.choice(["x", 1, False])),
    },
    "chat/completions": GENERATION | {
        "messages": (
            lambda r: [message(r) for _ in range(r.randint(1, 3))],
            lambda r: r.choice([
                [], 7, "hello", {}, [{}], [{"role": 5}], [{"content": "a"}], ["a"],
                [{"role": "user", "content": 5}],
                [{"role": "anything", "content": "a"}],
                [{"role": "user", "content": [{"type": "image_url"}]}],
                [{"role": "assistant", "tool_calls": [{"id": 1}]}],
            ]),
        ),
        "max_tokens": LIMIT,
        "max_completion_tokens": LIMIT,
        "logprobs": flag(),
        "functions": (lambda _: [], lambda _: [{"name": "f"}]),
    },
    "embeddings": {
        "input": (
            lambda r: r.choice([text(r), [text(r) for _ in range(r.randint(1, 4))]]),
            lambda r: r.choice([5, [], {}, [None], True, [True], ["a", None]]),
        ),
        "dimensions": count(1, WIDTH, WIDTH + 1),
        "encoding_format": (
            lambda r: r.choice(["float", "base64"]), lambda r: r.choice(["hex", 1, []]),
        ),
        "model": (lambda _: ENCODER, lambda r: r.choice([7, [], {}])),
        "timeout": GENERATION["timeout"],
        "user": GENERATION["user"],
    },
}  # fmt: skip
NEEDED = {"completions": "prompt", "chat/completions": "messages", "embeddings": "input"}


def drawn(source: random.Random) -> Body:
    """Draw a request; two thirds of them have nothing wrong."""
    path = source.choice(list(FIELDS))
    table, needed = FIELDS[path], NEEDED[path]
    names = {needed, *source.sample(sorted(table), source.randint(0, min(8, len(table))))}
    if path != "embeddings":
        names.add("max_tokens")
    fields: dict[str, Any] = {}
    wrong: set[str] = set()
    for name in sorted(names):
        taken, refused = table[name]
        if refused is not None and source.random() < 0.4 / len(names):
            fields[name] = refused(source)
            wrong.add(name)
        elif name not in (needed, "max_tokens") and source.random() < 0.1:
            fields[name] = None
        else:
            fields[name] = taken(source)
    if source.random() < 0.05:
        del fields[needed]
        wrong = (wrong - {needed}) | {needed}
    if source.random() < 0.05:
        name = text(source, 6) + "?"
        fields[name] = source.choice([None, 1, "x", [], {}])  # ignored, and told
    if path == "chat/completions" and source.random() < 0.2:
        best = source.randint(1, 20)
        fields["top_logprobs"] = best
        if fields.get("logprobs") is not True:
            wrong.add("top_logprobs")
    _check_together(path, fields, wrong, source)
    if path != "embeddings" and "stream" not in wrong and source.random() < 0.4:
        fields["stream"] = True
    if fields.get("stream_options") is not None and not fields.get("stream"):
        wrong.add("stream_options")
    status = 400 if wrong else 200
    if source.random() < 0.05:
        fields["model"] = source.choice(["gpt-9", "", "small-random-llama"])
        wrong, status = wrong | {"model"}, 400 if wrong - {"model"} else 404
    items = list(fields.items())
    source.shuffle(items)
    return Body(path, dict(items), wrong, status)


def _check_together(
    path: str, fields: dict[str, Any], wrong: set[str], source: random.Random
) -> None:
    """Note fields in ``wrong`` that are wrong only in combination with another field."""
    if path == "completions" and source.random() < 0.2:
        fields["best_of"] = source.choice([None, 1, 2, fields.get("n")])
        if fields["best_of"] not in (None, fields.get("n") or 1):
            wrong.add("best_of")
    least, most = fields.get("min_tokens"), fields.get("max_completion_tokens")
    most = fields.get("max_tokens") if most is None else most
    if isinstance(least, int) and isinstance(most, int) and least > most:
        wrong.add("min_tokens")


def broken(source: random.Random) -> tuple[str, bytes]:
    """A path, and the bytes of a request of which some were removed, inserted or replaced."""
    body = drawn(source)
    data = bytearray(json.dumps(body.fields).encode())
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0:
                data[at : at + source.randint(1, 9)] = b""
            case 1:
                data[at:at] = bytes(source.choices(b'{}[]",:0-e\\\x00\xff', k=source.randint(1, 5)))
            case 2:
                del data[at:]
            case _:
                data[at:at] = source.choice([b"[" * 3000, b'{"a":' * 500, b"1e999", b"\\ud800"])
        if not data:
            break
    return body.path, bytes(data)
