"""Lets tests import the examples, which are scripts in one folder, not a package."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end of the path, so that no example hides another module.
sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))
