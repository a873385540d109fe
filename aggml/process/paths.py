"""user_path: a path as a user gave it, in which ``~`` is the home directory.

A shell replaces ``~`` before a program sees it, but Python does not, and a shell leaves it in
``--option=~/file``. Not here: whether the path is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = ["user_path"]


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path; ``~`` or ``~user`` at its beginning is replaced if there is such a user."""
    given = Path(path)
    try:
        return given.expanduser()
    except RuntimeError:
        return given
