"""Makes vocabularies and the tokens that llama.cpp makes with them, for tests/models.

Run by hand (``python -m benchmarks.make_tokens``) where llama-cpp-python and tokenizers are
installed, when the texts of tests/models/torture.py or the known ways of cutting texts change. Not
here: the comparison (tests/models/test_cuts.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from aggml.models.tokenizers.cuts import CUTS
from benchmarks.peers import module, need

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
TOKENS: Final = 700


def _learned(texts: list[str]) -> dict[str, list[str]]:
    """A byte-level vocabulary; the first token stands for the begin and the end of a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, initial_alphabet=alphabet, special_tokens=["<|end|>"], min_frequency=1
    )
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
    return {"tokens": tokens, "merges": merges}


def _unigram(texts: list[str]) -> dict[str, Any]:
    """A unigram vocabulary: tokens and their scores."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=TOKENS, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    return {"tokens": [x for x, _ in vocabulary], "scores": [float(x) for _, x in vocabulary]}


def _words(texts: list[str]) -> dict[str, Any]:
    """A BPE vocabulary of letters, not bytes, learned from words without the spaces between."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<|end|>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=TOKENS + 256, special_tokens=special)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
    return {"tokens": tokens, "merges": merges}


def _tokens(
    c: Any, path: Path, texts: tuple[str, ...], *, special: bool = False
) -> list[list[int]] | None:
    """The tokens of each text; None if llama.cpp does not know the file's way of cutting texts."""
    about = c.llama_model_default_params()
    about.vocab_only = True
    model = c.llama_model_load_from_file(str(path).encode(), about)
    if not model:
        return None
    vocabulary = c.llama_model_get_vocab(model)
    found = []
    for text in texts:
        raw, room = text.encode(), (c.llama_token * 4096)()
        n = c.llama_tokenize(vocabulary, raw, len(raw), room, len(room), special, False)
        found.append(list(room[:n]))
    c.llama_model_free(model)
    return found


def main() -> None:
    sys.path.append(str(TESTS))
    from models import torture

    need("llama_cpp")
    c = module("llama_cpp")
    c.llama_backend_init()
    made: dict[str, Any] = _learned(list(torture.TEXTS[: torture.LEARNED]))
    (TESTS / "models" / "vocabulary.json").write_text(json.dumps(made) + "\n", encoding="ascii")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in sorted(name for name, cut in CUTS.items() if cut.bytes):
            path = torture.write(Path(folder, "vocabulary.gguf"), pre, **made)
            tokens = _tokens(c, path, torture.TEXTS)
            if tokens is None:
                print(f"llama.cpp does not know {pre}")
            else:
                found[pre] = tokens
        words = _unigram(list(torture.TEXTS))
        path = torture.write_unigram(Path(folder, "unigram.gguf"), **words)
        words["ids"] = _tokens(c, path, torture.TEXTS, special=True)
        gaps: dict[str, Any] = _words(list(torture.TEXTS[: torture.LEARNED]))
        path = torture.write(Path(folder, "words.gguf"), "whitespace", **gaps, model="whitespace")
        gaps["ids"] = _tokens(c, path, torture.TEXTS)
    (TESTS / "models" / "words.json").write_text(json.dumps(gaps) + "\n", encoding="ascii")
    (TESTS / "models" / "unigram.json").write_text(json.dumps(words) + "\n", encoding="ascii")
    same: dict[str, list[str]] = {}
    for pre, tokens in found.items():
        same.setdefault(json.dumps(tokens), []).append(pre)
    recorded = [{"pre": names, "ids": json.loads(tokens)} for tokens, names in same.items()]
    path = TESTS / "models" / "reference_tokens.json"
    path.write_text(json.dumps(recorded) + "\n", encoding="ascii")
    print(f"{len(found)} ways of cutting, {len(recorded)} of them different")


if __name__ == "__main__":
    main()
