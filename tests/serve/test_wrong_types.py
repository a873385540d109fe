"""Each field of each route with each type of JSON: an answer or a refusal that names the field.

No status is 5xx, and the server answers as before. Not here: bounds of values (test_fields.py),
random requests (tests/fuzz/requests.py).
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from models import random_models
from serve.support import serving

from aggml.models.small import write_small
from aggml.serve.http.fields import FORMS, OTHERS
from aggml.serve.http.schema import Chat, Completion, Embeddings, Rerank

if TYPE_CHECKING:
    from pathlib import Path

    from msgspec import Struct

VALUES: Final[tuple[Any, ...]] = (
    0, -1, 1.5, 1e300, -(1 << 70), True, "", "x", "\0", [], [0], [-1], [[]], [None], ["x"], [{}],
    {}, {"a": 1}, {"type": "text"}, [{"role": 5}], [{"content": [[]]}], [[[[]]]],
)  # fmt: skip
ROUTES: Final[dict[str, tuple[type[Struct], dict[str, Any]]]] = {
    "completions": (Completion, {"prompt": "a", "max_tokens": 1}),
    "chat/completions": (
        Chat,
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ),
    "embeddings": (Embeddings, {"input": "a"}),
    "rerank": (Rerank, {"query": "a", "documents": ["b"]}),
}


def test_every_form_has_a_route_here() -> None:
    assert {kind for kind, _ in ROUTES.values()} | {FORMS[-1]} == set(FORMS)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_value_of_any_type_is_taken_or_refused_by_name(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, least = ROUTES[path]
    words = random_models.words("▁a", "▁b")
    file = write_small(tmp_path / "small.gguf")
    if path in ("embeddings", "rerank"):
        layout = "bert" if path == "embeddings" else "bert-rank"
        file = random_models.write(tmp_path / "encoder.gguf", layout, words)
    names = [x.encode_name for x in msgspec.structs.fields(kind)]
    others = [other.names[0] for other in OTHERS if other.names[0] not in names]
    async with serving(models=[file]) as (_, client):
        right = await client.post(f"/v1/{path}", json=least)
        assert right.status_code == 200, right.text
        with caplog.at_level(logging.WARNING):
            for name in (*names, *others):
                for value in VALUES if name in names else VALUES[::5]:
                    body = json.dumps(least | {name: value})
                    answer = await client.post(f"/v1/{path}", content=body)
                    assert answer.status_code in (200, 400, 404), (name, value, answer.text)
                    if answer.status_code != 200:
                        error = answer.json()["error"]
                        assert name in error["message"] or error["param"] == name, (name, value)
        assert [x.getMessage() for x in caplog.records if x.name == "serve"] == []
        for body in ("null", "5", "[]", '"x"', "{", "", "\0", "[" * 9000, '{"a":' * 9000):
            answer = await client.post(f"/v1/{path}", content=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
        again = await client.post(f"/v1/{path}", json=least)
        assert again.status_code == 200
        assert (await client.get("/health")).status_code == 200
