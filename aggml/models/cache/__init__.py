"""Caches of keys and values: which rows are written and seen (rows.py), in pages (paging.py)."""
