"""Runs llama.cpp's server: ``python -m benchmarks.llama_server MODEL THREADS SLOTS CTX [KIND]``.

KIND is "text" (the default), "chat", "vectors" or "ranks". Not here: the clients (service.py,
mixed.py).
"""

from __future__ import annotations

import sys
import threading

from benchmarks.peers import module


def main() -> None:
    """Serve until killed; the address is printed once requests are taken."""
    path, threads, slots, ctx = sys.argv[1], *map(int, sys.argv[2:5])
    kind = sys.argv[5] if len(sys.argv) > 5 else "text"
    x = module("xllamacpp")
    given = x.CommonParams()
    given.model.path = path
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
    given.n_parallel = slots
    given.n_ctx = slots * ctx
    given.port = 0
    if kind in ("vectors", "ranks"):
        given.embedding = True
        given.n_ubatch = given.n_batch  # a text must be in one such batch, as its manual says
    if kind == "ranks":
        given.pooling_type = x.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    given.cache_prompt = kind == "chat"  # else no prompt comes twice; chats begin alike
    server = x.Server(given)
    print(f"on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
