"""GGUF: model files. Here: the public names. Not here: files (file.py), headers (header.py)."""

from aggml.gguf.file import GGUFFile
from aggml.gguf.header import GGUFError

__all__ = ["GGUFError", "GGUFFile"]
