"""Benchmarks: aggml beside its peers, in the same run. ``python -m benchmarks --help``."""
