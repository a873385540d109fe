"""Blocking: models for scripts, notebooks and threads, without ``await``.

``with aggml.models.blocking.load("model.gguf") as model:``
``    for token in model.generate("The capital of France is"): print(token.text)``

``with aggml.models.blocking.Host(memory=8 << 30) as host:``
``    host.add("chat", "model.gguf")``
``    with host.use("chat") as model: print(model.chat(messages).content)``

Here: the names, and `wrap` and `unwrap` from asynchronous objects and back; types are in
blocking.pyi. Not here: how classes are made (portal.py), what methods do (the asynchronous ones).
"""

from __future__ import annotations

from aggml.models.chat.answers import ChatStream
from aggml.models.encoder_decoder_model import EncoderDecoderModel
from aggml.models.encoder_model import EncoderModel
from aggml.models.fitting import fit as _fit
from aggml.models.host import Host as _Host
from aggml.models.host import ModelUse
from aggml.models.loading import load as _load
from aggml.models.model import Model
from aggml.models.portal import (
    BlockingStream,
    blocking_class,
    blocking_function,
    unwrap,
    wrap,
)
from aggml.models.speech_model import SpeechModel
from aggml.models.text_model import TextModel
from aggml.models.token_stream import TokenStream
from aggml.models.voice_model import VoiceModel

__all__ = [
    "BlockingChatStream", "BlockingEncoderDecoderModel", "BlockingEncoderModel", "BlockingHost",
    "BlockingModel",
    "BlockingModelUse", "BlockingSpeechModel", "BlockingStream", "BlockingTextModel",
    "BlockingTokenStream", "BlockingVoiceModel", "Host", "fit", "load", "unwrap", "wrap",
]  # fmt: skip

BlockingTokenStream = blocking_class(TokenStream, __name__, BlockingStream)
BlockingChatStream = blocking_class(ChatStream, __name__, BlockingStream)
BlockingModel = blocking_class(Model, __name__)
BlockingTextModel = blocking_class(TextModel, __name__, BlockingModel)
BlockingEncoderDecoderModel = blocking_class(EncoderDecoderModel, __name__, BlockingModel)
BlockingEncoderModel = blocking_class(EncoderModel, __name__, BlockingModel)
BlockingSpeechModel = blocking_class(SpeechModel, __name__, BlockingModel)
BlockingVoiceModel = blocking_class(VoiceModel, __name__, BlockingModel)
BlockingModelUse = blocking_class(ModelUse, __name__)
BlockingHost = blocking_class(_Host, __name__)
Host = blocking_function(_Host)  # a blocking host
load = blocking_function(_load)
fit = blocking_function(_fit)


def __dir__() -> list[str]:
    return __all__
