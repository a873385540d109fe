"""Makes tests/models/reference_embeddings.npz: the vectors of transformers for various sentences.

Run by hand (``python -m benchmarks.make_reference``) where torch and transformers are installed,
when the sentences change; the tests read only the files that it writes. Not here: the comparison
(tests/models/test_minilm.py).
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.peers import model_folder, module, torch_model

MAX_TOKENS = 256
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "models"

LONG = (
    "The river had risen in the night, and by morning the lower fields were a sheet of grey "
    "water, with only the tops of the fence posts to show where the lanes had been. "
)

SENTENCES = [
    "",
    " ",
    "\t\n \r\n",
    "a",
    "A",
    ".",
    "!!!???...",
    "42",
    "3.14159265358979323846264338327950288419716939937510",
    "Hello, world!",
    "hello world",
    "The cat sat on the mat.",
    "A cat was sitting on the rug.",
    "Quarterly revenue grew by twelve percent.",
    "The quick brown fox jumps over the lazy dog.",
    "How do I cancel an asynchronous task without losing the work of others?",
    "def add(a: int, b: int) -> int:\n    return a + b",
    '{"key": [1, 2.5, null, true], "nested": {"x": "y"}}',
    "<html><body><p>It's a page.</p></body></html>",
    "https://example.org/a/very/long/path?with=query&and=more#fragment",
    "ALL CAPITALS SHOUT AT THE READER",
    "Ünïcödé àccénts dïsåppeär",
    "Größe, Straße, Fußgängerübergänge",
    "e\u0301 is e with a combining accent; \u00e9 is one code point",
    "今天天气很好,我们去公园散步吧。",
    "東京は日本の首都です。",
    "한국어 문장도 있습니다.",
    "Сегодня хорошая погода.",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "😀🎉🚀",
    "I ❤️ sentence embeddings 👩‍💻 so much 🏳️‍🌈",
    "zero\u200bwidth\u200dand\ufeffmarks",
    "control\x00characters\x07and\x1bescapes",
    "\u202eright to left override\u202c",
    "private \ue000 use and \U0010ffff the last code point",
    "replacement \ufffd character",
    "x" * 99,
    "x" * 101,
    "y" * 5000,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "word " * 30,
    "again and again " * 20,
    "spam " * 253,
    "spam " * 254,
    "spam " * 255,
    "spam " * 400,
    LONG,
    LONG * 3,
    LONG * 12,
    "天" * 300,
    "[CLS] [SEP] [MASK] [PAD] [UNK]",
    "[PAD]",
    "##ing ##ed suffix pieces",
    " leading and trailing ",
    "tabs\tand\nnewlines\r\nand\u2028separators\u00a0everywhere",
    "½ ⅓ ² ³ ™ © ℃ Ⅳ fi",
    "math: \u2200x\u2208\u211d, x\u00b2 \u2265 0 \u27f9 \u221a(x\u00b2) = |x|",
    "1e-12 0x1F 1_000_000 -7 +8 50% $9.99 €5",
    "What is the capital of France?",
    "Paris is the capital of France.",
]


def embeddings(sentences: list[str]) -> np.ndarray:
    """Normalised mean-pooled embeddings of each sentence alone, (len(sentences), 384) float32."""
    torch = module("torch")
    tokenizer = module("transformers").AutoTokenizer.from_pretrained(model_folder())
    model = torch_model("f32")
    rows = []
    with torch.inference_mode():
        for sentence in sentences:  # one by one: without padding, other sentences have no influence
            tokens = tokenizer(
                sentence, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            rows.append(torch.nn.functional.normalize(mean, dim=1)[0].numpy())
    return np.stack(rows).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the two files go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    made_with = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    made_with["python"] = platform.python_version()
    vectors = embeddings(SENTENCES)
    text = json.dumps(SENTENCES, ensure_ascii=True, indent=1)
    (folder / "reference_sentences.json").write_text(text + "\n", encoding="ascii")
    np.savez_compressed(
        folder / "reference_embeddings.npz",
        embeddings=vectors,
        made_with=np.array(json.dumps(made_with)),
    )
    print(f"{len(SENTENCES)} sentences, made with {made_with}")


if __name__ == "__main__":
    main()
