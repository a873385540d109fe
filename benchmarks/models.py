"""What benchmarks use of examples/ and of models: ``from benchmarks.models import embed``."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end of the path: an example must not hide an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import embed

from aggml.models import small
from aggml.models.decoder import Decoder, Sampler, generating
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

__all__ = [
    "Decoder", "Sampler", "embed", "generating", "load_decoder", "open_model", "small",
]  # fmt: skip
