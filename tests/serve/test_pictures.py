"""Pictures over HTTP: OpenAI's and Anthropic's messages, and what is refused."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import pytest
from models import picture_files as files
from PIL import Image
from serve.support import GREEDY, serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}"


def base64_of(i: int) -> str:
    found = io.BytesIO()
    Image.fromarray(files.picture(i)).save(found, "PNG")
    return base64.b64encode(found.getvalue()).decode()


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    """The options of a service with a model that sees pictures."""
    text = files.write_text(
        tmp_path / "small.gguf", "gemma3", {"tokenizer.chat_template": TEMPLATE}
    )
    eyes = files.write_eyes(tmp_path / "eyes.gguf", "gemma3")
    return {"models": [text], "mmproj": str(eyes)}


async def test_pictures_come_in_the_messages_of_both_protocols(model: dict[str, Any]) -> None:
    one, other = base64_of(0), base64_of(1)
    openai = [
        {"type": "text", "text": "Which is older?"},
        {"type": "image_url",
         "image_url": {"url": f"data:image/png;base64,{one}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{other}"}},
    ]  # fmt: skip
    anthropic = [
        {"type": "text", "text": "Which is older?"},
        *(
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": x},
             "cache_control": {"type": "ephemeral"}}
            for x in (one, other)
        ),
    ]  # fmt: skip
    async with serving(**model) as (app, client):
        (loaded,) = app.state.service.completers.values()
        prompt = ["user:Which is older?", files.picture(0), files.picture(1), "|"]
        stream = loaded.generate(prompt, max_tokens=6, stop_ids=())
        right = "".join([x.text async for x in stream])
        body = {"messages": [{"role": "user", "content": openai}], "max_tokens": 6, **GREEDY}
        found = (await client.post("/v1/chat/completions", json=body)).json()
        assert found["choices"][0]["message"]["content"] == right
        assert found["usage"]["prompt_tokens"] == stream.prompt_tokens
        body = {"messages": [{"role": "user", "content": anthropic}], "max_tokens": 6, **GREEDY}
        found = (await client.post("/v1/messages", json=body)).json()
        assert found["content"][0]["text"] == right
        body = {"messages": [{"role": "user", "content": anthropic}]}
        found = (await client.post("/v1/messages/count_tokens", json=body)).json()
        assert found["input_tokens"] == stream.prompt_tokens
        assert (await client.get("/props")).json()["modalities"]["vision"]


async def test_wrong_pictures_are_the_client_s_mistake(model: dict[str, Any]) -> None:
    async def refuse(part: dict[str, Any], said: str, path: str = "/v1/chat/completions") -> None:
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert said in answer.text

    def url(text: Any) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": text}}

    async with serving(**model) as (_, client):
        await refuse(url("http://127.0.0.1:9/x.png"), "addresses are never fetched")
        await refuse(url("file:///etc/passwd"), "addresses are never fetched")
        await refuse(url("data:image/png;base64,eA=="), "is no picture that can be read")
        await refuse(url("data:image/png;base64,%"), "is no base64")
        await refuse(url(5), "is 5 (int)")
        await refuse({"type": "input_audio", "input_audio": {}}, "input_audio")
        source = {"type": "url", "url": "http://127.0.0.1:9/x.png"}
        await refuse(
            {"type": "image", "source": source}, "addresses are never fetched", "/v1/messages"
        )
