"""Files that tools write: to write one anew, or to say whether it is up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, text: str) -> int:
    """Write the text, or with ``--check`` only compare it; returns the exit status."""
    if sys.argv[1:] == ["--check"]:
        return int(path.read_text() != text)
    path.write_text(text)
    return 0
