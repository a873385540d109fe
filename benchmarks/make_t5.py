"""Makes tests/models/reference_t5.npz: what llama.cpp computes of models like T5.

The vectors of an encoder's tokens, and the logits after each decoded token, of random weights. Run
by hand (``python -m benchmarks.make_t5``) where llama-cpp-python is installed. Not here: the
comparison (tests/models/test_t5.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers import module

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
CTX: Final = 512


def _batch(c: Any, ids: list[int]) -> Any:
    batch = c.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    return batch


def recorded(path: str, ids: list[int], written: list[int] | None) -> np.ndarray[Any, Any]:
    """The logits after each token of ``written``; if it is None, the encoder's vectors."""
    c: Any = module("llama_cpp")
    c.llama_backend_init()
    about = c.llama_model_default_params()
    about.use_extra_bufts = False
    model = c.llama_model_load_from_file(path.encode(), about)
    more = c.llama_context_default_params()
    more.n_ctx = more.n_batch = more.n_ubatch = CTX
    more.n_threads = more.n_threads_batch = 1
    more.embeddings, more.pooling_type = written is None, 0
    context = c.llama_init_from_model(model, more)
    assert c.llama_encode(context, _batch(c, ids)) == 0
    if written is None:
        found = c.llama_get_embeddings(context)
        shape = len(ids), c.llama_model_n_embd(model)
    else:
        assert c.llama_decode(context, _batch(c, written)) == 0
        found = c.llama_get_logits(context)
        shape = len(written), c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    array = np.ctypeslib.as_array(found, shape).astype(np.float32).copy()
    c.llama_free(context)
    c.llama_model_free(model)
    return array


def main() -> None:
    sys.path.append(str(TESTS))
    from models import encoder_decoders as made

    arrays: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, (decoders, *_) in made.KINDS.items():
            path = str(made.write(Path(folder, f"{kind}.gguf"), kind))
            for i, (ids, written) in enumerate(zip(made.texts(), made.decoded(), strict=True)):
                found = recorded(path, ids, written if decoders else None)
                arrays[f"{kind}:{i}"] = found[-8:]
    np.savez_compressed(TESTS / "models" / "reference_t5.npz", **arrays)


if __name__ == "__main__":
    main()
