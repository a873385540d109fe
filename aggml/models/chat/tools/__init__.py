"""The formats of tool calls by model family, and which of them a template belongs to.

Not here: reading an answer while it comes (../reading.py). A format is a module; to add one, write
its class and put it into `FORMATS`, before those whose signs its template has as well.
"""

from __future__ import annotations

from typing import Final

from aggml.models.chat.tools.command import Command
from aggml.models.chat.tools.format import ToolFormat
from aggml.models.chat.tools.functionary import Functionary
from aggml.models.chat.tools.gemma import FunctionGemma, Gemma4
from aggml.models.chat.tools.glm4 import GLM4
from aggml.models.chat.tools.granite import Granite
from aggml.models.chat.tools.harmony import Harmony
from aggml.models.chat.tools.hermes import Hermes
from aggml.models.chat.tools.hunyuan import Hunyuan
from aggml.models.chat.tools.llama import Llama
from aggml.models.chat.tools.mistral import Mistral, MistralArgs
from aggml.models.chat.tools.nemotron import Nemotron
from aggml.models.chat.tools.phi4 import Phi4
from aggml.models.chat.tools.pythonic import LFM2, Llama4
from aggml.models.chat.tools.sectioned import DeepSeek, Kimi
from aggml.models.chat.tools.tagged import GLM, DeepSeekMarkup, MiniMax, QwenCoder, SeedOss
from aggml.models.chat.tools.xlam import Xlam

__all__ = ["FORMATS", "ToolFormat", "format_called", "format_of"]

#: In the order in which their signs are looked for.
FORMATS: Final[tuple[ToolFormat, ...]] = (
    Harmony(), MistralArgs(), Mistral(), Functionary(), Kimi(), LFM2(), Gemma4(), FunctionGemma(),
    DeepSeekMarkup(), DeepSeek(), GLM(), GLM4(), MiniMax(), SeedOss(), QwenCoder(), Command(),
    Nemotron(), Hunyuan(), Granite(), Phi4(), Llama4(), Llama(), Hermes(), Xlam(),
)  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def format_of(template: str) -> ToolFormat | None:
    """The format of the family whose template this is; None: it is not recognized."""
    for one in FORMATS:
        if any(all(sign in template for sign in row) for row in one.signs):
            return one
    return None


def format_called(name: object) -> ToolFormat | None:
    """The format of that name; None: there is none."""
    return next((x for x in FORMATS if isinstance(name, str) and x.name == name), None)
