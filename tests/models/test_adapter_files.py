"""Files of adapters: folders of PEFT, what is refused, what other programs compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import adapter_files, random_folders, random_models

import aggml
from aggml.models import ModelError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

pytestmark = pytest.mark.anyio

#: Folders, and the modules of a layer that their adapters change.
FOLDERS: dict[str, tuple[str, ...]] = {
    "llama": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"),
    "qwen2": ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj"),
    "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gpt_neox": ("attention.query_key_value", "mlp.dense_h_to_4h"),
    "gpt2": ("attn.c_attn", "mlp.c_proj"),
    "granitemoehybrid": ("shared_mlp.input_linear", "shared_mlp.output_linear"),
    "qwen3_moe": ("self_attn.q_proj", "self_attn.o_proj"),
}


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    """The CPU."""
    async with aggml.get_device("CPU").backend(n_threads=2) as opened:
        yield opened


async def logits_of(path: Path, backend: aggml.Backend, **options: Any) -> F32:
    """The logits of a prompt."""
    ids = random_models.prompt()
    async with aggml.models.load(path, backend, cache="f32", slots=1, **options) as model:
        ids = [x % model.vocabulary_size for x in ids]
        return await model.logits(ids)


def case_of(kind: str) -> str | None:
    """The recorded folder of a type of model."""
    cases = random_folders.cases()
    return next((x for x, told in cases.items() if told["config"].get("model_type") == kind), None)


def adapter_for(case: str, ends: tuple[str, ...]) -> dict[str, tuple[F32, F32]]:
    """An adapter for the modules of a folder; gpt2 has its matrices transposed."""
    found = {}
    for name, shape in random_folders.cases()[case]["tensors"].items():
        if name.removesuffix(".weight").endswith(ends) and len(shape) == 2:
            wide = tuple(shape[::-1]) if ".c_" in name else tuple(shape)
            found[name.removesuffix(".weight")] = wide
    return adapter_files.pairs(found, "peft", rank=4)


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("form", ["folder", "gguf"])
async def test_a_folder_of_peft_gives_the_logits_of_the_merged_folder(
    backend: aggml.Backend, tmp_path: Path, kind: str, form: str
) -> None:
    case = case_of(kind)
    assert case is not None
    told = random_folders.cases()[case]
    base = random_folders.write(tmp_path / "base", case)
    parts = adapter_for(case, FOLDERS[kind])
    assert parts
    adapter = adapter_files.write_folder(tmp_path / "adapter", parts)
    merged = random_folders.weights(case, told["tensors"])
    for module, (a, b) in parts.items():
        change = b.astype(np.float64) @ a * (adapter_files.ALPHA / len(a))
        name = f"{module}.weight"
        merged[name] = (merged[name] + (change.T if ".c_" in module else change)).astype(np.float32)
    wanted = await logits_of(
        random_folders.save(tmp_path / "merged", told["config"], merged), backend
    )
    plain = await logits_of(base, backend)
    path = base
    if form == "gguf":
        path = tmp_path / "base.gguf"
        await aggml.models.convert(base, path)
    found = await logits_of(path, backend, adapters=[(adapter, 1.0)])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert np.abs(wanted - plain).max() > 0.02


async def test_ranks_alphas_and_scales_of_peft_hold_for_each_module(tmp_path: Path) -> None:
    from aggml.models.adapters.peft import base_of, read_adapter_folder
    from aggml.models.weights import open_model

    base = random_models.write(tmp_path / "base.gguf", "qwen2")
    shapes = {
        f"model.layers.{i}.{x}": (64, 64)
        for i in (0, 1) for x in ("self_attn.q_proj", "self_attn.o_proj")
    }  # fmt: skip
    parts = adapter_files.pairs(shapes, "x", rank=4)
    name = "model.layers.1.self_attn.o_proj"
    parts[name] = adapter_files.pairs({name: (64, 64)}, "y", rank=9)[name]
    config = {
        "rank_pattern": {"layers.1.self_attn.o_proj": 9}, "alpha_pattern": {"o_proj": 5.0},
        "use_rslora": True, "lora_alpha": 6,
    }  # fmt: skip
    adapter = adapter_files.write_folder(tmp_path / "adapter", parts, config=config, prefix=False)
    with await open_model(base) as file:
        found = read_adapter_folder(adapter, base_of(file))
    for module, (a, b) in parts.items():
        i, part = module.split(".")[2], "attn_q" if "q_proj" in module else "attn_output"
        alpha = 6 if part == "attn_q" else 5
        change = found[f"blk.{i}.{part}.weight"]
        np.testing.assert_allclose(change.whole, b @ a * alpha / np.sqrt(len(a)), atol=1e-5)


def _gguf(**told: Any) -> Callable[[Path], Any]:
    """An adapter that is written otherwise than it should be."""

    def make(folder: Path) -> Path:
        parts = adapter_files.pairs(adapter_files.shapes_of("llama", ("attn_q",)), "x")
        alpha = told.get("alpha", adapter_files.ALPHA)
        architecture = told.get("architecture", "llama")
        change = told.get("change")
        if change is not None:
            parts = change(parts)
        path = folder / "adapter.gguf"
        adapter_files.write(path, architecture, parts, alpha=alpha, told=told.get("keys"))
        return path

    return make


def _peft_of(a: tuple[int, ...], b: tuple[int, ...]) -> Any:
    def make(folder: Path) -> Path:
        both = np.ones(a, np.float32), np.ones(b, np.float32)
        return adapter_files.write_folder(
            folder / "adapter", {"model.layers.0.self_attn.q_proj": both}, config={"r": 4}
        )

    return make


def _renamed(name: str) -> Callable[[Any], Any]:
    return lambda parts: {name: next(iter(parts.values()))}


def _nan(parts: Any) -> Any:
    next(iter(parts.values()))[1][3, 1] = np.nan
    return parts


def _cut(parts: Any) -> Any:
    return {name: (a[:, :-1].copy(), b) for name, (a, b) in parts.items()}


def _unlike(parts: Any) -> Any:
    return {name: (a[:-1].copy(), b) for name, (a, b) in parts.items()}


def _with(name: str) -> Callable[[Path], Path]:
    """An adapter with one tensor alone."""

    def make(folder: Path) -> Path:
        path = folder / "adapter.gguf"
        with aggml.GGUFWriter(path) as writer:
            for key, value in (
                ("general.type", "adapter"), ("general.architecture", "llama"),
                ("adapter.type", "lora"),
            ):  # fmt: skip
                writer.add(key, value)
            writer.add_tensor(name, np.ones((2, 64), np.float32))
        return path

    return make


def _peft(config: Any = None, module: str = "model.layers.0.self_attn.q_proj") -> Any:
    def make(folder: Path) -> Path:
        parts = adapter_files.pairs({module: (64, 64)}, "x")
        return adapter_files.write_folder(folder / "adapter", parts, config=config)

    return make


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no file": (lambda folder: folder / "none.gguf", "cannot open the adapter"),
    "a model": (
        lambda folder: random_models.write(folder / "x.gguf", "llama"),
        "general.type = None",
    ),
    "another architecture": (_gguf(architecture="qwen2"), "general.architecture = 'qwen2'"),
    "another type": (_gguf(keys={"adapter.type": "ia3"}), "adapter.type = 'ia3'"),
    "alpha 0": (_gguf(alpha=0.0), "alpha is 0.0"),
    "alpha NaN": (_gguf(alpha=float("nan")), "alpha is nan"),
    "begins late": (_gguf(keys={"adapter.alora.invocation_tokens": [1]}), "invocation_tokens"),
    "NaN": (_gguf(change=_nan), "NaN or infinity in the matrix B of 'blk.0.attn_q.weight'"),
    "too few columns": (_gguf(change=_cut), "63 columns"),
    "other ranks": (_gguf(change=_unlike), "rank 2, .lora_b has 3"),
    "no such matrix": (_gguf(change=_renamed("blk.9.attn_q.weight")), "'blk.9.attn_q.weight'"),
    "embeddings": (_gguf(change=_renamed("token_embd.weight")), "cannot take an adapter"),
    "a norm": (_gguf(change=_renamed("blk.0.attn_norm.weight")), "cannot take an adapter"),
    "no B": (_with("blk.0.attn_q.weight.lora_a"), r"no tensor 'blk.0.attn_q.weight.lora_b'"),
    "no A": (_with("blk.0.attn_q.weight.lora_b"), r"no tensor 'blk.0.attn_q.weight.lora_a'"),
    "another tensor": (_with("blk.0.attn_norm.weight"), "neither a lora_a nor a lora_b"),
    "an empty folder": (lambda folder: folder, "no adapter_config.json"),
    "IA3": (_peft({"peft_type": "IA3"}), "peft_type = 'IA3'"),
    "DoRA": (_peft({"use_dora": True}), "use_dora"),
    "biases": (_peft({"bias": "all"}), "bias = 'all'"),
    "PiSSA": (_peft({"init_lora_weights": "pissa"}), "init_lora_weights = 'pissa'"),
    "another rank": (_peft({"r": 8}), "r = 8"),
    "no rank": (_peft({"lora_alpha": 0}), "lora_alpha is 0"),
    "a text as alpha": (_peft({"lora_alpha": "16"}), "lora_alpha is '16'"),
    "numbers alone": (_peft_of((), ()), "are no matrices of one rank"),
    "rows alone": (_peft_of((4,), (64,)), "are no matrices of one rank"),
    "the rank 0": (_peft_of((0, 64), (64, 0)), "are no matrices of one rank"),
    "an expert": (_peft(module="model.layers.0.mlp.experts.3.up_proj"), "experts.3.up_proj"),
    "the head of a tied model": (_peft(module="lm_head"), "changes 'lm_head'"),
    "a huge layer": (_peft(module="model.layers.999999.self_attn.q_proj"), "layers.999999"),
}


@pytest.mark.long(cases=8)
@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_adapter_is_refused_by_name(
    backend: aggml.Backend, tmp_path: Path, what: str
) -> None:
    make, says = WRONG[what]
    base = random_models.write(tmp_path / "base.gguf", "llama-tied")
    adapter = make(tmp_path)
    for given in ([(adapter, 1.0)], {"x": adapter}):
        with pytest.raises(ModelError, match=says):
            await aggml.models.load(base, backend, adapters=given)
    with pytest.raises(ModelError, match=says):
        await aggml.models.convert(base, tmp_path / "target.gguf", adapters=[adapter])
    assert not (tmp_path / "target.gguf").exists()


async def test_experts_take_no_adapter_and_the_error_says_what_does(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "qwen3moe")
    parts = adapter_files.pairs({"blk.0.ffn_up_exps.weight": (32, 64)}, "x")
    adapter = adapter_files.write(tmp_path / "adapter.gguf", "qwen3moe", parts)
    with pytest.raises(ModelError, match=r"ffn_up_exps.*attn_output, attn_q, attn_v, ffn_gate_inp"):
        await aggml.models.load(base, backend, adapters=[(adapter, 1.0)])


WRONG_VECTORS: dict[str, tuple[dict[str, int], str]] = {
    "layer 0": ({"direction.0": 64}, "'direction.0'; a model of 4 layers"),
    "a layer too many": ({"direction.4": 64}, "'direction.4'; a model of 4 layers"),
    "another width": ({"direction.1": 32}, "has 32 elements, the model is 64 wide"),
    "another tensor": ({"output.weight": 64}, "'output.weight'"),
    "twice": ({"direction.1": 64, "direction.01": 64}, "two directions for the layer 1"),
    "nothing": ({}, "no tensor direction.1"),
}


@pytest.mark.parametrize("what", WRONG_VECTORS)
async def test_a_wrong_control_vector_is_refused_by_name(
    backend: aggml.Backend, tmp_path: Path, what: str
) -> None:
    tensors, says = WRONG_VECTORS[what]
    base = random_models.write(tmp_path / "base.gguf", "llama")
    path = tmp_path / "vector.gguf"
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "controlvector")
        for name, n in tensors.items():
            writer.add_tensor(name, np.ones(n, np.float32))
    with pytest.raises(ModelError, match=says):
        await aggml.models.load(base, backend, control_vectors=[(path, 1.0)])


async def test_wrong_arguments_are_refused_at_the_call(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    path = _gguf()(tmp_path)
    wrong: list[Any] = [
        str(path), path, b"x", 3, iter([(path, 1.0)]), {path}, [3], [(path,)],
        [(path, 1.0, 2.0)], [(path, "1")], [(path, float("nan"))], [(path, True)],
        {1: path}, {"": path}, {"x": None}, {"x": (path, float("inf"))},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(aggml.InvalidArgument, match=r"\[load\] adapters"):
            aggml.models.load(base, backend, adapters=given)
    others: list[Any] = [str(path), {"x": path}, [3]]
    for given in others:
        with pytest.raises(aggml.InvalidArgument, match=r"\[load\] control_vectors"):
            aggml.models.load(base, backend, control_vectors=given)


async def test_an_unknown_name_is_refused_with_the_names_that_there_are(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    path = _gguf()(tmp_path)
    names = {"poems": path, "code": path}
    async with aggml.models.load(base, backend, slots=1, adapters=names) as model:
        for name in ("law", 3, "", ["poems"]):
            with pytest.raises(aggml.InvalidArgument, match="adapters 'poems', 'code'"):
                model.generate([1], adapter=name)
            with pytest.raises(aggml.InvalidArgument, match="adapters 'poems', 'code'"):
                await model.logits([1], adapter=name)  # type: ignore[call-arg]
            with pytest.raises(aggml.InvalidArgument, match="adapters 'poems', 'code'"):
                await model.embed_ids([[1]], adapter=name)  # type: ignore[call-arg]
    async with aggml.models.load(base, backend, slots=1) as model:
        with pytest.raises(aggml.InvalidArgument, match="the adapters none"):
            model.generate([1], adapter="poems")


async def test_a_model_that_does_not_continue_text_takes_no_adapters(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "bert", random_models.words())
    path = _gguf()(tmp_path)
    for options in ({"adapters": [(path, 1.0)]}, {"control_vectors": [(path, 1.0)]}):
        with pytest.raises(aggml.InvalidArgument, match="bert does not continue text"):
            await aggml.models.load(base, backend, **options)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument, match="bert does not continue text"):
        await aggml.models.convert(base, tmp_path / "x.gguf", adapters=[path])
    async with aggml.models.load(base, backend) as model:
        with pytest.raises(aggml.InvalidArgument, match="adapter is 'x'"):
            await model.embed(["a"], adapter="x")  # type: ignore[call-arg]


def test_a_name_with_a_scale_is_read_by_the_program(tmp_path: Path) -> None:
    import click

    from aggml.cli.shared import scaled_paths

    option, context = click.Option(["--adapter"]), click.Context(click.Command("x"))
    path = tmp_path / "a:2"
    path.write_text("")
    other = tmp_path / "b"
    other.write_text("")
    found = scaled_paths(context, option, (str(path), f"{path}:0.5", f"{other}:-1"))
    assert found == ((path, 1.0), (path, 0.5), (other, -1.0))
    for wrong in ("none", f"{other}:x", ":1"):
        with pytest.raises(click.BadParameter, match="no file or folder"):
            scaled_paths(context, option, (wrong,))


async def test_answers_are_those_of_llama_cpp(backend: aggml.Backend, tmp_path: Path) -> None:
    """Logits that llama-cpp-python computed; benchmarks/make_adapters.py has recorded them."""
    with np.load(Path(__file__).with_name("reference_adapters.npz")) as file:
        recorded = {name: file[name] for name in file.files}
    for case in json.loads(str(recorded["told"])):
        layout, scale = case["layout"], case["scale"]
        base = random_models.write(tmp_path / f"{layout}.gguf", layout)
        options: dict[str, Any] = {}
        if case["kind"] == "lora":
            path = adapter_files.example_adapter(tmp_path / "adapter.gguf", layout)
            options["adapters"] = [(path, scale)]
        else:
            path = adapter_files.example_control(tmp_path / "control.gguf", layout)
            options["control_vectors"] = [(path, scale)]
        wanted = recorded[case["name"]]
        found = (await logits_of(base, backend, **options))[-len(wanted) :]
        plain = (await logits_of(base, backend))[-len(wanted) :]
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error < 5e-3, case
        assert np.abs(found - plain).max() > 0.1 * np.abs(wanted).max()
