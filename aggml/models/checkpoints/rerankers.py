"""answer_tokens: whether a folder of a causal model is a reranker that answers "yes" or "no".

Such a folder has no rank head: the score is made of the logits of two tokens. Here: finding them,
and the text around a query and a document. Not here: the score (../rank_head.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.config import read_json
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["QWEN3_TEMPLATE", "AnswerTokens", "answer_tokens", "is_reranker"]

#: The text that Qwen3-Reranker was trained with, with its instruction for a search in the web.
QWEN3_TEMPLATE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
NAME: Final = "qwen3-reranker"


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """The two tokens whose logits are compared.

    Attributes:
        yes, no: their ids.
    """

    yes: int
    no: int


def is_reranker(folder: Path, modules: Sequence[dict[str, Any]] | None) -> bool:
    """Whether the folder's modules, its name or its README say so; config.json does not."""
    if any(_kind(module) == "LogitScore" for module in modules or ()):
        return True
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16)
    except OSError:
        text = ""
    return NAME in folder.name.lower() or f"# {NAME}" in text.lower()


def answer_tokens(
    folder: Path, modules: Sequence[dict[str, Any]] | None, pieces: Sequence[str]
) -> AnswerTokens:
    """The tokens of "yes" and "no", as a module LogitScore names them, else by their texts.

    Args:
        folder: of the model.
        modules: the contents of modules.json.
        pieces: the texts of all tokens.

    Raises:
        ModelError: the vocabulary has no such tokens; the module names others.
    """
    for module in modules or ():
        if _kind(module) == "LogitScore":
            path = folder / str(module.get("path", "1_LogitScore")) / "config.json"
            told = read_json(path)
            ids: list[int] = []
            for name in ("true_token_id", "false_token_id"):
                token = told.get(name)
                if type(token) is not int or not 0 <= token < len(pieces):
                    raise ModelError(
                        f"{path.parent.name}/config.json has {name} = {token!r}, expected was a "
                        f"token id, 0 to {len(pieces) - 1}"
                    )
                ids.append(token)
            return AnswerTokens(*ids)
    known = {piece: i for i, piece in enumerate(pieces)}
    if "yes" not in known or "no" not in known:
        raise ModelError('a reranker that answers "yes" or "no" lacks these tokens')
    return AnswerTokens(known["yes"], known["no"])


def _kind(module: dict[str, Any]) -> str:
    return str(module.get("type", "")).rsplit(".", 1)[-1]
