"""Each field of each route with each type of JSON: an answer or a refusal that names the field.

No status is 5xx, and the server answers as before. Not here: bounds of values (test_fields.py),
random requests (tests/fuzz/requests.py).
"""

from __future__ import annotations

import json
import logging
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from models import random_folders, random_models
from models.masked_words import head_of
from serve.support import serving
from serve.test_rank_heads import word_piece

from aggml.models.small import write_small
from aggml.serve.http.app import ENDPOINTS
from aggml.serve.http.fields import target_of
from aggml.serve.http.schema import FORMS, OTHERS, RealtimeEvent, Transcription

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import httpx

VALUES: Final[tuple[Any, ...]] = (
    0, -1, 1.5, 1e300, -(1 << 70), True, "", "x", "\0", [], [0], [-1], [[]], [None], ["x"], [{}],
    {}, {"a": 1}, {"type": "text"}, [{"role": 5}], [{"content": [[]]}], [[[[]]]],
    {"function": {"name": 5}}, [{"type": "function", "function": {"name": ""}}],
)  # fmt: skip
CHAT: Final = {"messages": [{"role": "user", "content": "a"}]}
SHORT: Final = {"options": {"num_predict": 1}, "stream": False}
#: The least body of each route with a body.
LEAST: Final[dict[str, dict[str, Any]]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {**CHAT, "max_tokens": 1},
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "a"},
    "/v1/messages": {**CHAT, "max_tokens": 1},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/embed": {"inputs": "a"},
    "/embed_sparse": {"inputs": "a"},
    "/embedding": {"content": "a"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/score": {"text_1": "a", "text_2": "b"},
    "/classify": {"input": "a"},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/completions": {"prompt": "a", "n_predict": 1},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 1},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [300]},
    "/apply-template": CHAT,
    "/api/chat": {**CHAT, **SHORT},
    "/api/generate": {"prompt": "a", **SHORT},
    "/api/embed": {"input": "a"},
    "/api/show": {"model": "small"},
}
FORM_OF: Final = {x.path: x.form for x in ENDPOINTS if x.form is not None}
KEYED: Final = ("/models/load", "/models/unload")  # answered 403 by a service without keys


def test_every_form_has_a_route_here() -> None:
    elsewhere = (Transcription, RealtimeEvent)  # test_transcriptions.py, test_realtime.py
    paths = {path for path, form in FORM_OF.items() if form not in elsewhere}
    assert {*LEAST, *KEYED} == paths
    assert {*FORM_OF.values()} == {*FORMS}


def reason(answer: httpx.Response) -> tuple[str, str | None]:
    """The message of an error, and the field that it is about, in any protocol's form."""
    error = answer.json()["error"]
    if isinstance(error, str):
        return error, None
    return error["message"], error.get("param")


def values_for(path: str, name: str, *, known: bool, every: bool) -> Sequence[Any]:
    """All values, or a third of them, others for each field; for a name that is no field a few."""
    first = zlib.crc32(f"{path} {name}".encode())
    if known:
        return VALUES if every else VALUES[first % 3 :: 3]
    return VALUES[::5] if every else [VALUES[first % len(VALUES)]]


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", LEAST)
async def test_a_value_of_any_type_is_taken_or_refused_by_name(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, every: bool
) -> None:
    kind, least = FORM_OF[path], LEAST[path]
    words = random_models.words("▁a", "▁b")
    file = write_small(tmp_path / "small.gguf")
    if path in ("/v1/rerank", "/score", "/classify"):
        file = random_models.write(tmp_path / "encoder.gguf", "bert-rank", words)
    if path == "/embed_sparse":
        file = random_folders.save(tmp_path / "terms", *head_of("bert", tied=True))
        word_piece().save(str(file / "tokenizer.json"))
    fields = [x.encode_name for x in msgspec.structs.fields(kind)]
    others = [name for other in OTHERS for name in other.names if not target_of(name, kind)]
    others = [name for name in others if name not in fields]
    usual = 501 if path == "/infill" else 200  # this model has no tokens for gaps
    # A value such as {} takes the limit of an answer away: it goes on until the context is full.
    async with serving(models=[file], ctx=64) as (_, client):
        right = await client.post(path, json=least)
        assert right.status_code == usual, right.text
        with caplog.at_level(logging.WARNING):
            for name in (*fields, *others):
                for value in values_for(path, name, known=name in fields, every=every):
                    body = json.dumps(least | {name: value})
                    answer = await client.post(path, content=body)
                    if name == "timeout" and answer.status_code == 504:
                        continue  # 1.5 s may be too short
                    assert answer.status_code in (usual, 400, 404), (name, value, answer.text)
                    if answer.status_code != 200 and answer.status_code != usual:
                        message, field = reason(answer)
                        assert name in message or field == name, (name, value, message)
        logged = [x.getMessage() for x in caplog.records if x.name == "serve"]
        assert [x for x in logged if "unknown field" not in x] == []
        for body in ("null", "5", "[]", '"x"', "{", "", "\0", "[" * 9000, '{"a":' * 9000):
            answer = await client.post(path, content=body)
            assert answer.status_code == 400
            assert reason(answer)[0]
        again = await client.post(path, json=least)
        assert again.status_code == usual
        assert (await client.get("/health")).status_code == 200
