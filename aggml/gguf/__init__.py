"""GGUF: model files. Here: the public names. Not here: reading (file.py), writing (writer.py)."""

from aggml.gguf.file import GGUFFile
from aggml.gguf.header import GGUFError
from aggml.gguf.writer import GGUFWriter

__all__ = ["GGUFError", "GGUFFile", "GGUFWriter"]


def __dir__() -> list[str]:
    return __all__
