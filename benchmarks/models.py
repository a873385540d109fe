"""The example's modules: ``from benchmarks.models import embed, minilm``."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind all others: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed
import minilm

__all__ = ["embed", "minilm"]
