"""Checkpoints: folders of Hugging Face, and Whisper's files, read as if they were GGUF files.

Here: the names. folder.py opens a folder. recipes.py has the classes with which architectures/
describe how a folder names their tensors and keys. Not here: one architecture's names.
"""

from __future__ import annotations

from aggml.models.checkpoints.folder import ModelFolder
from aggml.models.checkpoints.pickled import read_pickled
from aggml.models.checkpoints.prompts import prompts_of
from aggml.models.checkpoints.safetensors import SafeTensors
from aggml.models.checkpoints.whisper import open_whisper

__all__ = ["ModelFolder", "SafeTensors", "open_whisper", "prompts_of", "read_pickled"]


def __dir__() -> list[str]:
    return __all__
