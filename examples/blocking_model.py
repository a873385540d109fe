"""A model in a script and in threads, without ``await``: ``python blocking_model.py FILE``.

Without FILE it writes a small model of random weights, whose text makes no sense.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aggml.models import blocking
from aggml.models.small import write_small


def main(path: Path) -> None:
    """Continue one prompt, then four at the same time."""
    with blocking.load(path, ctx=256, slots=4) as model:
        for token in model.generate("Once upon a time", max_tokens=16):
            print(token.text, end="", flush=True)
        print()

        def answer(prompt: str) -> str:
            return "".join(token.text for token in model.generate(prompt, max_tokens=8))

        with ThreadPoolExecutor(4) as threads:  # they share the steps of the model
            prompts = ["One", "Two", "Three", "Four"]
            for prompt, text in zip(prompts, threads.map(answer, prompts), strict=True):
                print(f"{prompt}: {text!r}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(write_small(Path(folder) / "small.gguf"))
