"""Continue a text with a model of a GGUF file: ``python examples/continue_text.py MODEL.gguf``.

Without a file it writes a small model of random weights first; its text is noise. generate.py is
the complete program, with sampling options, several sequences and measured speeds.
"""

import sys
import tempfile
from pathlib import Path

import anyio

import aggml
from aggml.models.small import write_small


async def main(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        print(f"{model.architecture}, {model.vocabulary_size} tokens")
        print("Once upon a time", end="")
        async for token in model.generate("Once upon a time", max_tokens=16, temperature=0.0):
            print(token.text, end="", flush=True)
        print()
        ids = model.tokenizer.encode("Once upon a time")
        logits = await model.logits(ids)  # float32, a row for each token
        best = int(logits[-1].argmax())
        print("the most likely next token:", best, repr(model.tokenizer.decode([best])))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        named = Path(sys.argv[1]) if len(sys.argv) > 1 else write_small(Path(folder) / "small.gguf")
        anyio.run(main, named)
