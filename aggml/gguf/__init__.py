"""GGUF: model files. Here: the public names. Not here: the file (file.py), its header (header.py)."""

from aggml.gguf.file import GGUFFile
from aggml.gguf.header import GGUFError

__all__ = ["GGUFError", "GGUFFile"]
