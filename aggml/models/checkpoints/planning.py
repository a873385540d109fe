"""Translation: which tensors a folder has under GGUF's names, and from what each is made.

Here: applying an architecture's map to the names in a folder. Not here: the maps (architectures/),
making the tensors (folder.py).
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import DType
from aggml.models.checkpoints.config import UNREADABLE
from aggml.models.checkpoints.recipes import Recipe
from aggml.models.errors import ModelError
from aggml.models.hyperparameters import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Checkpoint, Rule
    from aggml.models.checkpoints.shards import Shards

__all__ = ["Made", "Translation", "choose_architecture", "rows_of"]

#: Tensors that become f32 in any case, because they are small or added to f32; so do vectors.
IN_F32: Final = re.compile(
    r"norm\.|ffn_gate_inp\.|token_types\.|position_embd\.|\.bias$|rope_|ssm_(a$|d$|conv1d)"
    r"|shortconv\.conv\.|time_mix_([wavg][12]|lerp_fused)\.|channel_mix_lerp|indexer\."
)
FLOATS: Final = (DType.F32, DType.F16, DType.BF16)
#: Models whose output is the embeddings if config.json does not say, as transformers has it.
TIED: Final = (
    "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "ernie4_5", "ernie4_5_moe", "smollm3",
    "starcoder2", "cohere2", "lfm2", "lfm2_moe", "mamba", "gemma4", "gemma4_text",
    "gemma3n", "gemma3n_text", "falcon", "RefinedWeb", "RefinedWebModel",
    "gpt_bigcode", "granite_swa", "minicpm3", "openelm", "bloom", "mpt", "cohere2_moe",
)  # fmt: skip
#: Settings that say whether these tensors have biases.
_QKV: Final = ("attn_q", "attn_qkv", "attn_q_a")
_NET: Final = ("ffn_up", "ffn_down", "ffn_gate")
#: Norms that a folder has only if config.json says so.
NORMS: Final = {"mamba_rms_norm": "ssm_norm"}
BIASES: Final[dict[str, tuple[str, ...]]] = {
    "attention_bias": _QKV, "qkv_bias": _QKV, "use_qkv_bias": _QKV, "mlp_bias": _NET,
    "attention_out_bias": ("attn_output",), "use_bias": (*_QKV, *_NET, "ssm_in"),
    "norm_bias": ("attn_norm", "ffn_norm", "output_norm"), "mamba_conv_bias": ("ssm_conv1d",),
    "use_conv_bias": ("ssm_conv1d",), "mamba_proj_bias": ("ssm_in",),
}  # fmt: skip
#: The matrix of a head that predicts masked words; most often it is that of the embeddings.
WORDS: Final = "mlm.output.weight"
BOTH: Final = (".weight", ".bias")
WHOLE: Final = (*BOTH, ".ssm_a", ".ssm_d")  #: Ends of names that stand for one tensor.
#: Buffers that older folders contain and nobody needs.
IGNORED: Final = (
    r"rotary_emb\.inv_freq$",
    r"position_ids$",
    r"\.masked_bias$",
    r"num_batches_tracked$",
)


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that is to be made.

    Attributes:
        sources: names in the folder.
        recipe: how it is made; None: it is the source as it is.
        dtype: element type.
        shape: in numpy's order.
    """

    sources: tuple[str, ...]
    recipe: Recipe | None
    dtype: DType
    shape: tuple[int, ...]


def rows_of(of: Made, rows: Sequence[int]) -> Made:
    """Some rows of a matrix that is to be made."""
    if of.dtype.is_quantized:
        raise ModelError("a matrix of blocks has no rows that could be taken out of it")

    def make(arrays: Sequence[Array], config: Config) -> Array | None:
        whole = arrays[0] if of.recipe is None else of.recipe.make(arrays, config)
        return None if whole is None else whole[list(rows)]

    shape = (len(rows), *of.shape[1:])
    recipe = Recipe(of.sources, make, lambda _shapes, _config: shape)
    return Made(of.sources, recipe, of.dtype, shape)


@dataclass(frozen=True, slots=True)
class Translation:
    """Finds a folder's tensors under GGUF's names.

    Attributes:
        config: its config.json.
        map: of its architecture.
        shards: its weights.
    """

    config: Config
    map: Checkpoint
    shards: Shards

    def tensors(self) -> dict[str, Made]:
        """Every tensor that the folder has, in the order of the map.

        Raises:
            ModelError: the folder has tensors that the map does not name.
        """
        named = {_short(x, self.map.prefixes): x for x in self.shards.names()}
        found: dict[str, Made] = {}
        used: set[str] = set()
        layers = int(
            self.config.need(
                "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"
            )
        )
        layers = max(layers, int(self.config.get("num_decoder_layers", default=0)))
        if layers > MOST_LAYERS:
            raise ModelError(
                f"config.json has num_hidden_layers = {layers}, at most {MOST_LAYERS} make sense"
            )
        default = self.config.model_type in TIED
        tied = bool(self.config.get("tie_word_embeddings", default=default))
        words = bool(self.config.get("tie_word_embeddings", default=True))
        for target, rule in self.map.tensors.items():
            for i in range(layers) if "{i}" in target else (0,):
                one_tensor = target.endswith(WHOLE) or target in self.map.bare
                for suffix in ("",) if one_tensor else BOTH:
                    whole = target + suffix
                    one = self._first(named, rule, i, suffix, whole)
                    if one is None:
                        continue
                    used.update(one.sources)
                    if not (tied and target == "output") and not (words and whole == WORDS):
                        found[whole.replace("{i}", str(i))] = one
        used.update(
            named.get(x.replace("{i}", str(i)), "")
            for x in self.map.numbers.values()
            for i in range(layers)
        )
        skipped = [re.compile(x) for x in (*IGNORED, *self.map.ignored)]
        ahead = int(self.config.get("num_nextn_predict_layers", default=0))
        skipped += [re.compile(rf"^layers\.{i}\.") for i in range(layers, layers + ahead)]
        rest = [
            name
            for short, name in named.items()
            if name not in used and not any(x.search(short) for x in skipped)
        ]
        if rest:
            raise ModelError(
                f"the folder has {len(rest)} tensors that its architecture lacks, for example "
                f"{min(rest)!r}"
            )
        ranks = "cls.output.weight" in found  # then there may be no matrix of logits
        missing = "output" in self.map.tensors and "output.weight" not in found
        if missing and not tied and not ranks:
            raise ModelError(
                "the folder has no tensor 'lm_head.weight', and config.json does not have "
                "tie_word_embeddings = true"
            )
        self._check_biases(found)
        return found

    def numbers(self) -> dict[str, list[float]]:
        """The keys of the map whose values are numbers that tensors of the layers have.

        Raises:
            ModelError: a layer lacks its number, or has more than one.
        """
        named = {_short(x, self.map.prefixes): x for x in self.shards.names()}
        found: dict[str, list[float]] = {}
        layers = int(self.config.need("num_hidden_layers")) if self.map.numbers else 0
        for key, rule in self.map.numbers.items():
            found[key] = []
            for i in range(layers):
                short = rule.replace("{i}", str(i))
                if short not in named:
                    raise ModelError(f"the folder has no tensor {short!r}")
                values = np.asarray(self.shards[named[short]]).astype(np.float32).reshape(-1)
                if len(values) != 1:
                    raise ModelError(
                        f"tensor {named[short]!r} has {len(values)} elements, expected was one"
                    )
                found[key].append(float(values[0]))
        return found

    def _check_biases(self, found: Mapping[str, Made]) -> None:
        """Refuse biases and norms that config.json denies, and the lack of those that it demands.

        Raises:
            ModelError: for the first setting.
        """
        for setting, parts in BIASES.items():
            told = self.config.get(setting)
            there = [x for x in found if x.endswith(".bias") and x.split(".")[-2] in parts]
            if told is True and not there:
                raise ModelError(f"config.json has {setting} = true, but there are no biases")
            if told is False and there:
                raise ModelError(
                    f"config.json has {setting} = false, but the folder has "
                    f"{found[there[0]].sources[0]!r}"
                )
        for setting, part in NORMS.items():
            norms = [x for x in found if x.split(".")[-2] == part]
            if self.config.get(setting) is False and norms:
                raise ModelError(
                    f"config.json has {setting} = false, but the folder has "
                    f"{found[norms[0]].sources[0]!r}"
                )

    def _first(
        self, named: Mapping[str, str], rule: Rule, i: int, suffix: str, target: str
    ) -> Made | None:
        """One tensor, by the first of its rules whose sources the folder has; else None."""
        rules = rule if isinstance(rule, tuple) else () if rule is None else (rule,)
        found = (self._one(named, x, i, suffix, target) for x in rules)
        return next((x for x in found if x is not None), None)

    def _one(
        self, named: Mapping[str, str], rule: str | Recipe, i: int, suffix: str, target: str
    ) -> Made | None:
        """One tensor by one rule; None: the folder does not have the sources."""
        sources: list[str] = []
        for name in (rule,) if isinstance(rule, str) else rule.sources:
            short = name.replace("{i}", str(i)) + suffix
            each = _experts(named, short) if "{e}" in short else [named.get(short)]
            sources += [x for x in each if x is not None]
            if not each or None in each:
                return None
        arrays = [self.shards[name] for name in sources]
        if isinstance(rule, str):
            return Made(tuple(sources), None, _kind(arrays, sources, target), arrays[0].shape)
        try:
            with self.config.reading(f"tensor {target!r}") if not arrays else nullcontext():
                shape = rule.shape([x.shape for x in arrays], self.config)
        except ModelError:
            raise
        except UNREADABLE as error:
            shapes = ", ".join(
                f"{x!r} {list(a.shape)}" for x, a in zip(sources, arrays, strict=True)
            )
            raise ModelError(f"tensor {target!r} cannot be made of {shapes}: {error}") from error
        if shape == ():
            return None
        if min(shape) < 1:
            raise ModelError(f"tensor {target!r} would have the shape {list(shape)}")
        if rule.dtype is not None:
            return Made(tuple(sources), rule, rule.dtype, shape)
        return Made(tuple(sources), rule, _kind(arrays, sources, target, len(shape)), shape)


def _experts(named: Mapping[str, str], short: str) -> list[str | None]:
    """The name of each expert's tensor."""
    found: list[str | None] = []
    while (one := named.get(short.replace("{e}", str(len(found))))) is not None:
        found.append(one)
    return found


def _kind(
    arrays: Sequence[Array], sources: Sequence[str], target: str, axes: int | None = None
) -> DType:
    """The type of a tensor that is made of these arrays.

    Raises:
        ModelError: the first array has floats of 8 bits, or no floats.
    """
    if not arrays:
        return DType.F32
    elements = {"float64": DType.F64, "float32": DType.F32, "float16": DType.F16,
             "bfloat16": DType.BF16}  # fmt: skip
    found = elements.get(arrays[0].dtype.name)
    if found is None:
        raise ModelError(
            f"{sources[0]!r} is of the type {arrays[0].dtype.name}: only floats of 16 bits and "
            "more are read"
        )
    vector = (arrays[0].ndim if axes is None else axes) < 2
    return DType.F32 if vector or found not in FLOATS or IN_F32.search(target) else found


def _short(name: str, prefixes: tuple[str, ...]) -> str:
    """A name without its prefix; the first of ``prefixes`` that fits is removed.

    Norms of old folders have a gamma and a beta.
    """
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return next((name.removeprefix(x) for x in prefixes if name.startswith(x)), name)


def choose_architecture(
    config: Config, checkpoints: Sequence[tuple[str, Checkpoint]]
) -> tuple[str, Checkpoint]:
    """The architecture's name and its map.

    Raises:
        ModelError: no architecture knows this type of model, or this variant of it.
    """
    fitting = [
        x for x in checkpoints
        if config.model_type in x[1].model_types
        and (x[1].condition is None or x[1].condition(config))
    ]  # fmt: skip
    fitting.sort(key=lambda x: x[1].condition is None)
    named = [x for x in fitting if any(c.startswith(x[1].classes) for c in config.classes)
             and x[1].classes]  # fmt: skip
    found = next(iter([*named, *(x for x in fitting if not x[1].classes)]), None)
    if found is None:
        known = ", ".join(sorted({kind for _, x in checkpoints for kind in x.model_types}))
        raise ModelError(f"the model_type is {config.model_type!r}, not one of {known}")
    for key, allowed in found[1].expects.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            known = " or ".join(map(repr, allowed))
            raise ModelError(f"config.json has {key} = {value!r}; {found[0]} knows {known}")
    return found
