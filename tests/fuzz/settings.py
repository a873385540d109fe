"""Folders with one changed setting of config.json: carried out, known to be harmless, or refused.

A program changes, removes or adds one setting of a folder and opens it. Either one ModelError names
the setting, or a tensor that does not fit it; or GGUF's keys, types or shapes are others than
before; or they are the same, and then the table of settings must say that this one changes nothing.
No weights are loaded. Not here: the numbers (tests/models/test_folders.py).
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.rounds import one_by_one
from models import random_folders

from aggml.models import ModelError, catalogue
from aggml.models.checking import describe_checked, vocabulary_problems
from aggml.models.checkpoints import ModelFolder
from aggml.models.checkpoints.settings import HARMLESS, NEUTRAL

if TYPE_CHECKING:
    import random

    from fuzz.rounds import Report

__all__ = ["LOOPS", "SHORT", "run"]

LOOPS = ("asyncio",)
SHORT = 200
SLOW = ("deepseek2-lite",)  # 27 layers
INVENTED = (
    "attention_window", "use_alibi", "logit_scale_2", "query_scale", "foo", "layer_scale",
    "attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "quantization_config",
    "rope_scaling", "clip_qkv", "embedding_multiplier", "layer_types", "no_rope_layers",
    "multi_query", "alibi", "use_sliding_window", "hidden_act", "is_decoder",
)  # fmt: skip
#: Settings that are read, but that may be any value within limits for the same result.
READ = {
    "architectures": "it chooses among maps of the same model",
    "model_type": "several types have the same map",
    "tie_word_embeddings": "of a folder without lm_head both values are either right or refused",
    "rope_parameters": "a setting may be the default",
    "rope_scaling": "the same",
    "_sliding_window_pattern": "layer_types say the same",
    "sliding_window_pattern": "layer_types say the same",
    "no_rope_layer_interval": "no_rope_layers say the same",
    "mamba_norm_before_gate": "without mamba_rms_norm there is no norm",
    "hidden_act": "llama.cpp computes several kinds of GELU in the same way",
}


@functools.cache
def _place() -> Path:
    return Path(tempfile.mkdtemp())


@functools.cache
def _folder(case: str) -> tuple[Path, str]:
    folder = random_folders.write(_place() / case, case)
    return folder, opened(folder)


def opened(folder: Path) -> str:
    """What a folder says: keys, types and shapes."""
    with ModelFolder.open(folder, catalogue.checkpoints()) as file:
        model = describe_checked(file.metadata, file.tensors)
        rows = file.tensors["token_embd.weight"].ne[1]
        assert not [*vocabulary_problems(file.metadata, rows)]
        made = {
            name: zlib.crc32(file.array(name).tobytes())
            for name, x in file._made.items()
            if x.recipe is not None  # config.json may say what the elements are multiplied by
        }
        tensors = {name: (t.dtype.name, t.ne) for name, t in file.tensors.items()}
        recipes = {k: v.recipe is None for k, v in file._made.items()}
        return repr((file.metadata, tensors, made, recipes, model))


def changed(source: random.Random, value: Any) -> Any:
    """Another value."""
    anything = [None, "", "big", -1, 0, 1, 2, 3, 7, 100_000, 1 << 40, 0.5, math.nan, True, False,
                [], ["a"], {}, {"a": 1}]  # fmt: skip
    if source.random() < 0.4:
        return source.choice(anything)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return source.choice(
            [value + 1, value - 1, 2 * value, value // 2, str(value), float(value)]
        )
    if isinstance(value, float):
        return source.choice([2 * value + 1, -value - 1, str(value), math.inf])
    if isinstance(value, str):
        return source.choice([value + "x", "relu", "gelu", "silu", value.upper()])
    if isinstance(value, list) and value:
        return source.choice([value[:-1], [*value, value[0]], value[::-1], [value[0]] * len(value)])
    if isinstance(value, dict) and value:
        key = source.choice([*value])
        rest = {k: v for k, v in value.items() if k != key}
        new = changed(source, value[key])
        return source.choice(
            [rest, value | {key: new}, value | {"foo": 1}, value | {"mscale": 0.5}]
        )
    return source.choice(anything)


def is_harmless(case: str, name: str, before: Any, after: Any) -> bool:
    """Whether a change may leave the model as it is, by the table."""
    own = [x.harmless for _, x in catalogue.checkpoints()]
    if name in HARMLESS or name in READ or any(name in x for x in own):
        return True
    if after is None:
        return True  # as if it were not there: the usual value
    same = [*NEUTRAL.get(name, ()), None]
    return (before in same or before is None) and (after in same or after is None)


async def program(source: random.Random) -> Counter[str]:
    """One changed folder."""
    case = source.choice([x for x in random_folders.cases() if x not in SLOW])
    folder, before = _folder(case)
    config = dict(random_folders.cases()[case]["config"])
    if source.random() < 0.15:
        name = source.choice(INVENTED)
        value = source.choice([True, 3, 0.5, "x", ["sliding_attention"] * 2, {"a": 1}, 4096])
    else:
        name = source.choice([*config])
        value = changed(source, config[name])
    new = dict(config)
    if value is None and source.random() < 0.5:
        new.pop(name, None)
    else:
        new[name] = value
    what = f"{case}: {name} = {value!r:.80}, was {config.get(name)!r:.80}"
    (folder / "config.json").write_text(json.dumps(new), encoding="utf-8")
    refusal, after = "", before
    try:
        after = opened(folder)
    except ModelError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    if refusal:
        assert "\n" not in refusal, what
        assert name in refusal or "tensor" in refusal or "." in refusal, f"{what}: {refusal}"
        return Counter({"refused": 1})
    if after != before:
        return Counter({"carried out": 1})
    shadowed = name != "text_config" and name in (config.get("text_config") or {})
    if new == config or value == config.get(name) or shadowed:
        return Counter({"unchanged": 1})
    assert is_harmless(case, name, config.get(name), value), f"{what}: dropped silently"
    return Counter({"harmless": 1})


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """Run some programs."""
    return one_by_one(program, seed, programs, loop, first)
