"""Models that the programs of this folder run: llama, MiniLM, and what both need around them.

Here: the architectures (llama/, minilm/), tokenizers (vocabulary.py), generating.py, the
choice of the next token (sampling.py, adjusting.py), a paged cache (paging.py), batches of requests
(batching.py). This is a library: the programs beside this folder import it as ``models``.
"""
