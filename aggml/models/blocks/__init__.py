"""Blocks of which layers are made: attention, feed-forward nets, experts.

Here: the names. Each block is a frozen dataclass of numbers that builds its own nodes. Not here: in
which order a layer has them (../decoding/step.py), which model has which (../architectures/).
"""

from __future__ import annotations

from aggml.models.blocks.attention import Attention, Rope
from aggml.models.blocks.experts import Experts
from aggml.models.blocks.feed_forward import FeedForward
from aggml.models.blocks.latent import LatentAttention
from aggml.models.blocks.scope import Scope

__all__ = ["Attention", "Experts", "FeedForward", "LatentAttention", "Rope", "Scope"]
