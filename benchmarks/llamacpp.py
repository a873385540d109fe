"""llama.cpp of llama-cpp-python, called from another process: prompts, steps, logits.

Not here: the comparison (generation.py, embeddings.py).
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.child import serve
from benchmarks.ggml import GGML
from benchmarks.peers import llama_decode, module, need

if TYPE_CHECKING:
    from collections.abc import Sequence

MATRICES: Final = rb"(attn_(q|k|v|output)|ffn_(gate|up|down)|^output)\.weight"
#: By name: seconds that pass, or those that the process computes.
CLOCKS: Final = {"perf_counter": time.perf_counter, "process_time": time.process_time}
PACKINGS: Final = ("all", "CPU_REPACK", "none")
"""How weights may be packed anew: as llama.cpp chooses; not for AMX; not at all."""


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Session:
    """A model and a context.

    Args:
        path: a GGUF file.
        threads: how many.
        sequences: the most sequences.
        ctx: positions of each sequence.
        packing: one of PACKINGS.
        embeddings: pooled vectors instead of logits; attention is not causal.
        pooling: llama.cpp's number of a way of pooling; by default the mean.
    """

    def __init__(
        self,
        path: str,
        threads: int,
        sequences: int = 1,
        ctx: int = 1024,
        packing: str = "all",
        *,
        embeddings: bool = False,
        pooling: int | None = None,
        batch: int = 512,
    ) -> None:
        need("llama_cpp")
        self.c = c = module("llama_cpp")
        c.llama_backend_init()
        about = c.llama_model_default_params()
        about.use_extra_bufts = packing != "none"
        if packing == "CPU_REPACK":
            self._overrides = _repacked()
            about.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        self.model = c.llama_model_load_from_file(path.encode(), about)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        how = c.llama_context_default_params()
        how.n_ctx, how.n_seq_max = ctx * sequences, sequences
        how.n_batch = how.n_ubatch = batch
        how.n_threads = how.n_threads_batch = threads
        if embeddings:
            how.embeddings = True
            how.pooling_type = c.LLAMA_POOLING_TYPE_MEAN if pooling is None else pooling
        self.context = c.llama_init_from_model(self.model, how)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.batch = c.llama_batch_init(max(batch, sequences), 0, 1)
        self.vocabulary: int = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))

    def clear(self) -> None:
        """Forget all sequences."""
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), False)

    def decode(
        self, ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int], last: int
    ) -> None:
        """Compute tokens, and the logits of the ``last`` of them."""
        llama_decode(self.c, self.context, self.batch, ids, positions, sequences, last)

    def logits(self, row: int = -1) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The logits of the last computed token, or of the one at ``row`` of the batch."""
        found = self.c.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(found, shape=(self.vocabulary,)).copy()


def _repacked() -> Any:
    """Overrides that send the matrices to the buffers that interleave rows."""
    g = GGML()
    for buffer_type in g.extra_buffer_types(g.cpu_init()):
        if g.buft_name(buffer_type) == b"CPU_REPACK":
            return (_Override * 2)(_Override(MATRICES, buffer_type), _Override(None, None))
    raise RuntimeError("this llama.cpp does not repack")


class _Served:
    """The functions that the parent calls; one session at a time."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._at = 0
        self._clock = time.perf_counter

    @property
    def session(self) -> Session:
        if self._session is None:
            raise RuntimeError("no model is loaded")
        return self._session

    def load(self, path: str, threads: int, sequences: int, ctx: int, packing: str) -> int:
        self._session = Session(path, threads, sequences, ctx, packing)
        return self._session.vocabulary

    def count(self, clock: str) -> None:
        """Measure with one of CLOCKS from now on."""
        self._clock = CLOCKS[clock]

    def prompt(self, ids: list[int]) -> float:
        """Process a prompt in an empty context; returns the seconds."""
        self.session.clear()
        start = self._clock()
        self.session.decode(ids, range(len(ids)), [0] * len(ids), 1)
        self.session.c.llama_synchronize(self.session.context)
        return self._clock() - start

    def begin(self) -> None:
        """Let steps begin at the first position again."""
        self.session.clear()
        self._at = 0

    def steps(self, ids: list[list[int]]) -> float:
        """Compute a step for each list of tokens, one token a sequence; returns the seconds."""
        session = self.session
        start = self._clock()
        for tokens in ids:
            n = len(tokens)
            session.decode(tokens, [self._at] * n, range(n), n)
            session.c.llama_synchronize(session.context)
            self._at += 1
        return self._clock() - start

    def embedder(self, path: str, threads: int, sequences: int, batch: int, packing: str) -> None:
        """Load a model for batches of so many sequences, which have ``batch`` tokens in all."""
        each = batch // sequences
        self._session = Session(
            path, threads, sequences, each, packing, embeddings=True, batch=batch
        )

    def embed(self, ids: list[list[int]], at_once: int) -> tuple[float, list[list[float]]]:
        """Seconds and normalised vectors, ``at_once`` sequences in a batch."""
        session, found = self.session, []
        start = time.perf_counter()
        for at in range(0, len(ids), at_once):
            some = ids[at : at + at_once]
            tokens = [x for row in some for x in row]
            positions = [i for row in some for i in range(len(row))]
            sequences = [i for i, row in enumerate(some) for _ in row]
            session.clear()
            session.decode(tokens, positions, sequences, len(tokens))
            width = session.c.llama_model_n_embd(session.model)
            for i in range(len(some)):
                vector = session.c.llama_get_embeddings_seq(session.context, i)
                found.append(np.ctypeslib.as_array(vector, shape=(width,)).copy())
        vectors = np.stack(found)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return time.perf_counter() - start, vectors.tolist()


if __name__ == "__main__":
    served = _Served()
    names = ("load", "count", "prompt", "begin", "steps", "embedder", "embed")
    serve({name: getattr(served, name) for name in names})
