"""A conversation: ``python examples/chat.py [MODEL]``. `aggml chat MODEL` does more.

Without a file it talks with a small model of random weights, whose answers are noise.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

import aggml
from aggml.models.small import write_small


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = [Path(x) for x in sys.argv[1:2]]
        path = given[0] if given else write_small(Path(folder) / "small.gguf")
        async with aggml.models.load(path, ctx=512) as model:
            messages: list[Any] = [{"role": "user", "content": "Name a planet."}]
            answer = await model.chat(messages, max_tokens=24)
            print(f"{answer.content!r}, {answer.finish_reason}")

            messages += [answer, {"role": "user", "content": "Name another one."}]
            stream = model.chat_stream(messages, max_tokens=24)
            async for delta in stream:
                print(delta.content, end="", flush=True)
            print(f"\nnot computed again: {stream.usage.cached_tokens} tokens")


if __name__ == "__main__":
    anyio.run(main)
