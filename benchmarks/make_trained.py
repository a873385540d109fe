"""Makes tests/models/trained.json: the results of peers with trained weights.

Greedy tokens of llama.cpp, vectors of transformers, hashes of the arrays that torch reads. Run by
hand (``python -m benchmarks.make_trained``) after ``make .venv/has-weights`` where torch,
transformers and llama-cpp-python are installed. Not here: the comparison
(tests/models/test_trained.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.llamacpp import Session
from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests" / "models"
TEXTS: Final = ("The cat sits on the mat.", "A feline rests upon a rug.", "Stock prices fell.")
WORDS: Final = (
    "The cat sat on the mat.", "How do neural networks learn?",
    "wind turbines make electric power from moving air, and the grid carries it far away", "a",
)  # fmt: skip
PROMPTS: Final = {
    "stories15M": "Once upon a time, there was a little girl named Lily",
    "tinyllama": "The three primary colours are",
}
FOLLOWED: Final = {"stories15M": 64, "tinyllama": 24}


def _greedy(path: Path, text: str, n: int) -> dict[str, Any]:
    """The tokens of a text, and the greedy tokens of llama.cpp after them."""
    session = Session(str(path), threads=2, ctx=512, packing="none")
    vocabulary = session.c.llama_model_get_vocab(session.model)
    raw, room = text.encode(), (session.c.llama_token * 512)()
    count = session.c.llama_tokenize(vocabulary, raw, len(raw), room, len(room), True, False)
    ids = list(room[:count])
    session.decode(ids, range(len(ids)), [0] * len(ids), 1)
    taken: list[int] = []
    gaps: list[float] = []
    for position in range(len(ids), len(ids) + n):
        logits = np.sort(session.logits())
        gaps.append(float(logits[-1] - logits[-2]))
        taken.append(int(np.argmax(session.logits())))
        session.decode(taken[-1:], [position], [0], 1)
    return {"text": text, "ids": ids, "taken": taken, "least_gap": min(gaps)}


def _vectors(folder: Path) -> list[list[float]]:
    """Mean-pooled vectors of length 1."""
    torch, transformers = module("torch"), module("transformers")
    with tempfile.TemporaryDirectory() as place:
        for name in ("config.json", "tokenizer.json"):
            Path(place, name).write_bytes((folder / name).read_bytes())
        weights = (folder / "model.fp16.safetensors").read_bytes()
        Path(place, "model.safetensors").write_bytes(weights)
        model = transformers.BertModel.from_pretrained(place, dtype=torch.float32)
        tokenizer = module("tokenizers").Tokenizer.from_file(str(Path(place, "tokenizer.json")))
    tokenizer.no_padding()
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            out = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0)
            rows.append([round(float(x), 6) for x in out / out.norm()])
    return rows


def _terms(folder: Path) -> list[dict[int, float]]:
    """The weights of words that a head makes which predicts masked words (SPLADE)."""
    torch, transformers = module("torch"), module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for text in WORDS:
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            row = torch.log1p(torch.relu(logits)).max(0).values.tolist()
            found.append({i: round(x, 6) for i, x in enumerate(row) if x > 0})
    return found


def _hashes(found: dict[str, Any]) -> dict[str, int]:
    """A hash of the bytes of each array."""
    return {name: zlib.crc32(np.ascontiguousarray(x).tobytes()) for name, x in found.items()}


def main() -> None:
    sys.path.append(str(TESTS.parent))
    from models import llama2c, weights

    place, found = weights.PLACE, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        stories = llama2c.write(place / "stories15M.data", Path(folder, "stories.gguf"))
        found["stories15M"] = _greedy(stories, PROMPTS["stories15M"], FOLLOWED["stories15M"])
    chat = place / "tinyllama-1.1b-chat-iq2_xxs.gguf"
    found["tinyllama"] = _greedy(chat, PROMPTS["tinyllama"], FOLLOWED["tinyllama"])
    found["minilm"] = {"texts": TEXTS, "vectors": _vectors(place / "minilm")}
    found["splade"] = {"texts": WORDS, "weights": _terms(place / "splade")}
    whisper = module("torch").load(place / "tiny.en.pt", weights_only=True)
    state = {f"model_state_dict.{k}": x.numpy() for k, x in whisper["model_state_dict"].items()}
    found["whisper"] = _hashes(state)
    with module("safetensors").safe_open(place / "silero_vad_16k.safetensors", "np") as file:
        found["silero"] = _hashes({name: file.get_tensor(name) for name in list(file.keys())})
    (TESTS / "trained.json").write_text(json.dumps(found) + "\n", encoding="ascii")
    for name in ("stories15M", "tinyllama"):
        print(name, found[name]["least_gap"], found[name]["taken"][:8])


if __name__ == "__main__":
    main()
