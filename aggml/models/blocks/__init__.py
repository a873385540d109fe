"""Blocks of which layers are made: attention, recurrences, feed-forward nets, experts.

Here: the names. Each block is a frozen dataclass of numbers that builds its own nodes. Not here:
the order of blocks in a layer (../decoder/step.py), the blocks of each model (../architectures/).
"""

from __future__ import annotations

from aggml.models.blocks.alone import Alone, OneMatrix
from aggml.models.blocks.attention import Attention
from aggml.models.blocks.cross import CrossAttention
from aggml.models.blocks.delta_net import DeltaNet
from aggml.models.blocks.experts import Experts
from aggml.models.blocks.experts_or_net import ExpertsOrNet
from aggml.models.blocks.feed_forward import FeedForward
from aggml.models.blocks.gemma3n import AltUp, BesideLaurel, StreamCorrection, StreamPrediction
from aggml.models.blocks.gemma4 import BesideExperts, LayerEnd
from aggml.models.blocks.indexer import Indexer
from aggml.models.blocks.kimi_delta import KimiDelta
from aggml.models.blocks.latent import LatentAttention
from aggml.models.blocks.mamba import Mamba
from aggml.models.blocks.mamba2 import Mamba2
from aggml.models.blocks.normed_input import NormedInput
from aggml.models.blocks.rope import Rope, Temperature
from aggml.models.blocks.rwkv6 import ChannelMix6, Halved, TimeMix6
from aggml.models.blocks.rwkv7 import ChannelMix, TimeMix
from aggml.models.blocks.scope import Scope
from aggml.models.blocks.short_conv import ShortConv
from aggml.models.blocks.side_by_side import SideBySide

__all__ = [
    "Alone",
    "AltUp",
    "Attention",
    "BesideExperts",
    "BesideLaurel",
    "ChannelMix",
    "ChannelMix6",
    "CrossAttention",
    "DeltaNet",
    "Experts",
    "ExpertsOrNet",
    "FeedForward",
    "Halved",
    "Indexer",
    "KimiDelta",
    "LatentAttention",
    "LayerEnd",
    "Mamba",
    "Mamba2",
    "NormedInput",
    "OneMatrix",
    "Rope",
    "Scope",
    "ShortConv",
    "SideBySide",
    "StreamCorrection",
    "StreamPrediction",
    "Temperature",
    "TimeMix",
    "TimeMix6",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
