"""What layers keep of sequences: values that say it (room.py), and their memory (caches.py).

Keys and values: which rows are written and seen (rows.py), in pages (paging.py,
huge.py). States: how far
each has come (reached.py).
"""
