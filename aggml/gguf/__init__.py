"""GGUF: model files. Here: the public names. Not here: reading (file.py, parts.py), writing."""

from aggml.gguf.file import GGUFFile
from aggml.gguf.header import GGUFError
from aggml.gguf.parts import GGUFParts, open_gguf
from aggml.gguf.writer import GGUFWriter

__all__ = ["GGUFError", "GGUFFile", "GGUFParts", "GGUFWriter", "open_gguf"]


def __dir__() -> list[str]:
    return __all__
