"""Models like T5 give the logits and vectors of llama.cpp, which were recorded.

Not here: models that continue one text (test_architectures.py), encoders like BERT
(test_encoders.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np
import pytest
from models import encoder_decoders as made
from models import random_folders

import aggml
from aggml.models import EncoderDecoderModel, ModelError
from aggml.models.encoder_decoder import buckets_of

RECORDED: Final = Path(__file__).with_name("reference_t5.npz")
DECODING: Final = [kind for kind, (layers, *_) in made.KINDS.items() if layers]


async def opened(folder: Path, kind: str, **changes: Any) -> EncoderDecoderModel:
    model = await aggml.models.load(made.write(folder / f"{kind}.gguf", kind, **changes))
    assert isinstance(model, EncoderDecoderModel)
    return model


def error(got: Any, wanted: Any) -> float:
    return float(np.square(got - wanted).sum() / np.square(wanted).sum())


@pytest.mark.parametrize("kind", DECODING)
async def test_logits_are_those_of_llama_cpp(tmp_path: Path, kind: str) -> None:
    async with await opened(tmp_path, kind) as model:
        with np.load(RECORDED) as recorded:
            pairs = zip(made.texts(), made.decoded(), strict=True)
            for i, (ids, written) in enumerate(pairs):
                got = await model.logits(ids, written)
                assert got.shape == (len(written), model.vocabulary_size)
                assert error(got[-8:], recorded[f"{kind}:{i}"]) < 1e-5
        first = await model.logits(made.texts()[1])
        np.testing.assert_allclose(first, await model.logits(made.texts()[1], [0]))


@pytest.mark.parametrize("pooling", [1, 2, 3, 0])
async def test_vectors_are_those_of_llama_cpp(tmp_path: Path, pooling: int) -> None:
    async with await opened(tmp_path, "t5encoder", pooling_type=pooling) as model:
        every = await model._vectors("test", made.texts())
        with np.load(RECORDED) as recorded:
            for i, vectors in enumerate(every):
                assert error(vectors[-8:], recorded[f"t5encoder:{i}"]) < 1e-5
        multi = await model.embed_multi(["a b", "c"], normalize=True)
        assert [x.shape for x in multi] == [(3, 64), (2, 64)]  # the end of the text counts, too
        np.testing.assert_allclose(np.linalg.norm(multi[0], axis=1), 1, atol=1e-5)
        if pooling == 0:
            with pytest.raises(ModelError, match="use embed_multi"):
                await model.embed(["a"])
            return
        wanted = [{1: x.mean(0), 2: x[0], 3: x[-1]}[pooling] for x in every]
        got = await model.embed_ids(made.texts(), normalize=False)
        np.testing.assert_allclose(got, np.stack(wanted), atol=1e-5)
        unit = await model.embed_ids(made.texts(), dimensions=8)
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
        assert unit.shape == (4, 8)
        with pytest.raises(aggml.Unsupported, match="'t5encoder' has no decoder"):
            await model.logits([3], [0])


async def test_tasks_share_a_model(tmp_path: Path) -> None:
    async with await opened(tmp_path, "t5") as model:
        pairs = [*zip(made.texts(), made.decoded(), strict=True)] * 2
        alone = [await model.logits(*pair) for pair in pairs[:4]]
        found: list[Any] = [None] * len(pairs)

        async def one(i: int) -> None:
            found[i] = await model.logits(*pairs[i])

        async with anyio.create_task_group() as tasks:
            for i in range(len(pairs)):
                tasks.start_soon(one, i)
        for got, wanted in zip(found, alone * 2, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert model.memory.mapped > 0


async def test_what_it_cannot_do_is_said(tmp_path: Path) -> None:
    model = await opened(tmp_path, "t5")
    with pytest.raises(aggml.InvalidArgument, match=r"\[logits\] decoder_ids"):
        await model.logits([3], [])
    with pytest.raises(aggml.InvalidArgument, match=r"\[logits\] ids"):
        await model.logits([320], [0])
    with pytest.raises(ModelError, match="513 tokens, but this model takes at most 512"):
        await model.logits([3], [0] * 513)
    with pytest.raises(aggml.Unsupported, match="does not continue text"):
        model.generate("a")
    with pytest.raises(aggml.Unsupported, match="no rank head"):
        await model.rerank("a", ["b"])
    with pytest.raises(aggml.InvalidArgument, match="names none"):
        await model.embed(["a"], prompt="query")
    await model.aclose()
    with pytest.raises(aggml.InvalidState, match="the model is closed"):
        await model.logits([3], [0])


def test_a_blocking_model_takes_two_texts(tmp_path: Path) -> None:
    path = made.write(tmp_path / "t5.gguf", "t5")
    with aggml.models.blocking.load(path) as model:
        assert isinstance(model, aggml.models.blocking.BlockingEncoderDecoderModel)
        assert model.logits([3, 4], [0, 5]).shape == (2, 320)


def test_distances_have_the_buckets_that_they_should() -> None:
    """By hand, from the paper's rule: 8 buckets, 128 the furthest."""
    both = buckets_of(1, 200, 8, both=True)[0]
    assert both[:4].tolist() == [0, 5, 6, 6]
    assert both[-1] == 7
    assert buckets_of(200, 1, 8, both=True)[:, 0][[0, 1, 2, 199]].tolist() == [0, 1, 2, 3]
    ahead = buckets_of(200, 200, 8, both=False)
    assert ahead[0].tolist() == [0] * 200  # later tokens: the mask hides them
    assert ahead[:4, 0].tolist() == [0, 1, 2, 3]
    assert ahead[199, 0] == 7


def _folder_of(kind: str, folder: Path) -> Path:
    """The weights of a file under the names of Hugging Face."""
    decoders, gated, output, _ = made.KINDS[kind]
    parts = {"attn": "SelfAttention", "cross_attn": "EncDecAttention"}
    tensors = {}
    with aggml.GGUFFile.open(made.write(folder / f"{kind}.gguf", kind)) as file:
        for full, tensor in file.tensors.items():
            name, shape = full.removesuffix(".weight"), tensor.ne[: tensor.ndim][::-1]
            values = file.data(full).view(np.float32).reshape(shape).copy()
            side, _, rest = name.partition(".")
            whole = {"token_embd": "shared", "output": "lm_head"}.get(name)
            stack = {"enc": "encoder", "dec": "decoder"}.get(side)
            if rest == "output_norm":
                whole = f"{stack}.final_layer_norm"
            if whole is None:
                _, layer, part = rest.split(".")
                at = f"{stack}.block.{layer}.layer."
                last = 2 if side == "dec" else 1
                what, _, end = part.rpartition("_")
                if part == "attn_rel_b":
                    whole = f"{at}0.SelfAttention.relative_attention_bias"
                elif part == "ffn_norm":
                    whole = f"{at}{last}.layer_norm"
                elif what in parts:
                    number = [*parts].index(what)
                    of = "layer_norm" if end == "norm" else f"{parts[what]}.{end}"
                    whole = f"{at}{number}.{of}"
                else:
                    of = {"gate": "wi_0", "up": "wi_1" if gated else "wi", "down": "wo"}[end]
                    whole = f"{at}{last}.DenseReluDense.{of}"
            tensors[f"{whole}.weight"] = values
    config = {
        "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
        "n_positions": 512, "relative_attention_num_buckets": made.BUCKETS, "vocab_size": 320,
        "feed_forward_proj": "gated-gelu" if gated else "relu", "layer_norm_epsilon": 1e-6,
        "architectures": ["T5ForConditionalGeneration" if decoders else "T5EncoderModel"],
        "num_decoder_layers": decoders or 2, "decoder_start_token_id": 0,
        "tie_word_embeddings": not output, "is_encoder_decoder": bool(decoders),
    }  # fmt: skip
    return random_folders.save(folder / kind, config, tensors)


@pytest.mark.parametrize("kind", made.KINDS)
async def test_a_folder_is_what_its_gguf_is(tmp_path: Path, kind: str) -> None:
    """But that T5 scales logits whose matrix is that of the embeddings, and llama.cpp does not."""
    layers, _, output, _ = made.KINDS[kind]
    model = await aggml.models.load(_folder_of(kind, tmp_path))
    assert isinstance(model, EncoderDecoderModel)
    async with model:
        assert model.architecture == kind.partition("-")[0]
        with np.load(RECORDED) as recorded:
            for i, (ids, written) in enumerate(zip(made.texts(), made.decoded(), strict=True)):
                wanted = recorded[f"{kind}:{i}"]
                if not layers:
                    (got,) = await model._vectors("test", [ids])
                else:
                    got = await model.logits(ids, written)
                    wanted = wanted if output else wanted / 8
                assert error(got[-8:], wanted) < 1e-5


async def test_a_folder_of_t5_is_refused_for_what_is_not_carried_out(tmp_path: Path) -> None:
    folder = _folder_of("t5encoder", tmp_path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, value in (("feed_forward_proj", "gated-silu"), ("d_ff_other", 3),
                        ("relative_attention_max_distance", 64)):  # fmt: skip
        text = json.dumps({**config, name: value})
        (folder / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=f"config.json has {name}"):
            await aggml.models.load(folder)


@pytest.mark.parametrize("sequences", [[[5], []], np.zeros((2, 0), int)])
async def test_a_sequence_without_a_token_is_refused(tmp_path: Path, sequences: Any) -> None:
    async with await opened(tmp_path, "t5encoder") as model:
        with pytest.raises(
            aggml.InvalidArgument, match=r"^\[embed_ids\] sequences\[\d\] has no tok"
        ):
            await model.embed_ids(sequences)
