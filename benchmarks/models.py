"""The programs and models of examples/: ``from benchmarks.models import embed, llama, ...``."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind all others: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed
from models import generating, llama, minilm
from models.sampling import Sampler
from serve import small

__all__ = ["Sampler", "embed", "generating", "llama", "minilm", "small"]
