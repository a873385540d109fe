"""Caches: what layers keep of sequences, as descriptions (room.py) and as tensors (caches.py).

Keys and values: which rows a step writes and sees (rows.py), memory in pages (paging.py, huge.py),
which of them a failed step left unwritten (written.py). Recurrent
states: how far each has come (reached.py). Out of the caches: snapshots (snapshots.py), beginnings
of prompts that are stored (prefixes.py, page_memory.py).
"""
