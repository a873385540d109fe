"""ik_llama.cpp, as ik-llama-cpp-python carries it, served to another process: prompts and steps.

Its structures differ from llama.cpp's, and some functions have older names. Not here: the
comparison (files.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.child import serve
from benchmarks.peers import llama_decode, module, need

if TYPE_CHECKING:
    from collections.abc import Sequence

UBATCH: Final = 512


class _Served:
    """The functions that the parent calls; they use one model."""

    def __init__(self) -> None:
        self.c: Any = None
        self.one: Any = None
        self.several: Any = None
        self.batch: Any = None
        self._at = 0

    def load(self, path: str, threads: int, sequences: int, ctx: int, packing: str) -> int:
        """Load a model; packing "all" is the option -rtr, "none" keeps weights as stored."""
        need("ik_llama_cpp")
        self.c = c = module("ik_llama_cpp._ctypes_api")
        c.llama_backend_init()
        about = c.llama_model_default_params()
        about.repack_tensors = packing == "all"
        about.use_mmap = packing != "all"
        model = c.llama_model_load_from_file(path.encode(), about)
        if not model:
            raise RuntimeError(f"ik_llama.cpp cannot load {path}")
        how = c.llama_context_default_params()
        how.n_batch = how.n_ubatch = UBATCH
        how.n_threads = how.n_threads_batch = threads
        how.n_ctx = ctx
        self.one = c.llama_init_from_model(model, how)
        how.n_ctx, how.n_seq_max = ctx * sequences, sequences
        how.flash_attn = False  # else several sequences end the process: GGML_ASSERT(S > 0)
        self.several = c.llama_init_from_model(model, how)
        if not self.one or not self.several:
            raise RuntimeError("ik_llama.cpp makes no context")
        self.batch = c.llama_batch_init(UBATCH, 0, 1)
        found: int = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
        return found

    def prompt(self, ids: list[int]) -> float:
        """Process a prompt in an empty context; returns the seconds."""
        self.c.llama_kv_cache_clear(self.one)
        start = time.perf_counter()
        self._decode(self.one, ids, range(len(ids)), [0] * len(ids), 1)
        return time.perf_counter() - start

    def begin(self) -> None:
        """Let steps begin at the first position again."""
        for context in (self.one, self.several):
            self.c.llama_kv_cache_clear(context)
        self._at = 0

    def steps(self, ids: list[list[int]]) -> float:
        """Compute a step for each list of tokens, one token a sequence; returns the seconds."""
        start = time.perf_counter()
        for tokens in ids:
            n = len(tokens)
            self._decode(self.one if n == 1 else self.several, tokens, [self._at] * n, range(n), n)
            self._at += 1
        return time.perf_counter() - start

    def _decode(
        self,
        context: Any,
        ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        last: int,
    ) -> None:
        """Compute tokens and the logits of the ``last`` of them; waits for the result."""
        llama_decode(self.c, context, self.batch, ids, positions, sequences, last)
        self.c.llama_get_logits_ith(context, len(ids) - 1)


if __name__ == "__main__":
    served = _Served()
    serve({name: getattr(served, name) for name in ("load", "prompt", "begin", "steps")})
