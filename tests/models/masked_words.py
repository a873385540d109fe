"""Folders with heads that predict masked words, of random weights.

Here: the names of their tensors, and the folders. Not here: the numbers of such a head, computed by
hand (test_sparse.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from models import random_folders

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["EMBEDDINGS", "HEADS", "PREFIX", "ROWS", "WIDTH", "head_of"]

WIDTH: Final = 64
ROWS: Final = 320
#: By the type of folder: class, dense, norm, bias of the result, matrix of the result.
HEADS: Final = {
    "bert": (
        "BertForMaskedLM", "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm", "cls.predictions.bias",
        "cls.predictions.decoder.weight",
    ),
    "xlm-roberta": (
        "XLMRobertaForMaskedLM", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias",
        "lm_head.decoder.weight",
    ),
    "distilbert": (
        "DistilBertForMaskedLM", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias",
        "vocab_projector.weight",
    ),
    "modernbert": (
        "ModernBertForMaskedLM", "head.dense", "head.norm", "decoder.bias", "decoder.weight",
    ),
}  # fmt: skip
EMBEDDINGS: Final = {"modernbert": "embeddings.tok_embeddings.weight"}
PREFIX: Final = {"xlm-roberta": "roberta.", "modernbert": "model."}


def head_of(case: str, *, tied: bool) -> tuple[dict[str, Any], dict[str, F32]]:
    """The config and the tensors of a folder that predicts masked words."""
    told = random_folders.cases()[case]
    name, dense, norm, bias, matrix = HEADS[case]
    shapes = {f"{dense}.weight": (WIDTH, WIDTH), f"{norm}.weight": (WIDTH,), bias: (ROWS,)}
    if case != "modernbert":
        shapes |= {f"{dense}.bias": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    if not tied:
        shapes[matrix] = (ROWS, WIDTH)
    at = PREFIX.get(case, f"{case}.")
    body = random_folders.weights(case, told["tensors"])
    head = {x: random_folders.values(case, x, shape) for x, shape in shapes.items()}
    config = told["config"] | {"architectures": [name], "tie_word_embeddings": tied}
    return config, {at + x: values for x, values in body.items()} | head
