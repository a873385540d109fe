"""Lets tests import the examples, which are no package but scripts beside each other."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind all others, so that an example hides nothing.
sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "examples"))
