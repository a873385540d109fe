"""prompts_of: what a folder of sentence-transformers puts before queries and documents.

Here: reading config_sentence_transformers.json. Not here: using a prompt (../encoder_model.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.checkpoints.config import read_json
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["prompts_of"]

FILE = "config_sentence_transformers.json"


def prompts_of(folder: Path) -> tuple[dict[str, str], str | None]:
    """The prompts of a folder by their names, and the name of the one that is used by default.

    Raises:
        ModelError: the file has something else in their place.
    """
    told = read_json(folder / FILE)
    prompts = told.get("prompts") or {}
    default = told.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise ModelError(f"{FILE} has prompts = {prompts!r}, expected were texts by their names")
    if default is not None and default not in prompts:
        raise ModelError(
            f"{FILE} has default_prompt_name = {default!r}, but prompts has {', '.join(prompts)}"
        )
    return dict(prompts), default
