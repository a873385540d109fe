"""Rerankers on decoders: scores beside the logits of "yes" and "no", texts of pairs, folders.

Not here: rank heads of encoders (test_encoders.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import random_folders, random_models
from models.layout import VOCABULARY, WIDTH

import aggml
from aggml.models import ModelError, TextModel, rank
from aggml.models.rank_head import RankHead

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.tokenizers import Vocabulary

WORDS = ("yes", "no", "q", "d", " ")
SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = "<|im_start|>q {query}<|im_end|><|im_start|>d {document}<|im_end|>"


def byte_letters() -> list[str]:
    """The characters by which byte-level vocabularies write the 256 bytes (GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    more = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(more)) for b in range(256)]


def vocabulary(size: int = VOCABULARY) -> dict[str, Any]:
    """A byte-level vocabulary with the tokens "yes" and "no" and two control tokens."""
    pieces = [*byte_letters(), "ye", "yes", "no", *SPECIAL]
    pieces += [f"unused{i}" for i in range(size - len(pieces))]
    kinds = [3 if x in SPECIAL else 5 if x.startswith("unused") else 1 for x in pieces]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["y e", "ye s", "n o"],
        "tokenizer.ggml.eos_token_id": pieces.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def write_reranker(path: Path, *, template: str | None = TEMPLATE, rows: Any = None) -> Path:
    """A file of qwen3 whose rank head is the rows of "yes" and "no" of its embeddings."""
    known = vocabulary()
    pieces = known["tokenizer.ggml.tokens"]
    weights = random_models.weights("qwen3")
    with aggml.GGUFWriter(path) as writer:
        for key, value in random_models.metadata_of("qwen3").items():
            writer.add(key, value)
        for key, value in known.items():
            writer.add(key, value)
        writer.add("qwen3.pooling_type", 4)
        writer.add("qwen3.classifier.output_labels", ["yes", "no"])
        if template is not None:
            writer.add("tokenizer.chat_template.rerank", template)
        for name, values in weights.items():
            writer.add_tensor(name, values)
        table = weights["token_embd.weight"]
        head = table[[pieces.index("yes"), pieces.index("no")]] if rows is None else rows
        writer.add_tensor("cls.output.weight", np.ascontiguousarray(head))
    return path


def expected(logits: Any, words: Vocabulary) -> float:
    """The probability of "yes" among the two, from the logits after the last token."""
    yes, no = (words.encode(x, special=False) for x in ("yes", "no"))
    assert len(yes) == len(no) == 1
    pair = np.array([logits[-1][yes[0]], logits[-1][no[0]]], np.float64)
    powers = np.exp(pair - pair.max())
    return float(powers[0] / powers.sum())


async def test_the_score_is_the_probability_of_yes(tmp_path: Path) -> None:
    documents = ["d", "yes no", "no " * 40, "<|im_end|>"]
    async with await aggml.models.load(write_reranker(tmp_path / "a.gguf"), ctx=256) as model:
        assert isinstance(model, TextModel)
        assert model.ranks
        found = await model.rerank("q?", documents, priority=2, deadline=600)
        head = model._head
        assert head is not None
        for score, document in zip(found, documents, strict=True):
            ids = head.encode(model.tokenizer, "q?", document, model.ctx)
            assert score == pytest.approx(expected(await model.logits(ids), model.tokenizer), 1e-4)
        assert (await model.rerank("q", [])).shape == (0,)
        with pytest.raises(aggml.InvalidArgument, match="documents"):
            await model.rerank("q", "a text")
        with pytest.raises(aggml.Unsupported, match="scores"):
            await model.embed(["a"])
        many = await model.embed_multi(["yes", "no d"], normalize=True)
    assert [x.shape[1] for x in many] == [model.width] * 2
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(many), axis=1), 1, rtol=1e-5)


async def test_a_name_of_a_control_token_in_a_document_is_text(tmp_path: Path) -> None:
    async with await aggml.models.load(write_reranker(tmp_path / "a.gguf"), ctx=256) as model:
        assert isinstance(model, TextModel)
        head, words = model._head, model.tokenizer
        assert head is not None
        end = words.encode("<|im_end|>", special=False)
        ids = head.encode(words, "q {document}", "d<|im_end|>{query}", 256)
        assert ids.count(end[0]) == 2  # those of the template
        text = "<|im_start|>q q {document}<|im_end|><|im_start|>d d<|im_end|>{query}<|im_end|>"
        assert "".join(words.bytes_of(x).decode() for x in ids) == text.replace(
            "<|im_start|>", ""
        ).replace("{document}<|im_end|>", "{document}").removesuffix("<|im_end|>")


async def test_a_long_document_is_cut_and_the_end_of_the_template_stays(tmp_path: Path) -> None:
    async with await aggml.models.load(write_reranker(tmp_path / "a.gguf"), ctx=256) as model:
        assert isinstance(model, TextModel)
        head, words = model._head, model.tokenizer
        assert head is not None
        long = "".join("abcdefgh"[i % 8] for i in range(600))
        ids = head.encode(words, "q", long, 256)
        assert len(ids) == 256
        assert ids[-1] == words.encode("<|im_end|>", special=False)[0]
        found = await model.rerank("q", [long, "é" * 600])
        assert np.all(np.isfinite(found))
        with pytest.raises(ModelError, match="do not fit"):
            await model.rerank("q" * 300, ["d"])


async def test_one_row_gives_its_number_as_it_is(tmp_path: Path) -> None:
    rows = np.linspace(-1, 1, WIDTH, dtype=np.float32)[None]
    path = write_reranker(tmp_path / "a.gguf", template=None, rows=rows)
    async with await aggml.models.load(path, ctx=256) as model:
        assert isinstance(model, TextModel)
        (score,) = await model.rerank("q", ["d"])
        words = model.tokenizer
        pair = [*words.encode("q", special=False), *words.encode("d", special=False)]
        states = await model._arrays("test", [pair], "hidden")
        assert score == pytest.approx(float(rows[0] @ states[0][-1]), 1e-5)


def test_a_bias_is_added() -> None:
    head = RankHead(np.eye(2, 3, dtype=np.float32), np.array([1, 2], np.float32), False, None)
    assert head.score(np.array([5, 6, 7], np.float32)) == 6.0
    both = RankHead(np.eye(2, 3, dtype=np.float32), np.array([1, 0], np.float32), True, None)
    assert both.score(np.array([5, 6, 7], np.float32)) == pytest.approx(0.5)


# -- folders


def write_folder(folder: Path, name: str = "Qwen3-Reranker-tiny") -> Path:
    """A folder of a causal model, with a tokenizer that has "yes" and "no"."""
    case = random_folders.cases()["qwen3"]
    path = random_folders.write(folder / name, "qwen3")
    config = dict(case["config"])
    pieces = [*byte_letters(), "ye", "yes", "no"]
    known = {piece: i for i, piece in enumerate(pieces)}
    config["vocab_size"] = case["tensors"]["model.embed_tokens.weight"][0]
    added = [
        {
            "id": len(pieces) + i, "content": x, "special": True, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        }
        for i, x in enumerate(SPECIAL)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": known, "merges": ["y e", "ye s", "n o"],
        },
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return path


@pytest.mark.parametrize("told", ["name", "readme", "module"])
async def test_a_folder_of_qwen3_reranker_ranks(tmp_path: Path, told: str) -> None:
    path = write_folder(tmp_path, "Qwen3-Reranker-tiny" if told == "name" else "model")
    if told == "readme":
        (path / "README.md").write_text("---\nx: y\n---\n# Qwen3-Reranker-0.6B\n", encoding="utf-8")
    if told == "module":
        kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
        modules = [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_LogitScore", "type": kind},
        ]
        (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
        (path / "1_LogitScore").mkdir()
        ids = {"true_token_id": 257, "false_token_id": 258}
        (path / "1_LogitScore" / "config.json").write_text(json.dumps(ids), encoding="utf-8")
    async with await aggml.models.load(path, ctx=1024) as model:
        assert isinstance(model, TextModel)
        (score,) = await model.rerank("what is it?", ["a thing"])
        head = model._head
        assert head is not None
        assert head.template is not None
        assert "<Document>: {document}<|im_end|>" in head.template
        ids_of = head.encode(model.tokenizer, "what is it?", "a thing", model.ctx)
        assert score == pytest.approx(expected(await model.logits(ids_of), model.tokenizer), 1e-4)
        written = await aggml.models.convert(path, tmp_path / "made.gguf")
        del written
    async with await aggml.models.load(tmp_path / "made.gguf", ctx=1024) as again:
        np.testing.assert_allclose(await again.rerank("what is it?", ["a thing"]), score, 1e-5)


async def test_a_folder_that_is_no_reranker_does_not_rank(tmp_path: Path) -> None:
    async with await aggml.models.load(write_folder(tmp_path, "model"), ctx=256) as model:
        with pytest.raises(aggml.Unsupported, match="rank head"):
            await model.rerank("q", ["d"])


async def test_a_folder_of_sequence_classification_has_its_own_matrix(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "model")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    width = tensors["model.norm.weight"].shape[0]
    tensors["score.weight"] = random_folders.values("qwen3", "score.weight", (1, width))
    tensors.pop("lm_head.weight", None)
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    async with await aggml.models.load(path, ctx=256) as model:
        assert isinstance(model, TextModel)
        (score,) = await model.rerank("q", ["d"])
        pair = model.tokenizer.encode("q", special=False) + model.tokenizer.encode(
            "d", special=False
        )
        states = await model._arrays("test", [pair], "hidden")
    assert score == pytest.approx(float(tensors["score.weight"][0] @ states[0][-1]), 1e-4)


async def test_tokens_of_a_module_must_exist(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "model")
    modules = [{"idx": 1, "path": "1_LogitScore", "type": "x.LogitScore"}]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (path / "1_LogitScore").mkdir()
    wrong = {"true_token_id": 10**6, "false_token_id": 258}
    (path / "1_LogitScore" / "config.json").write_text(json.dumps(wrong), encoding="utf-8")
    with pytest.raises(ModelError, match="true_token_id = 1000000"):
        await aggml.models.load(path)


# -- prompts


async def test_a_folder_of_a_decoder_names_prompts(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "model")
    told = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(told), encoding="utf-8")
    async with await aggml.models.load(path, ctx=256) as model:
        assert model.prompts == {"query": "q: ", "document": ""}
        assert isinstance(model, TextModel)
        found = await model.embed(["yes"], prompt="query")
        np.testing.assert_allclose(found, await model.embed(["q: yes"]), atol=1e-5)
        assert not np.allclose(found, await model.embed(["yes"], prompt="document"), atol=1e-3)
        with pytest.raises(aggml.InvalidArgument, match="'query', 'document'"):
            await model.embed(["yes"], prompt="passage")


def test_documents_are_ranked_whatever_their_scores() -> None:
    nan, inf = float("nan"), float("inf")
    scores = [0.1, nan, 0.5, -inf, nan, 0.5, inf]
    assert [x.index for x in rank(scores)] == [6, 2, 5, 0, 3, 1, 4]
    assert [x.index for x in rank(np.array(scores, np.float32), 2)] == [6, 2]
    assert rank(scores, 0) == []
    assert rank([], 5) == []
    for most in (-1, 1.5, "2"):
        with pytest.raises(aggml.InvalidArgument, match=r"^\[rank\] most is "):
            rank(scores, most)  # type: ignore[arg-type]
    for wrong in (None, 5, ["a"], [None], [1j]):
        with pytest.raises(aggml.InvalidArgument, match=r"^\[rank\] scores are "):
            rank(wrong)  # type: ignore[arg-type]
