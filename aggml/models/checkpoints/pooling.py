"""pooling_keys: how a folder of sentence-transformers makes one vector of a text.

Folders of encoders and of causal models may say so. Here: reading modules.json and the files that
it names. Not here: pooling itself (../encoder/).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.config import read_json
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aggml.models.checkpoints.config import Config

__all__ = ["NORMALIZE", "RANK", "modules_of", "pooling_keys", "predicts_words"]

#: Whether vectors have length 1; other programs do not know this key.
NORMALIZE: Final = "pooling_normalize"
NONE: Final = 0
MEAN: Final = 1
RANK: Final = 4
#: GGUF's numbers by the names in 1_Pooling/config.json: newer names, then older ones.
KINDS: Final = {
    "mean": 1, "cls": 2, "lasttoken": 3,
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3,
}  # fmt: skip


def pooling_keys(
    folder: Path, config: Config, *, ranks: bool, causal: bool = False
) -> dict[str, Any]:
    """GGUF's keys of pooling: its kind, whether vectors have length 1, labels of a rank head.

    Args:
        folder: of the model.
        config: its config.json.
        ranks: whether the folder has a rank head.
        causal: whether it is of a decoder, which pools only if modules.json says how.

    Raises:
        ModelError: an unknown module or kind of pooling.
    """
    if ranks:
        labels = config.get("id2label", default={"0": "LABEL_0"})
        return {"pooling_type": RANK, "classifier.output_labels": [str(x) for x in labels.values()]}
    modules = modules_of(folder)
    if modules is None:
        return {} if causal else {"pooling_type": MEAN}
    found: dict[str, Any] = {"pooling_type": MEAN, NORMALIZE: False}
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            told = read_json(folder / str(module.get("path", "1_Pooling")) / "config.json")
            if not told:
                raise ModelError(
                    f"modules.json names a folder {module.get('path')!r} without a "
                    "config.json of pooling"
                )
            found["pooling_type"] = _pooling(told)
        elif kind == "Normalize":
            found[NORMALIZE] = True
        elif kind == "SpladePooling" and not causal:
            found |= _splade(folder / str(module.get("path", "1_SpladePooling")))
        elif kind == "LogitScore" and causal:
            found["pooling_type"] = RANK
        elif kind not in ("Transformer", "MLMTransformer"):
            raise ModelError(f"modules.json has a module of the type {kind!r}, which is not known")
    return found


def predicts_words(modules: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these modules use a head that predicts masked words."""
    return any(str(x.get("type", "")).endswith("SpladePooling") for x in modules)


def _splade(folder: Path) -> dict[str, Any]:
    """The keys of a model that makes weights of words, which has no vector of a text.

    Raises:
        ModelError: an unknown way of pooling, or activation.
    """
    told = read_json(folder / "config.json")
    found: dict[str, Any] = {"pooling_type": NONE}
    for key, name, known in (
        ("sparse.pooling", "pooling_strategy", ("max", "sum")),
        ("sparse.activation", "activation_function", ("relu", "log1p_relu")),
    ):
        value = told.get(name, known[0])
        if value not in known:
            raise ModelError(
                f"{folder.name}/config.json has {name} = {value!r}, expected was "
                f"{' or '.join(known)}"
            )
        found[key] = value
    return found


def modules_of(folder: Path) -> list[dict[str, Any]] | None:
    """The contents of modules.json; None if there is no such file."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read modules.json: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(x, dict) for x in modules):
        raise ModelError("modules.json is no list of objects")
    return modules


def _pooling(told: dict[str, Any]) -> int:
    modes = {x: on for x, on in told.items() if x.startswith("pooling_mode_")}
    for name, on in modes.items():
        if not isinstance(on, bool):
            raise ModelError(
                f"1_Pooling/config.json has {name} = {on!r}, expected was true or false"
            )
    mode = told.get("pooling_mode")
    chosen = [x for x, on in modes.items() if on] if mode is None else [mode]
    if len(chosen) != 1 or not isinstance(chosen[0], str) or chosen[0] not in KINDS:
        raise ModelError(f"1_Pooling/config.json asks for {chosen}, not one of {', '.join(KINDS)}")
    return KINDS[chosen[0]]
