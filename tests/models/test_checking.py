"""A model file with something wrong in it is refused when it is loaded, by one sentence.

The sentence names the key or the tensor and its value, and ``aggml gguf check`` prints it, too. Not
here: damaged bytes (tests/gguf/test_damaged.py), thousands of changes (tests/fuzz/metadata.py).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from cli.program import run
from models import random_models
from models.layout import VOCABULARY, WIDTH

import aggml
from aggml.models import ModelError
from aggml.models.catalogue import describe
from aggml.models.checking import describe_checked, problems_of
from aggml.models.encoder.weights import EncoderFile
from aggml.models.hyperparameters import Hyperparameters
from aggml.models.small import tokens as small_tokens
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from pathlib import Path

AT: Final = "tokenizer.ggml."
N: Final = VOCABULARY
LAYOUTS: Final = [*random_models.LAYOUTS, *random_models.ENCODERS]


def sentencepiece() -> dict[str, Any]:
    names, kinds = small_tokens()
    return {
        f"{AT}model": "llama", f"{AT}tokens": names[:N], f"{AT}scores": [0.0] * N,
        f"{AT}token_type": kinds[:N], f"{AT}bos_token_id": 1, f"{AT}eos_token_id": 2,
    }  # fmt: skip


def byte_level() -> dict[str, Any]:
    letters = [chr(33 + i) if i < 94 else chr(0x100 + i) for i in range(N - 4)]
    return {
        f"{AT}model": "gpt2", f"{AT}pre": "gpt-2",
        f"{AT}tokens": ["<s>", *letters, "ab", "abc", "x!"],
        f"{AT}token_type": [3] + [1] * (N - 1), f"{AT}merges": ["a b", "ab c"],
        f"{AT}eos_token_id": 0,
    }  # fmt: skip


def changed(tokens: list[str], at: int, to: str) -> list[str]:
    return [*tokens[:at], to, *tokens[at + 1 :]]


PIECES: Final = sentencepiece()[f"{AT}tokens"]
KINDS: Final = sentencepiece()[f"{AT}token_type"]
WRONG_VOCABULARIES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "too few tokens": ({"tokens": PIECES[:-1]}, "tokens has 319 tokens, expected were 320"),
    "too many tokens": ({"tokens": [*PIECES, "x"]}, "tokens has 321 tokens"),
    "tokens that are numbers": ({"tokens": list(range(N))}, "tokens is .*expected was an array of"),
    "one text instead of tokens": ({"tokens": "abc"}, "tokens is 'abc'"),
    "a token twice": ({"tokens": changed(PIECES, 9, PIECES[8])}, "twice, as tokens 8 and 9"),
    "too few scores": ({"scores": [0.0] * 10}, "scores has 10 values, expected were 320"),
    "too many scores": ({"scores": [0.0] * (N + 1)}, "scores has 321 values"),
    "no scores": ({"scores": None}, r"no tokenizer.ggml.scores"),
    "scores that are texts": ({"scores": ["0"] * N}, "scores is .*array of 320 numbers"),
    "a score that is NaN": ({"scores": [0.0] * 5 + [math.nan] * (N - 5)}, "nan for token 5"),
    "too few types": ({"token_type": KINDS[:-3]}, "token_type has 317 values"),
    "a type that is unknown": ({"token_type": [99, *KINDS[1:]]}, "token_type has 99 for token 0"),
    "a type below 0": ({"token_type": [-1, *KINDS[1:]]}, "token_type has -1 for token 0"),
    "types that are floats": ({"token_type": [1.0] * N}, "token_type is"),
    "a byte that is none": ({"tokens": changed(PIECES, 9, "<0xZZ>")}, "token 9 is a byte.*<0xZZ>"),
    "EOS beyond the end": ({"eos_token_id": 100_000}, "eos_token_id is 100000.*from 0 to 319"),
    "BOS beyond the end": ({"bos_token_id": N}, "bos_token_id is 320"),
    "EOS below 0": ({"eos_token_id": -1}, "eos_token_id is -1"),
    "EOS by its text": ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    "EOS as a float": ({"eos_token_id": 2.0}, "eos_token_id is 2.0"),
    "a padding token beyond the end": ({"padding_token_id": 4_000_000}, "_token_id is 4000000"),
    "a suppressed token beyond the end": ({"suppress_tokens": [3, N]}, "suppress_tokens is 320"),
    "a suppressed token below 0": ({"suppress_tokens": [-1]}, "suppress_tokens is -1"),
    "suppressed tokens that are texts": ({"suppress_tokens": ["a"]}, "suppress_tokens is"),
    "suppressed tokens that are none": ({"suppress_tokens": 5}, "suppress_tokens is 5"),
    "a flag that is a number": ({"add_bos_token": 1}, "add_bos_token is 1"),
    "a flag that is a text": ({"add_space_prefix": "no"}, "add_space_prefix is 'no'"),
    "no name of a kind": ({"model": 5}, "model is 5"),
    "an unknown kind": ({"model": "wordy"}, "'wordy'"),
    "no tokens": ({"tokens": None}, "no tokenizer.ggml.tokens"),
}  # fmt: skip
WRONG_MERGES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "one piece": ({"merges": ["ab"]}, "'ab' as number 0, expected were two pieces"),
    "an empty merge": ({"merges": ["a b", ""]}, "'' as number 1"),
    "a piece that is no token": ({"merges": ["a b", "q zz"]}, "'zz' is not among"),
    "a result that is no token": ({"merges": ["q r"]}, "'qr' is not among"),
    "a merge twice": ({"merges": ["a b", "a b"]}, "'a b' twice"),
    "numbers": ({"merges": [1, 2]}, "merges is"),
    "pairs": ({"merges": [["a", "b"]]}, "merges is"),
    "no merges": ({"merges": None}, "no tokenizer.ggml.merges"),
    "a way of cutting that is unknown": ({"pre": "gpt-99"}, "pre is 'gpt-99'"),
    "a way of cutting that is a number": ({"pre": 7}, "pre is 7"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrong")


def with_values(path: Path, layout: str, base: dict[str, Any], changes: dict[str, Any]) -> Path:
    """A file with another vocabulary; None removes a key."""
    told = {k: v for k, v in (base | changes).items() if v is not None}
    return random_models.write(path, layout, told)


async def refused(path: Path, why: str) -> None:
    """The file is refused by `load`, and by the program in one line without a traceback."""
    with pytest.raises(ModelError, match=why) as caught:
        await aggml.models.load(path)
    assert "\n" not in str(caught.value)
    with aggml.GGUFFile.open(path) as file:
        found = [*problems_of(file.metadata, file.tensors)]
    if "unknown" not in why and not any(x in str(caught.value) for x in ("known are", "wordy")):
        assert str(caught.value) in found


@pytest.mark.parametrize("case", WRONG_VOCABULARIES)
async def test_a_wrong_vocabulary_is_refused_by_name(folder: Path, case: str) -> None:
    changes, why = WRONG_VOCABULARIES[case]
    more = {AT + key: value for key, value in changes.items()}
    await refused(with_values(folder / "words.gguf", "llama", sentencepiece(), more), why)


@pytest.mark.parametrize("case", WRONG_MERGES)
async def test_wrong_merges_are_refused_by_name(folder: Path, case: str) -> None:
    changes, why = WRONG_MERGES[case]
    more = {AT + key: value for key, value in changes.items()}
    await refused(with_values(folder / "merges.gguf", "llama", byte_level(), more), why)


async def test_sound_vocabularies_are_read(folder: Path) -> None:
    for base in (sentencepiece(), byte_level()):
        async with await aggml.models.load(with_values(folder / "sound.gguf", "llama", base, {})):
            pass


HYPERPARAMETERS: Final[list[tuple[str, str, Any]]] = [
    *(("llama", key, value)
      for key in ("block_count", "context_length", "embedding_length", "attention.head_count")
      for value in (0, -1, 1 << 31, "4", 4.0, True, math.nan, [1, 2])),
    *(("llama", "attention.head_count_kv", value) for value in (-2, 3, 8, "2", 0.5, [2, 2])),
    *(("llama", "attention.layer_norm_rms_epsilon", value)
      for value in (-1e-5, math.nan, math.inf, "small", 3.0)),
    *(("llama", "rope.freq_base", value) for value in (0.0, -1.0, math.nan, "10000")),
    *(("llama", "rope.dimension_count", value) for value in (0, 7, 18, -2, "16")),
    *(("llama", "attention.key_length", value) for value in (0, 24, -16, "16")),
    ("llama", "block_count", 3), ("llama", "block_count", 5), ("llama", "attention.head_count", 3),
    ("llama", "embedding_length", 65), ("llama", "embedding_length", 128),
    ("llama-linear", "rope.scaling.type", "spiral"), ("llama-linear", "rope.scaling.type", 1),
    ("llama-linear", "rope.scaling.factor", -4.0), ("llama-yarn", "rope.scaling.factor", math.nan),
    ("mixtral", "expert_used_count", 0), ("mixtral", "expert_used_count", 9),
    ("mixtral", "expert_count", 4), ("mixtral", "expert_count", 1 << 30),
    ("gemma2", "attention.sliding_window", 0), ("gemma2", "attn_logit_softcapping", math.nan),
    ("gemma2", "final_logit_softcapping", -30.0), ("gpt-oss", "attention.sliding_window", -12),
    ("deepseek2", "attention.kv_lora_rank", 31), ("deepseek2", "expert_group_count", 3),
    ("mamba2", "ssm.time_step_rank", 3), ("mamba2", "ssm.conv_kernel", 1),
    ("mamba2", "ssm.state_size", 0), ("rwkv7", "wkv.head_size", 48), ("rwkv7", "wkv.head_size", 0),
    ("qwen3next", "ssm.group_count", 3), ("bert", "pooling_type", 9),
    ("bert", "attention.key_length", 8),
    *((of, "pooling_type", value)
      for of in ("bert", "llama", "mamba2") for value in (-1, 0.5, 1.0, True, "mean", [1.5])),
    ("bert", "context_length", 511),
    ("bert", "attention.head_count", 5), ("granite", "logit_scale", 0.0),
    ("granitehybrid", "attention.head_count_kv", [0, 0, 2]),
    ("granitehybrid", "attention.head_count_kv", [0, 2, 0, 0]),
    ("glm4moe-normed", "block_count", 6), ("glm4moe-normed", "nextn_predict_layers", 0),
    ("qwen35-ahead", "block_count", 8),
    ("granite_swa", "attention.rope_pattern", [True, False]),
    ("granite_swa", "attention.rope_pattern", [2, 1, 1, 1]),
    ("laguna", "rope.dimension_count_swa", 7), ("laguna", "attention.head_count", [4, 5, 6, 6, 4]),
    ("jamba", "attention.head_count_kv", [0, 2]), ("minicpm3", "rope.dimension_count", 24),
    ("deci", "attention.head_count_kv", [2, 3, 0, 0, 4]),
    ("deci", "feed_forward_length", [256, 0, 256, 256, 512]),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "key", "value"), HYPERPARAMETERS, ids=str)
async def test_a_wrong_hyperparameter_is_refused_by_name(
    folder: Path, layout: str, key: str, value: Any
) -> None:
    path = random_models.write(folder / f"{layout}-hp.gguf", layout)
    with aggml.GGUFFile.open(path) as file:
        name = f"{file.metadata['general.architecture']}.{key}"
        metadata = dict(file.metadata) | {name: value}
        with pytest.raises(ModelError) as caught:
            describe_checked(metadata, file.tensors)
        assert name in str(caught.value) or "tensor '" in str(caught.value)
        assert str(caught.value) in [*problems_of(metadata, file.tensors)]


def other_shapes(ne: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes that a tensor of this shape must not have."""
    found = [tuple(n + 32 * (i == k) for k, n in enumerate(ne)) for i in range(len(ne))]
    found += [
        tuple(max(n // 2, 1) if i == k else n for k, n in enumerate(ne)) for i in range(len(ne))
    ]
    found += [(*ne[1:], ne[0]), (1,)]
    return [x for x in found if x != ne and x != (*ne, 1)]


#: Extents that only the file gives, or that a file may have in two ways.
LOOSE: Final = ("output.weight", "token_types.weight")


@pytest.mark.long(cases=9)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "exaone4-32b"])
def test_every_wrong_shape_is_refused_by_name(folder: Path, layout: str, *, every: bool) -> None:
    """Or each second one of each tensor, the first or the second first in turn.

    Of a layer like the first one only what the first one does not have, unless every one is tried.
    """
    path = random_models.write(folder / f"{layout}-shapes.gguf", layout)
    tried, turn = 0, False
    with aggml.GGUFFile.open(path) as file:
        assert [*problems_of(file.metadata, file.tensors)] == []
        for name, tensor in file.tensors.items():
            of_other_layers = name.startswith("blk.") and not name.startswith(("blk.0.", "blk.2."))
            if of_other_layers or name in LOOSE or tensor.dtype.is_quantized:
                continue
            alike = file.tensors.get(name.replace("blk.2.", "blk.0."), tensor)
            if alike is not tensor and alike.ne == tensor.ne and not every:
                continue
            shapes = other_shapes(tensor.ne[: tensor.ndim])
            turn = not turn
            for ne in shapes if every else shapes[turn::2]:
                other = aggml.new_tensor(tensor.dtype, ne=ne, name=name[:60])
                tensors = dict(file.tensors) | {name: other}
                same = math.prod(ne) == tensor.nelements
                if (name in FLAT and same) or tensor.ne == (*ne, 1, 1, 1, 1)[:4]:
                    continue
                if name == "token_embd.weight" and ne[0] == tensor.ne[0]:
                    continue  # without a vocabulary only these rows say how many tokens there are
                found = [*problems_of(file.metadata, tensors)]
                assert found, (name, ne)
                assert any("tensor '" in x or "tokens" in x for x in found), found
                tried += 1
        for kind in ("i32", "f64"):
            other = aggml.new_tensor(kind, ne=(WIDTH,), name="x")
            tensors = dict(file.tensors) | {"output_norm.weight": other}
            if "output_norm.weight" in file.tensors:
                assert any("output_norm.weight" in x and kind in x
                           for x in problems_of(file.metadata, tensors))  # fmt: skip
    assert tried > (30 if every else 8)


#: Tensors of which a graph uses the elements alone.
FLAT: Final = {
    f"blk.{i}.{name}.weight"
    for i in range(8)
    for name in ("channel_mix_lerp_k", "channel_mix_lerp_r", "ffn_gate_inp_shexp",
                 *(f"time_mix_{x}" for x in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")),
                 *(f"time_mix_{x}" for x in ("first", "decay", "lerp_fused")),
                 *(f"time_mix_lerp_{x}" for x in "xwkvrg"))
}  # fmt: skip


@pytest.mark.long(cases=10)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_graph_reads_every_tensor_that_a_file_may_have(folder: Path, layout: str) -> None:
    """What `forms` says and what the graph of a step looks up are the same names."""
    path = random_models.write(folder / f"{layout}-read.gguf", layout)
    read: set[str] = set()

    class Watched(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            read.add(name)
            return super().__getitem__(name)

        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

        def __contains__(self, name: object) -> bool:
            read.add(str(name))
            return super().__contains__(name)

    with aggml.GGUFFile.open(path) as file:
        forms = describe_checked(file.metadata, file.tensors).forms(file.tensors)
    async with await aggml.models.load(path, ctx=256) as model:
        if isinstance(model, aggml.models.EncoderModel):
            encoder: Any = model._encoder
            encoder.weights = Watched(encoder.weights)
            await model.embed_ids([[1, 2, 3]])
            with await open_model(path) as opened:
                made = EncoderFile(opened, encoder.model, None)
            read |= {source for name in [*read] for source in made._sources.get(name, ())}
        else:
            decoder: Any = model._computer
            builder = decoder._steps._builder
            builder._weights = Watched(builder._weights)
            await model.logits([1, 2, 3])
        there = set(file.tensors) & read
    heads = {x for x in forms if x.startswith("cls")}
    assert there <= set(forms)
    long = (
        {"rope_factors_short.weight"} if layout in ("phi3", "minicpm-long", "minicpm3") else set()
    )  # of shorter contexts
    unused = {"output.weight"} - read
    first = {x for x in file.tensors if x.startswith("blk.0.time_mix_v") and x[16] in "012"}
    numbers = {x.partition("nextn.")[0] for x in file.tensors if ".nextn." in x}
    ahead = {x for x in file.tensors if x.startswith(tuple(numbers))}  # of further tokens
    # Layers that read keys and values of earlier ones; their files have the tensors all the same.
    shared = (
        {x for x in file.tensors if x.startswith(("blk.20.attn_k", "blk.20.attn_v",
                                                  "blk.21.attn_k", "blk.21.attn_v"))}
        if layout.startswith("gemma3n") else set()
    )  # fmt: skip
    rest = set(file.tensors) - there - heads - long - unused - first - ahead - shared
    assert rest == set()


async def test_a_layer_of_further_tokens_is_not_loaded(folder: Path) -> None:
    path = random_models.write(folder / "ahead.gguf", "qwen35-ahead")
    async with await aggml.models.load(path, ctx=256) as model:
        decoder: Any = model._computer
        placed = {x for x, tensor in decoder.weights.items() if tensor.buffer is not None}
        assert {x for x in placed if x.startswith("blk.4.")} != set()
        assert {x for x in placed if x.startswith("blk.5.")} == set()
        assert len(decoder.model.layers) == 5
    wrong = {**random_models.metadata_of("qwen35-ahead"), "qwen35.nextn_predict_layers": 6}
    with pytest.raises(ModelError, match=r"nextn_predict_layers is 6, expected was .* to 5"):
        describe(Hyperparameters(wrong))


async def test_a_tensor_that_the_model_does_not_use_is_refused(folder: Path) -> None:
    path = random_models.write(folder / "more.gguf", "llama")
    with aggml.GGUFFile.open(path) as file:
        for name in ("blk.0.attn_q_norm.weight", "blk.0.attn_norm.bias", "extra", "blk.x.y.weight",
                     "blk.9.attn_q.weight"):  # fmt: skip
            other = aggml.new_tensor("f32", ne=(16,), name=name)
            with pytest.raises(ModelError, match=r"does not use|has tensors of 10 layers"):
                describe_checked(file.metadata, dict(file.tensors) | {name: other})


#: Weights that some files of an architecture have in all layers and others in none.
SOME_FILES: Final = {
    "glm4moe": r"attn_[qk]_norm|nextn\..*", "step35": "attn_[qk]_norm", "falcon": "attn_norm_2",
    "mimo2": r"attn_sinks|nextn\..*", "gemma3n": "attn_v", "gemma4": "attn_v|layer_output_scale",
    "falcon-h1": "ssm_norm",
}  # fmt: skip


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "exaone4-32b"])
def test_a_weight_that_all_layers_lack_is_refused(folder: Path, layout: str) -> None:
    """A norm that is left out would change all results, and nobody would see why."""
    path = random_models.write(folder / f"{layout}-lacking.gguf", layout)
    with aggml.GGUFFile.open(path) as file:
        layers = [x.split(".", 2) for x in file.tensors if re.match(r"blk\.\d+\..*weight$", x)]
        usual = SOME_FILES.get(file.metadata["general.architecture"], r"nextn\..*")
        for part in sorted({x[2] for x in layers}):
            if re.fullmatch(rf"({usual})\.weight", part):
                continue
            left = {x: y for x, y in file.tensors.items() if x.split(".", 2)[2:] != [part]}
            assert any(problems_of(file.metadata, left)), part


async def test_a_bias_that_one_layer_lacks_is_refused(folder: Path) -> None:
    path = random_models.write(folder / "uneven.gguf", "qwen2")
    with aggml.GGUFFile.open(path) as file:
        tensors = dict(file.tensors)
        del tensors["blk.2.attn_k.bias"]
        with pytest.raises(ModelError, match=r"no tensor 'blk.2.attn_k.bias', but it has 'blk.0"):
            describe_checked(file.metadata, tensors)


def test_the_program_prints_one_line_for_a_wrong_file(folder: Path) -> None:
    base, more = sentencepiece(), {f"{AT}eos_token_id": 100_000}
    path = with_values(folder / "line.gguf", "llama", base, more)
    for command in (["generate", path, "--prompt", "abc"], ["gguf", "check", path]):
        text, errors = run(*command, status=1)
        line = "\n".join([*text.splitlines(), *errors.splitlines()])
        assert line.count("\n") == 0, line
        assert "tokenizer.ggml.eos_token_id is 100000" in line
