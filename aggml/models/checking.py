"""What is wrong with a model file: its hyperparameters, its tensors, its vocabulary.

`load` refuses a file for the first problem, and ``aggml gguf check`` prints all of them: both ask
the functions here. Each problem is a sentence that names the key or the tensor, its value, and what
was expected. Not here: damage of the file itself (aggml.gguf), numbers that are NaN (the command).
"""

from __future__ import annotations

import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from aggml import DType
from aggml.models.arguments import is_text
from aggml.models.catalogue import describe
from aggml.models.encoder.description import EncoderDescription
from aggml.models.encoder_decoder import EncoderDecoderDescription
from aggml.models.errors import ModelError
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.unread import unknown_keys, unread_problems
from aggml.models.vision import picture_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aggml import Tensor
    from aggml.models.description import AnyDescription
    from aggml.models.forms import TensorForm

    Described: TypeAlias = AnyDescription

__all__ = [
    "describe_checked", "is_causal", "layer_problems", "problems_of", "tensor_problems",
    "vocabulary_problems",
]  # fmt: skip

#: Tensors that a file may have although no graph here reads them.
UNREAD: Final = (
    (re.compile(r"^cls\."), "a rank head, for which a decoder is not used here"),
    (re.compile(r"\.nextn\."), "layers that predict further tokens, which can be left out"),
    (re.compile(r"\.attn_rot_embd\.|\.rope_freqs\."), "frequencies that follow from the base"),
)
LAYERS: Final = re.compile(r"(enc\.|dec\.|)blk\.(\d+)\.")
FLOATS: Final = (DType.F32, DType.F16, DType.BF16)

# -- hyperparameters


def describe_checked(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Described:
    """The model that a file describes, after its hyperparameters and tensors were checked.

    Raises:
        ModelError: for the first problem.
    """
    for problem in layer_problems(metadata, tensors):
        raise ModelError(problem)
    hp, model = _describe(metadata)
    for problem in tensor_problems(model, tensors):
        raise ModelError(problem)
    for problem in unread_problems(hp, causal=is_causal(model)):
        raise ModelError(problem)
    for key in unknown_keys(hp):
        warnings.warn(
            f"{key} is not known here: if it changes results, they are wrong", stacklevel=2
        )
    return model


def problems_of(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """All problems of a file: of its hyperparameters, its tensors and its vocabulary."""
    if is_text(metadata.get("general.architecture"), "clip"):  # a mmproj file
        yield from picture_problems(metadata, tensors)
        return
    embeddings = tensors.get("token_embd.weight")
    rows = None if embeddings is None else embeddings.ne[1]
    found = [*layer_problems(metadata, tensors)]
    yield from found
    if not found:
        try:
            hp, model = _describe(metadata)
        except ModelError as error:
            yield str(error)
        else:
            yield from tensor_problems(model, tensors)
            yield from unread_problems(hp, causal=is_causal(model))
    yield from vocabulary_problems(metadata, rows)


def is_causal(model: Described) -> bool:
    """Whether the tokens of a model see only earlier ones."""
    return not isinstance(model, (EncoderDescription, EncoderDecoderDescription))


def _describe(metadata: Mapping[str, Any]) -> tuple[Hyperparameters, Described]:
    """The hyperparameters, which know what was read, and the model."""
    hp = Hyperparameters(metadata)
    try:
        return hp, describe(hp)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"the hyperparameters of {hp.architecture!r} do not fit each other: {error}"
        ) from error


def layer_problems(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Whether the file has the layers that it says, and those that predict tokens come last."""
    hp = Hyperparameters(metadata)
    for prefix, key in (("", "block_count"), ("enc.", "encoder.block_count")):
        numbers = [int(m[2]) for x in tensors if (m := LAYERS.match(x)) and m[1] == prefix]
        told = hp.get(key)
        if numbers and isinstance(told, int) and told <= max(numbers):
            yield (
                f"{hp.architecture}.{key} is {told}, but the file has tensors of "
                f"{max(numbers) + 1} layers"
            )
    told, ahead = hp.get("block_count"), hp.get("nextn_predict_layers", 0)
    if not isinstance(told, int) or not isinstance(ahead, int):
        return
    for name in tensors:
        layer = LAYERS.match(name) if ".nextn." in name else None
        if layer is not None and int(layer[2]) < told - ahead:
            yield (
                f"{hp.architecture}.block_count is {told} and {hp.architecture}."
                f"nextn_predict_layers is {ahead}, but the file has a tensor {name!r}: layer "
                f"{layer[2]} is one of those that predict further tokens, which come last"
            )
            return


# -- tensors


def tensor_problems(model: Described, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Tensors that are missing, have another shape or type, or that the model does not use."""
    missing = [name for name in model.needs() if name not in tensors]
    forms = model.forms(tensors)
    missing += [
        name
        for name, form in forms.items()
        if not form.optional and name not in tensors and name not in missing
    ]
    yield from (f"the file has no tensor {name!r}" for name in missing)
    yield from _uneven_layers(forms, tensors)
    sizes: dict[tuple[str, str], tuple[int, str]] = {}
    for name, form in forms.items():
        tensor = tensors.get(name)
        if tensor is not None:
            yield from _shape_problems(name, tensor, form, sizes)
            yield from _type_problems(name, tensor, form)
    if getattr(model, "first", 0) or not getattr(model, "ends", True):
        return  # a part of a model, whose file has the tensors of the other parts, too
    ahead = _layers_ahead(forms, tensors)
    for name in tensors:
        if name.startswith(ahead):
            continue
        if name not in forms and not any(x.search(name) for x, _ in UNREAD):
            yield (
                f"the file has a tensor {name!r}, which a model of the architecture "
                f"{model.architecture!r} does not use: its results would be wrong without it"
            )


def _layers_ahead(forms: Mapping[str, TensorForm], tensors: Iterable[str]) -> tuple[str, ...]:
    """The beginnings of names of whole layers that predict further tokens, such as "blk.61."."""
    found = {name.partition("nextn.")[0] for name in tensors if ".nextn." in name}
    return tuple(found - {match[0] for name in forms if (match := LAYERS.match(name))})


#: Optional tensors that the first layer lacks in some models although the others have them.
NOT_IN_FIRST: Final = ("attn_norm.weight", "attn_norm.bias")


def _uneven_layers(forms: Mapping[str, TensorForm], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Optional tensors, most often biases, that some layers have and others lack."""
    layers: dict[tuple[str, str], dict[str, bool]] = {}
    for name, form in forms.items():
        match = LAYERS.match(name)
        if match is not None and form.optional and not form.uneven:
            part = name[match.end() :]
            lacks_norm = f"{match[0]}attn_norm.weight" not in tensors
            if not (match[2] == "0" and part in NOT_IN_FIRST and lacks_norm):
                layers.setdefault((match[1], part), {})[name] = name in tensors
    for of in layers.values():
        if len({*of.values()}) > 1:
            lacking = next(name for name, there in of.items() if not there)
            has = next(name for name, there in of.items() if there)
            yield f"the file has no tensor {lacking!r}, but it has {has!r} of another layer"


def _shape_problems(
    name: str, tensor: Tensor, form: TensorForm, sizes: dict[tuple[str, str], tuple[int, str]]
) -> Iterator[str]:
    """Whether a shape is right; ``sizes`` has the extents that were seen under a name."""
    if form.flat:
        wanted = math.prod(n for n in form.ne if isinstance(n, int))
        if tensor.nelements != wanted:
            yield f"tensor {name!r} has {tensor.nelements} elements, {wanted} were expected"
        return
    match = LAYERS.match(name)
    layer = match[0] if match else ""
    for extents in (form.ne, form.other):
        if extents is not None and _fits(tensor, extents, sizes, layer):
            for told, n in zip(extents, tensor.ne, strict=False):
                if isinstance(told, str):
                    sizes.setdefault((layer, told), (n, name))
            return
    expected = [_extent_text(told, sizes, layer) for told in form.ne]
    yield (
        f"tensor {name!r} has the shape {list(tensor.ne[: tensor.ndim])}, expected was "
        f"[{', '.join(expected)}]"
    )


def _fits(
    tensor: Tensor,
    extents: tuple[int | str, ...],
    sizes: Mapping[tuple[str, str], tuple[int, str]],
    layer: str,
) -> bool:
    for told, n in zip((*extents, 1, 1, 1, 1)[:4], tensor.ne, strict=False):
        known = sizes.get((layer, told)) if isinstance(told, str) else (told, "")
        if n < 1 or (known is not None and known[0] != n):
            return False
    return True


def _extent_text(
    told: int | str, sizes: Mapping[tuple[str, str], tuple[int, str]], layer: str
) -> str:
    """An extent for a message: a number, or a name and where it was seen before."""
    if isinstance(told, int):
        return str(told)
    known = sizes.get((layer, told))
    return told if known is None else f"{known[0]} as {known[1]!r} has"


def _type_problems(name: str, tensor: Tensor, form: TensorForm) -> Iterator[str]:
    dtype = tensor.dtype
    if form.vector and dtype is not DType.F32:
        yield f"tensor {name!r} is of the type {dtype.type_name}, expected was f32"
    elif not (dtype in FLOATS or dtype.is_quantized):
        yield (
            f"tensor {name!r} is of the type {dtype.type_name}, expected was f32, f16, bf16 or a "
            "quantized type"
        )


# -- the vocabulary

AT: Final = "tokenizer.ggml."
BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
BYTE, MOST_KIND = 6, 6
FLAGS: Final = (
    "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix",
    "remove_extra_whitespaces", "escape_whitespaces", "normalizer.lowercase", "normalizer.nfc",
)  # fmt: skip
#: The arrays that a vocabulary of each kind must have, beside its tokens.
ARRAYS: Final = {"llama": ("scores",), "t5": ("scores",), "gpt2": ("merges",)}


def vocabulary_problems(metadata: Mapping[str, Any], rows: int | None) -> Iterator[str]:
    """What is wrong with a vocabulary.

    Args:
        metadata: of a file.
        rows: of the embeddings; None: unknown.
    """
    yield from _template_problems(metadata)
    model = metadata.get(f"{AT}model")
    tokens = metadata.get(f"{AT}tokens")
    if model is None and tokens is None:
        return
    if not isinstance(model, str):
        yield f"{AT}model is {_value(model)}, expected was a name such as 'gpt2'"
        return
    if model in ("none", "no_vocab"):
        return
    if tokens is None:
        yield f"the file has no {AT}tokens, which a vocabulary of the kind {model!r} needs"
        return
    wrong = _tokens_problem(tokens, rows)
    if wrong is not None:
        yield wrong
        return
    for name in ARRAYS.get(model, ()):
        if metadata.get(f"{AT}{name}") is None:
            yield f"the file has no {AT}{name}, which a vocabulary of the kind {model!r} needs"
    yield from _scores_problems(metadata, len(tokens))
    yield from _kinds_problems(metadata, tokens)
    yield from _merges_problems(metadata, tokens)
    yield from _ids_problems(metadata, len(tokens))
    for name in FLAGS:
        told = metadata.get(AT + name)
        if told is not None and not isinstance(told, bool):
            yield f"{AT}{name} is {_value(told)}, expected was true or false"
    pre = metadata.get(f"{AT}pre")
    if pre is not None and not isinstance(pre, str):
        yield f"{AT}pre is {_value(pre)}, expected was a name such as 'default'"
    charsmap = metadata.get(f"{AT}precompiled_charsmap")
    if charsmap is not None and not (
        isinstance(charsmap, np.ndarray) and charsmap.dtype.kind in "iu" and charsmap.itemsize == 1
    ):
        yield f"{AT}precompiled_charsmap is {_value(charsmap)}, expected was an array of bytes"


def _template_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, told in metadata.items():
        named = key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")
        if named and not isinstance(told, str):
            yield f"{key} is {_value(told)}, expected was a text"


def _tokens_problem(tokens: Any, rows: int | None) -> str | None:  # noqa: ANN401 as the file has it
    if not isinstance(tokens, list) or not _are_all(tokens, str):
        return f"{AT}tokens is {_value(tokens)}, expected was an array of texts"
    if not tokens:
        return f"{AT}tokens is empty, expected was at least one token"
    if rows is not None and len(tokens) != rows:
        return (
            f"{AT}tokens has {len(tokens)} tokens, expected were {rows}, as 'token_embd.weight' "
            "has rows"
        )
    if len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if token in seen:
                return (
                    f"{AT}tokens has {token!r} twice, as tokens {seen[token]} and {i}; each token "
                    "must differ from the others"
                )
            seen[token] = i
    return None


def _scores_problems(metadata: Mapping[str, Any], n: int) -> Iterator[str]:
    scores = metadata.get(f"{AT}scores")
    if scores is None:
        return
    if not _is_numbers(scores, "fiu"):
        yield f"{AT}scores is {_value(scores)}, expected was an array of {n} numbers"
        return
    array = np.asarray(scores)
    if len(array) != n:
        yield f"{AT}scores has {len(array)} values, expected were {n}, one for each token"
    elif not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        yield f"{AT}scores has {array[at]} for token {at}, expected was a finite number"


def _kinds_problems(metadata: Mapping[str, Any], tokens: list[str]) -> Iterator[str]:
    told = metadata.get(f"{AT}token_type")
    if told is None:
        return
    if not _is_numbers(told, "iu"):
        yield f"{AT}token_type is {_value(told)}, expected was an array of whole numbers"
        return
    kinds = np.asarray(told)
    if len(kinds) != len(tokens):
        yield (
            f"{AT}token_type has {len(kinds)} values, expected were {len(tokens)}, one for each "
            "token"
        )
        return
    wrong = np.flatnonzero((kinds < 0) | (kinds > MOST_KIND))
    if len(wrong):
        yield (
            f"{AT}token_type has {kinds[wrong[0]]} for token {wrong[0]}, expected was a number "
            f"from 0 to {MOST_KIND}"
        )
    for i in np.flatnonzero(kinds == BYTE):
        if not BYTE_TOKEN.fullmatch(tokens[i]):
            yield (
                f"{AT}token_type says that token {i} is a byte, but its text is {tokens[i]!r}; "
                "expected was a text such as '<0x0A>'"
            )
            return


def _merges_problems(metadata: Mapping[str, Any], tokens: list[str]) -> Iterator[str]:
    merges = metadata.get(f"{AT}merges")
    if merges is None:
        return
    if not isinstance(merges, list) or not _are_all(merges, str):
        yield f"{AT}merges is {_value(merges)}, expected was an array of texts"
        return
    known = set(tokens)
    seen = set[str]()
    for i, merge in enumerate(merges):
        first, space, second = merge.partition(" ")
        if not (first and space and second):
            yield f"{AT}merges has {merge!r} as number {i}, expected were two pieces and a space"
            return
        for piece in (first, second, first + second):
            if piece not in known:
                yield (
                    f"{AT}merges has {merge!r} as number {i}, but {piece!r} is not among {AT}tokens"
                )
                return
        if merge in seen:
            yield f"{AT}merges has {merge!r} twice, the second time as number {i}"
            return
        seen.add(merge)


def _ids_problems(metadata: Mapping[str, Any], n: int) -> Iterator[str]:
    for key, told in metadata.items():
        ends = ("_token_id", "_token_ids", "suppress_tokens")
        if not (key.startswith(AT) and key.endswith(ends)):
            continue
        if key.endswith("s"):
            if not _is_numbers(told, "iu"):
                yield f"{key} is {_value(told)}, expected was an array of ids of tokens"
                continue
            ids = [int(x) for x in told]
        elif isinstance(told, int) and not isinstance(told, bool):
            ids = [told]
        else:
            yield f"{key} is {_value(told)}, expected was the id of a token"
            continue
        for i in ids:
            if not 0 <= i < n:
                yield f"{key} is {i}, expected was the id of a token, from 0 to {n - 1}"
                break


def _is_numbers(told: Any, kinds: str) -> bool:  # noqa: ANN401 as the file has it
    """Whether a value is an array of numbers of these kinds of numpy."""
    if isinstance(told, np.ndarray):
        return told.ndim == 1 and told.dtype.kind in kinds
    types = (int, float) if "f" in kinds else (int,)
    return isinstance(told, list) and _are_all(told, *types)


def _are_all(values: list[Any], *types: type) -> bool:
    """Whether all values are of these types; bool is no number. A vocabulary has 50,000 or more."""
    found = set(map(type, values))
    return all(issubclass(one, types) and one is not bool for one in found)


def _value(told: Any) -> str:  # noqa: ANN401 as the file has it
    """A value for a message, at most 60 characters long."""
    text = repr(told.tolist() if isinstance(told, np.ndarray) else told)
    return text if len(text) <= 60 else f"{text[:57]}..."
