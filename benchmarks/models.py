"""The examples' modules: ``from benchmarks.models import embed, llama, minilm, small``."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind all others: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed
import llama
import minilm
from serve import small

__all__ = ["embed", "llama", "minilm", "small"]
