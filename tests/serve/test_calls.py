"""A call that is required comes in every protocol's form, whole and streamed, and fits its schema.

Not here: how models write calls (tests/models/test_tools.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from serve.support import events, serving

from aggml.models.small import write_small

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("llguidance")
PROPERTIES = {"x": {"type": "integer", "minimum": 0, "maximum": 9}}
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": PROPERTIES, "required": ["x"], "additionalProperties": False,
}  # fmt: skip
HELLO = [{"role": "user", "content": "hi"}]


def fits(arguments: dict[str, Any]) -> bool:
    return set(arguments) == {"x"} and arguments["x"] in range(10)


@pytest.mark.long
async def test_a_required_call_comes_in_every_protocol_s_form(tmp_path: Path) -> None:
    file = write_small(tmp_path / "small.gguf")
    function = {"name": "get", "description": "d", "parameters": SCHEMA}
    chat = {"messages": HELLO, "tools": [{"type": "function", "function": function}],
            "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}  # fmt: skip
    anthropic = {"messages": HELLO, "tools": [{"name": "get", "input_schema": SCHEMA}],
                 "max_tokens": 300, "temperature": 0,
                 "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}  # fmt: skip
    response = {"input": "hi", "tools": [{"type": "function", **function}],
                "tool_choice": "required", "parallel_tool_calls": False,
                "temperature": 0}  # fmt: skip
    async with serving(models=[file]) as (_, client):
        choice = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]
        (call, *_) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"]["name"] == "get"
        assert fits(json.loads(call["function"]["arguments"]))

        answer = await client.post("/v1/chat/completions", json=chat | {"stream": True})
        deltas = [x["choices"][0]["delta"] for x in await events(answer)]
        pieces = [y for x in deltas for y in x.get("tool_calls", ()) if y["index"] == 0]
        assert {len(x.get("tool_calls", [None])) for x in deltas} == {1}
        assert [bool(x.get("id")) for x in pieces] == [True] + [False] * (len(pieces) - 1)
        assert fits(json.loads("".join(x["function"]["arguments"] for x in pieces)))

        found = (await client.post("/v1/messages", json=anthropic)).json()
        assert found["stop_reason"] == "tool_use"
        assert fits(found["content"][0]["input"])

        items = (await client.post("/v1/responses", json=response)).json()["output"]
        assert items[0]["type"] == "function_call"
        assert fits(json.loads(items[0]["arguments"]))
