"""Models: from a file to tokens, logits and vectors, awaited.

``async with aggml.models.load("model.gguf") as model:``
``    async for token in model.generate("The capital of France is"): print(token.text)``

Here: the names. loading.py opens a model and returns a TextModel, an EncoderModel or a SpeechModel.
architectures/ says how each model is built, blocks/ has the parts of their layers. Not here: GGUF
itself (aggml.gguf), the service (aggml.serve).
"""

from __future__ import annotations

from aggml.models import blocking
from aggml.models.catalogue import known_architectures, register_architecture
from aggml.models.chat import ChatDelta, ChatMessage, ChatStream, ToolCall, ToolCallDelta, Usage
from aggml.models.checking import problems_of
from aggml.models.converting import Converted, convert
from aggml.models.description import Architecture, Description, Layer
from aggml.models.encoder_decoder_model import EncoderDecoderModel
from aggml.models.encoder_model import EncoderModel
from aggml.models.engine.requests import caller
from aggml.models.errors import (
    DeadlineError,
    EngineError,
    FullError,
    ModelError,
    NotFiniteError,
    TooLongError,
)
from aggml.models.evaluating import Divergence, Perplexity, evaluate
from aggml.models.fitting import DeviceLayers, Fit, MemoryShortage, fit
from aggml.models.host import Host, ModelStatus
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.loading import load
from aggml.models.measuring import Importance, measure_imatrix
from aggml.models.memory import Memory
from aggml.models.model import Model, Token
from aggml.models.ranking import Ranked, rank
from aggml.models.site import computing
from aggml.models.speech import Partial, Segment, Span, Word
from aggml.models.speech.sounds import read_sound
from aggml.models.speech.waves import read_wav
from aggml.models.speech_model import SpeechModel
from aggml.models.text_model import TextModel
from aggml.models.token_stream import PromptToken, TokenStream
from aggml.models.voice_model import VoiceModel
from aggml.models.weights import open_model

__all__ = [
    "Architecture", "ChatDelta", "ChatMessage", "ChatStream", "Converted", "DeadlineError",
    "Description", "DeviceLayers", "Divergence", "EncoderDecoderModel", "EncoderModel",
    "EngineError", "Fit", "FullError", "Host", "Hyperparameters", "Importance", "Layer", "Memory",
    "MemoryShortage", "Model", "ModelError", "ModelStatus", "NotFiniteError", "Partial",
    "Perplexity", "PromptToken", "Ranked", "Segment", "Span", "SpeechModel", "TextModel", "Token",
    "TokenStream", "TooLongError", "ToolCall", "ToolCallDelta", "Usage", "VoiceModel", "Word",
    "blocking", "caller", "computing", "convert", "evaluate", "fit", "known_architectures", "load",
    "measure_imatrix", "open_model", "problems_of", "rank", "read_sound", "read_wav",
    "register_architecture",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
