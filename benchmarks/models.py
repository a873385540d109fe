"""The examples' modules: ``from benchmarks.models import embed, generate, llama, ...``."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind all others: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed
import generate
import llama
import minilm
import minilm_rows
from sampling import Sampler
from serve import small

__all__ = ["Sampler", "embed", "generate", "llama", "minilm", "minilm_rows", "small"]
