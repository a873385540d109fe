"""Adapters in folders of PEFT: adapter_config.json and adapter_model.safetensors.

Their names are those of a Hugging Face folder, so the architecture's map of such folders says which
matrices of the model they change. A recipe of the map that only reorders or picks rows does the
same with the rows of B. Not here: the maps (../architectures/), recipes (../checkpoints/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.adapters.files import scale_of
from aggml.models.adapters.low_rank import LowRank
from aggml.models.catalogue import checkpoints
from aggml.models.checkpoints import ModelFolder
from aggml.models.checkpoints.config import Config, read_json
from aggml.models.checkpoints.keys import Number
from aggml.models.checkpoints.safetensors import SafeTensors
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aggml.models.checkpoints.recipes import Array, Checkpoint, Recipe, Rule
    from aggml.models.weights import ModelFile

__all__ = ["FolderNames", "base_of", "read_adapter_folder"]

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
NAME: Final = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
LAYER: Final = re.compile(r"\.(\d{1,6})\.")
#: Settings with which an adapter does something else than to add B A to a matrix.
UNSUPPORTED: Final = (
    "use_dora", "use_qalora", "lora_bias", "layer_replication", "modules_to_save",
    "trainable_token_indices", "alora_invocation_tokens",
)  # fmt: skip
#: Ways to begin after which the matrices of the model itself are other ones.
CHANGED_BASE: Final = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True, slots=True)
class FolderNames:
    """How tensors of a model are made of those of a Hugging Face folder.

    Attributes:
        maps: of the architecture; the first one fits that knows all names of an adapter.
        config: of the folder; for a GGUF file as far as its metadata says.
        names: of the model's tensors.
    """

    maps: tuple[Checkpoint, ...]
    config: Config
    names: frozenset[str]


def base_of(file: ModelFile) -> FolderNames:
    """What is needed to read folders of adapters for a model."""
    if isinstance(file, ModelFolder):
        return FolderNames((file.checkpoint,), file.config, frozenset(file.tensors))
    architecture = str(file.metadata.get("general.architecture", ""))
    maps = tuple(x for name, x in checkpoints() if name == architecture)
    values: dict[str, Any] = {}
    for one in maps:
        for key, where in one.keys.items():
            value = file.metadata.get(f"{architecture}.{key}")
            names = where.names if isinstance(where, Number) else where
            if isinstance(value, (int, float, np.number)) and not callable(names):
                # The other names of a tuple may be the first ones of other values.
                name = names if isinstance(names, str) else names[0]
                values[name] = value.item() if isinstance(value, np.number) else value
    return FolderNames(maps, Config(values), frozenset(file.tensors))


def read_adapter_folder(path: Path, base: FolderNames) -> dict[str, LowRank]:
    """The changes of an adapter by the names of the model's matrices. Blocks meanwhile.

    Args:
        path: a folder of PEFT.
        base: of the model.

    Raises:
        ModelError: it cannot be read, is no LoRA adapter, does what is not supported, or changes a
            matrix that the model's folder does not have.
    """
    where = f"the adapter {str(path)!r}"
    told = read_json(path / CONFIG)
    if not told:
        raise ModelError(f"{where} has no {CONFIG}: it is no folder of an adapter")
    _check_settings(where, told)
    if not (path / WEIGHTS).is_file():
        raise ModelError(f"{where} has no {WEIGHTS}")
    pairs = _pairs(where, SafeTensors.open(path / WEIGHTS), told)
    unknown = [*pairs]
    for one in base.maps:
        found, unknown = _translate(pairs, one, base)
        if not unknown:
            return found
    raise ModelError(
        f"{where} changes {unknown[0]!r}, which cannot take an adapter: the model has no such "
        "matrix, or makes several of it"
    )


def _check_settings(where: str, told: Mapping[str, Any]) -> None:
    if str(told.get("peft_type", "")).upper() != "LORA":
        raise ModelError(
            f"{where} has peft_type = {told.get('peft_type')!r} in {CONFIG}, expected was 'LORA'"
        )
    for name in UNSUPPORTED:
        if told.get(name):
            raise ModelError(f"{where} has {name} = {told[name]!r} in {CONFIG}: not supported")
    if told.get("bias", "none") != "none":
        raise ModelError(f"{where} has bias = {told['bias']!r} in {CONFIG}, expected was 'none'")
    begins = told.get("init_lora_weights")
    if isinstance(begins, str) and begins.lower().startswith(CHANGED_BASE):
        raise ModelError(
            f"{where} has init_lora_weights = {begins!r} in {CONFIG}: it belongs to a model whose "
            "matrices were changed, too; convert it to an ordinary adapter when saving it"
        )


def _pairs(where: str, file: SafeTensors, told: Mapping[str, Any]) -> dict[str, LowRank]:
    """The changes by the names of modules: "model.layers.0.self_attn.q_proj"."""
    parts: dict[str, dict[str, str]] = {}
    for name in file.stored:
        match = NAME.fullmatch(name)
        if match is None:
            raise ModelError(
                f"{where} has the tensor {name!r}, which is neither a lora_A nor a lora_B of a "
                "matrix"
            )
        parts.setdefault(match[1], {})[match[2]] = name
    if not parts:
        raise ModelError(f"{where} has no tensors")
    found = {}
    for module, names in parts.items():
        for part in "AB":
            if part not in names:
                raise ModelError(f"{where} has no lora_{part} of {module!r}, the other of a pair")
        a, b = (_floats(where, file, names[part]) for part in "AB")
        rank = a.shape[0] if a.ndim == 2 else 0
        if not rank or b.ndim != 2 or b.shape[1] != rank:
            raise ModelError(
                f"{where}: lora_A {list(a.shape)} and lora_B {list(b.shape)} of {module!r} are no "
                "matrices of one rank"
            )
        wanted = _of_module(told, "rank_pattern", "r", module)
        if wanted is not None and wanted != rank:
            raise ModelError(f"{where} has r = {wanted!r} in {CONFIG}, but {module!r} has {rank}")
        scale = scale_of(
            f"{where}: lora_alpha", _of_module(told, "alpha_pattern", "lora_alpha", module), rank,
            rooted=bool(told.get("use_rslora")),
        )  # fmt: skip
        found[module] = LowRank(a, b * np.float32(scale))
    return found


def _floats(where: str, file: SafeTensors, name: str) -> Array:
    found = file[name]
    if found.dtype.name not in ("float64", "float32", "float16", "bfloat16"):
        raise ModelError(f"{where} has {name!r} of the type {found.dtype.name}, expected floats")
    return found.astype(np.float32)


def _of_module(told: Mapping[str, Any], patterns: str, name: str, module: str) -> Any:  # noqa: ANN401
    """A setting of one module: that of the first pattern which fits the end of its name."""
    given = told.get(patterns)
    for pattern, value in given.items() if isinstance(given, dict) else ():
        try:
            if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
                return value
        except re.error as error:
            raise ModelError(f"{CONFIG} has {pattern!r} in {patterns}: {error}") from error
    return told.get(name)


def _translate(
    pairs: Mapping[str, LowRank], of: Checkpoint, base: FolderNames
) -> tuple[dict[str, LowRank], list[str]]:
    """The changes under the model's names, and the modules that the map has no matrix for."""
    short = {next((x.removeprefix(p) for p in of.prefixes if x.startswith(p)), x): x for x in pairs}
    found: dict[str, LowRank] = {}
    used: set[str] = set()
    layers = sorted({int(n) for x in short for n in LAYER.findall(x)})
    for target, rule in of.tensors.items():
        if target.endswith((".bias", ".ssm_a", ".ssm_d")):
            continue
        suffix = "" if target.endswith(".weight") else ".weight"
        for i in layers if "{i}" in target else (0,):
            name = target.replace("{i}", str(i)) + suffix
            if name not in base.names:
                continue
            for one, sources in _sources(rule, i):
                modules = [short.get(x.removesuffix(".weight")) for x in sources]
                if any(x is None for x in modules):
                    continue
                if len(modules) == 1:
                    (module,) = modules
                    assert module is not None
                    change = _through(pairs[module], one, base.config)
                    if change is not None:
                        found[name] = change
                        used.add(module)
                break
    return found, [x for x in pairs if x not in used]


def _sources(rule: Rule, i: int) -> Iterator[tuple[str | Recipe, list[str]]]:
    """Each rule of a tensor, with the names in the folder that it uses."""
    rules = rule if isinstance(rule, tuple) else () if rule is None else (rule,)
    for one in rules:
        names = (one,) if isinstance(one, str) else one.sources
        if names and not any("{e}" in x for x in names):
            yield one, [x.replace("{i}", str(i)) for x in names]


def _through(change: LowRank, rule: str | Recipe, config: Config) -> LowRank | None:
    """The change of the matrix that a rule makes of a changed one; None: it has no low rank.

    The rule is applied to a matrix that has its own places as elements. If whole rows come out,
    they tell which rows of B the change has. Of some models, such as gpt2, folders have the matrix
    transposed.

    Args:
        change: of the matrix in the folder.
        rule: makes the model's matrix.
        config: of the folder.
    """
    if isinstance(rule, str):
        return change
    rows = len(change.b)
    probe = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2)
    found = (_rows_picked(x, rule, config) for x in (probe, probe.T))
    at = next((x for x in found if x is not None), None)
    return None if at is None else LowRank(change.a, change.b[at])


def _rows_picked(given: Array, rule: Recipe, config: Config) -> Array | None:
    """Which rows of a probe a recipe picks; None: it does something else."""
    columns, rows = 2, given.size // 2
    try:  # whether the model has the tensor at all is known, so `Recipe.shape` is not asked
        made = rule.make([given], config)
    except (ModelError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    if made is None or made.ndim != 2 or made.shape[1] != columns:
        return None
    picked = made[:, 0] // columns
    if not np.array_equal(made, picked[:, None] * columns + np.arange(columns)):
        return None
    at = picked.astype(np.int64)
    return at if at.min() >= 0 and at.max() < rows else None
