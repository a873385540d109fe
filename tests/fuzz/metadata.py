"""Model files with one wrong value or tensor: each is refused by name, or the same as before.

A program takes a small model, changes one value of its metadata or one of its tensors, and loads
it. Either `load` raises one ModelError or GGUFError that names a key or a tensor, and the check of
the program finds it, too; or the model gives the original's results; or the value is one that
another model may have (`FREE`), and the results are finite. Not here: damaged bytes
(tests/gguf/test_damaged.py), folders (settings.py).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fuzz.rounds import one_by_one
from models import random_models
from models.layout import VOCABULARY

import aggml
from aggml.gguf import GGUFError
from aggml.models import ModelError
from aggml.models.checking import problems_of
from aggml.models.small import tokens as small_tokens

if TYPE_CHECKING:
    import random

    from fuzz.rounds import Report

__all__ = ["FREE", "LOOPS", "SHORT", "run"]

LOOPS = ("asyncio",)
SHORT = 60

#: Values that say how the model computes, or what its tokens are: another value is another model.
FREE = re.compile(
    r"rope\.(freq_base|freq_base_swa|dimension_count|scaling\.|scale_linear)|layer_norm|epsilon"
    r"|context_length|sliding_window|softcapping|_scale$|attention\.scale|logit_scale|pooling_type"
    r"|expert_used_count|expert_group|expert_gating|expert_weights|leading_dense|group_best"
    r"|use_parallel_residual|full_attention_interval|recurrent_layers|head_count|key_length"
    r"|value_length|ssm\.|wkv\.|token_shift|normalize|hidden_activation|causal"
    r"|attention\.(indexer|clamp_kqv|max_alibi_bias)|swiglu_clamp|xielu\.|altup\."
    r"|shared_kv_layers|rope_pattern|rescale_every"
    r"|tokenizer\.ggml\.(tokens|scores|token_type|merges|pre$|model|add_|normalizer|.*_token_id)"
    r"|general\.architecture|tokenizer\.chat_template"
)
#: Tensors without which a file is another model: tied embeddings, a head without bias, ...
OPTIONAL = ("output.weight", "output.bias", "rope_freqs.weight", "token_types.weight")
NAMES_IT = re.compile(r"[\w-]+\.[\w.]+|tokenizer\.|general\.")
LAYOUTS = (*random_models.LAYOUTS, *random_models.ENCODERS)
SLOW = ("exaone4-32b",)  # 64 layers
TEXT = "abc <s> xyz é 12"
IDS = [3, 40, 41, 300, 7, 9]


@functools.cache
def _vocabularies() -> dict[str, dict[str, Any]]:
    names, kinds = small_tokens()
    more = VOCABULARY - len(names)
    assert more <= 0
    byte = [chr(33 + i) if i < 94 else chr(0x100 + i) for i in range(VOCABULARY - 10)]
    pieces = ["<unk>", "<s>", "</s>", *byte, "ab", "abc", "xy", "xyz", "12", "!!", "##"]
    return {
        "none": {"tokenizer.ggml.model": "no_vocab"},
        "llama": {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": names[:VOCABULARY],
            "tokenizer.ggml.scores": np.linspace(-1, 0, VOCABULARY).astype(np.float32),
            "tokenizer.ggml.token_type": np.array(kinds[:VOCABULARY], np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_space_prefix": True,
            "tokenizer.chat_template": "{{ messages[0].content }}",
        },
        "gpt2": {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": pieces[:VOCABULARY],
            "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * (VOCABULARY - 3), np.int32),
            "tokenizer.ggml.merges": ["a b", "ab c", "x y", "xy z", "1 2"],
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
        },
        "bert": random_models.words("▁abc", "▁xyz"),
    }


class Sound:
    """A model before it is changed: its metadata, types and tensors, and what it computes."""

    def __init__(self, name: str, vocabulary: str, folder: Path) -> None:
        path = random_models.write(folder / f"{name}-{vocabulary}.gguf", name,
                                   _vocabularies()[vocabulary])  # fmt: skip
        with aggml.GGUFFile.open(path) as file:
            self.metadata = dict(file.metadata)
            self.types = dict(file.types)
            self.tensors = {
                x: (bytes(file.data(x)), t.dtype, t.ne[: t.ndim]) for x, t in file.tensors.items()
            }
        self.results: Any = None


def changed_value(source: random.Random, value: Any) -> Any:
    """Another value for a key; None: the key is removed."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    anything = [
        None, "", "none", "big", -1, 0, 1, 2, 7, 100_000, (1 << 31) - 1, (1 << 32) - 1, 1 << 62,
        0.5, -1.5, math.nan, math.inf, -math.inf, 1e30, True, False, ["a", "b"], [1, 2], [0.5],
        [True], [[1], [2]],
    ]  # fmt: skip
    if source.random() < 0.4:
        return source.choice(anything)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = [value + 1, value - 1, 2 * value, value // 2, 3 * value, -value, value + (1 << 31)]
        return source.choice([*near, float(value), str(value), [value] * 4])
    if isinstance(value, float):
        others = [-value, 0.0, math.nan, math.inf, 2 * value, value / 2]
        return source.choice([*others, str(value), 1])
    if isinstance(value, str):
        return source.choice([value + "x", value.upper(), "", "\udcff", value * 100, 5])
    return _changed_list(source, list(value))


def _changed_list(source: random.Random, value: list[Any]) -> Any:
    at = source.randrange(len(value))
    kind = source.randrange(7)
    if kind == 0:
        return value[: source.randrange(1, len(value))]
    if kind == 1:
        return [*value, value[at]]
    if kind == 2:
        return value[::-1]
    if kind == 3 and isinstance(value[0], str):
        value[at] = source.choice(["", " ", "zz yy", "a", value[at - 1], "\udcff\udcfe", "<0xZZ>"])
        return value
    if kind == 4 and isinstance(value[0], float):
        value[at] = source.choice([math.nan, math.inf, -1e30])
        return value
    if kind == 5 and isinstance(value[0], int) and not isinstance(value[0], bool):
        value[at] = source.choice([-1, 99, 6, 0, 1 << 20])
        return value
    return [str(x) for x in value] if not isinstance(value[0], str) else list(range(len(value)))


def changed_tensor(source: random.Random, tensors: dict[str, Any]) -> str:
    """Change one tensor; returns its name."""
    name = source.choice([*tensors])
    data, dtype, ne = tensors[name]
    kind = source.randrange(7)
    at = source.randrange(len(ne))
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[source.choice(["extra.weight", f"{name}.x", "blk.99.attn_q.weight", "blk.0.y",
                               "blk.x.attn_q.weight"])] = tensors[name]  # fmt: skip
    elif kind == 2 and len(ne) > 1 and ne[0] != ne[1] and not dtype.is_quantized:
        tensors[name] = (data, dtype, (ne[1], ne[0], *ne[2:]))
    elif kind == 3 and dtype.type_name == "f32":
        tensors[name] = (data, aggml.DType.I32, ne)
    elif kind == 4 and dtype.type_name == "f32" and len(ne) == 1:
        tensors[name] = (data[: len(data) // 2], aggml.DType.F16, ne)
    else:
        new = tuple(n if i != at else source.choice([n + 32, max(n - 32, 32), 2 * n, 1, 0])
                    for i, n in enumerate(ne))  # fmt: skip
        new = (new[0] if new[0] % dtype.blck_size == 0 else ne[0], *new[1:])
        size = dtype.row_size(new[0]) * math.prod(new[1:])
        tensors[name] = ((data * (size // max(len(data), 1) + 1))[:size], dtype, new)
    return name


def write(path: Path, sound: Sound, metadata: dict[str, Any], tensors: dict[str, Any]) -> bool:
    """Write a file; False: GGUF cannot have such a value."""
    try:
        with aggml.GGUFWriter(path) as writer:
            for key, value in metadata.items():
                own = value is sound.metadata.get(key)
                writer.add(key, value, sound.types[key] if own else None)
            for name, (data, dtype, ne) in tensors.items():
                writer.add_tensor(name, np.frombuffer(data, np.uint8), dtype, ne=ne)
    except (aggml.AggmlError, ValueError):
        return False
    return True


async def results(path: Path) -> Any:
    """What a model computes, and what its vocabulary makes of a text."""
    async with await aggml.models.load(path, ctx=64) as model:
        ids_ = IDS[: max(1, min(len(IDS), model.ctx))]
        words = None
        try:
            vocabulary = model.tokenizer
        except ModelError:
            pass
        else:
            ids = vocabulary.encode(TEXT)
            assert all(0 <= x < model.vocabulary_size for x in ids), ids
            words = (ids, vocabulary.decode(ids), sorted(getattr(vocabulary, "ends", ())))
            assert all(0 <= x < model.vocabulary_size for x in words[2]), words
        if isinstance(model, aggml.models.EncoderModel):
            found = await model.embed_ids([[x % model.vocabulary_size for x in ids_]])
        else:
            found = await model.logits([x % model.vocabulary_size for x in IDS])
        assert np.isfinite(found).all()
        return found, words


def same(a: Any, b: Any) -> bool:
    # Without pooling an encoder gives a list of arrays.
    return bool(
        np.shape(a[0]) == np.shape(b[0]) and np.allclose(a[0], b[0], atol=1e-5) and a[1] == b[1]
    )


def is_found(path: Path) -> bool:
    """Whether the check of the program finds something."""
    try:
        with aggml.GGUFFile.open(path) as file:
            return any(problems_of(file.metadata, file.tensors))
    except (GGUFError, ModelError):
        return True


_folder = tempfile.TemporaryDirectory()
_numbers = itertools.count()


@functools.cache
def _sound(name: str, vocabulary: str) -> Sound:
    return Sound(name, vocabulary, Path(_folder.name))


async def program(source: random.Random) -> Counter[str]:
    """One changed file."""
    name = source.choice([x for x in LAYOUTS if x not in SLOW])
    kinds = ("bert", "none") if name in random_models.ENCODERS else ("llama", "gpt2", "none")
    sound = _sound(name, source.choice(kinds))
    path = Path(_folder.name) / f"changed-{next(_numbers) % 4}.gguf"
    if sound.results is None:
        assert write(path, sound, sound.metadata, sound.tensors)
        sound.results = await results(path)
    metadata, tensors = dict(sound.metadata), dict(sound.tensors)
    if source.random() < 0.7:
        key = source.choice([*metadata])
        metadata[key] = changed_value(source, metadata[key])
        if metadata[key] is None:
            del metadata[key]
        what, free = f"{key} = {metadata.get(key)!r:.200}", bool(FREE.search(key))
    else:
        key = changed_tensor(source, tensors)
        what = f"tensor {key}: {tensors.get(key, (0, 0, 0))[1:]}"
        free = key in OPTIONAL and key not in tensors
        # A matrix of one row may have any type of floats; its bytes are other numbers in f16.
        free |= key.endswith("gate_inp_shexp.weight") and (
            tensors.get(key, (0, None))[1] is aggml.DType.F16
        )
        # A layer of Gemma 4 without values takes its keys.
        free |= name.startswith("gemma4") and "attn_v" in key and key not in tensors
        # Without a vocabulary the rows of the embeddings say how many tokens there are.
        free |= key == "token_embd.weight" and sound.metadata["tokenizer.ggml.model"] == "no_vocab"
    what = f"{name}: {what}"
    if not write(path, sound, metadata, tensors):
        return Counter({"impossible": 1})
    refusal, found = "", None
    try:
        found = await results(path)
    except (ModelError, GGUFError) as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    if refusal:
        assert NAMES_IT.search(refusal), f"{what}: {refusal}"
        assert "\n" not in refusal, f"{what}: {refusal}"
        # `load` alone refuses kinds of vocabularies that are not known
        assert is_found(path) or "tokenizer.ggml." in refusal, f"{what}: {refusal}"
        return Counter({"refused": 1})
    assert found is not None
    if same(found, sound.results):
        return Counter({"the same": 1})
    assert free, f"{what}: other results, silently"
    return Counter({"another model": 1})


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """Run some programs."""
    return one_by_one(program, seed, programs, loop, first)
