"""Files of tensors: whole ones are read, damaged ones refused; from pickles only tensors are read.

Not here: folders of them (test_folders.py), trained weights (test_trained.py).
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from models import random_folders, random_models
from safetensors.numpy import save_file

import aggml
from aggml.models import ModelError
from aggml.models.checkpoints import SafeTensors, read_pickled

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "b": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.weight": np.arange(6, dtype=np.float16).reshape(2, 3),
    "c": np.arange(8).astype(ml_dtypes.bfloat16).reshape(2, 2, 2),
    "none": np.zeros((0, 3), np.float32),
    "one": np.array(7, np.int64),
}


def test_arrays_are_those_that_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({name: np.ascontiguousarray(x) for name, x in ARRAYS.items() if x.ndim}, path,
              {"note": "hello"})  # fmt: skip
    file = SafeTensors.open(path)
    assert {*file.stored} == {*ARRAYS} - {"one"}
    assert file.notes == {"note": "hello"}
    for name, stored in file.stored.items():
        assert file[name].dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(file[name], ARRAYS[name])
        assert not file[name].flags.writeable
        assert stored.nbytes == ARRAYS[name].nbytes


def _file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


_ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "cannot open"),
        (b"1234567", "it has only 7 bytes"),
        (_file({}, length=1 << 60), "its first 8 bytes give the header"),
        (_file({}, length=3), "give the header 3 bytes"),
        (_file(b"{nonsense"), "its header cannot be read"),
        (_file([1]), "its header cannot be read"),
        (_file({"x": 3}), "its header cannot be read"),
        (_file({"x": _ENTRY | {"dtype": "F31"}}, bytes(8)), "unknown type 'F31'"),
        (_file({"x": _ENTRY | {"shape": [3]}}, bytes(8)), r"shape \(3,\) needs 12 bytes, not 8"),
        (_file({"x": _ENTRY | {"shape": [-2]}}, bytes(8)), "cannot be read"),
        (_file({"x": _ENTRY | {"shape": [1 << 62, 1 << 62]}}, bytes(8)), "bytes, not 8"),
        (_file({"x": _ENTRY}, bytes(7)), "'x' reaches beyond the end"),
        (_file({"x": _ENTRY, "y": _ENTRY}, bytes(8)), "or overlaps another tensor"),
    ],
    ids=str,
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=why):
        SafeTensors.open(path)


# -- files of PyTorch, written here without PyTorch


class _Storage:
    """Stands for a torch storage while a pickle is written."""

    def __init__(self, array: np.ndarray[Any, Any], kind: type) -> None:
        self.array, self.kind = array, kind


class _Writer(pickle.Pickler):
    def __init__(self, to: io.BytesIO) -> None:
        super().__init__(to, protocol=2)
        self.storages: list[np.ndarray[Any, Any]] = []

    def persistent_id(self, obj: Any, /) -> Any:
        if not isinstance(obj, _Storage):
            return None
        self.storages.append(obj.array)
        return "storage", obj.kind, str(len(self.storages) - 1), "cpu", obj.array.size


class _Tensor:
    def __init__(self, rebuild: Any, *about: Any) -> None:
        self.rebuild, self.about = rebuild, about

    def __reduce__(self) -> Any:
        return self.rebuild, self.about


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules with torch's names, so that a pickle can refer to their members."""
    made = types.ModuleType("torch")
    utils = types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "BFloat16Storage", "QInt8Storage"):
        setattr(made, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2(*_: Any) -> None: ...

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
    made._utils = utils  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return made


def _tensor(torch: Any, kind: str, array: Any, **changes: Any) -> _Tensor:
    steps = tuple(x // array.itemsize for x in array.strides)
    told = {"offset": 0, "shape": array.shape, "steps": steps} | changes
    storage = _Storage(array.reshape(-1), getattr(torch, kind))
    return _Tensor(
        torch._utils._rebuild_tensor_v2, storage, told["offset"], told["shape"], told["steps"],
        False, OrderedDict(),
    )  # fmt: skip


def _save(path: Path, value: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    raw = io.BytesIO()
    writer = _Writer(raw)
    writer.dump(value)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", raw.getvalue())
        for i, array in enumerate(writer.storages):
            archive.writestr(f"model/data/{i}", array.tobytes())
    return path


def test_tensors_of_a_pickle_are_read(tmp_path: Path, torch: Any) -> None:
    floats = np.arange(12, dtype=np.float32).reshape(3, 4)
    halves = np.arange(6, dtype=np.float16)
    value = {
        "dims": {"layers": 4, "name": "tiny"},
        "state": OrderedDict(
            w=_tensor(torch, "FloatStorage", floats),
            turned=_tensor(torch, "FloatStorage", floats, shape=(4, 3), steps=(1, 4)),
            part=_tensor(torch, "HalfStorage", halves, offset=2, shape=(2,), steps=(2,)),
        ),
        "more": [_tensor(torch, "BFloat16Storage", halves.astype(ml_dtypes.bfloat16))],
    }
    found = read_pickled(_save(tmp_path / "x.pt", value))
    assert {*found} == {"state.w", "state.turned", "state.part", "more.0"}
    np.testing.assert_array_equal(found["state.w"], floats)
    np.testing.assert_array_equal(found["state.turned"], floats.T)
    np.testing.assert_array_equal(found["state.part"], halves[2:6:2])
    np.testing.assert_array_equal(found["more.0"].astype(np.float32), halves)
    assert not found["state.w"].flags.writeable


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def test_a_pickle_that_calls_anything_is_refused(tmp_path: Path) -> None:
    import os

    victim = tmp_path / "was-called"
    for function, argument in ((os.mkdir, str(victim)), (eval, "1"), (print, "x")):
        path = _save(tmp_path / "x.pt", {"w": _Call(function, argument)})
        with pytest.raises(ModelError, match="only tensors and plain containers are read"):
            read_pickled(path)
    assert not victim.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1}, {"offset": -1}, {"shape": (3, 5)}, {"steps": (5, 1)}, {"steps": (-4, 1)},
        {"steps": (4,)}, {"shape": (1 << 40, 4)},
    ],
    ids=str,
)  # fmt: skip
def test_a_tensor_beyond_its_storage_is_refused(
    tmp_path: Path, torch: Any, changes: dict[str, Any]
) -> None:
    floats = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = _save(tmp_path / "x.pt", {"w": _tensor(torch, "FloatStorage", floats, **changes)})
    with pytest.raises(ModelError, match=r"a tensor .*the shape"):
        read_pickled(path)


def test_other_storages_and_other_files_are_refused(tmp_path: Path, torch: Any) -> None:
    floats = np.arange(4, dtype=np.float32)
    path = _save(tmp_path / "x.pt", {"w": _tensor(torch, "QInt8Storage", floats)})
    with pytest.raises(ModelError, match=r"names torch.QInt8Storage; only tensors"):
        read_pickled(path)
    whole = {"w": _tensor(torch, "FloatStorage", floats)}
    path = _save(tmp_path / "x.pt", whole, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="does not have 4 elements"):
        read_pickled(path)
    for raw in (b"", b"PK nonsense", _save(tmp_path / "x.pt", whole).read_bytes()[:-30]):
        path.write_bytes(raw)
        with pytest.raises(ModelError, match="is no file of PyTorch's tensors"):
            read_pickled(path)


# -- folders with missing parts


async def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config.json"):
        await aggml.models.load(tmp_path)
    folder = random_folders.write(tmp_path / "model", "llama", shards=2)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))

    async def refused(why: str, **changes: Any) -> None:
        text = json.dumps(config | changes)
        (folder / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=why):
            await aggml.models.load(folder)

    await refused(
        "model_type is 'nonesuch', not one of PanguEmbedded, RefinedWeb, RefinedWebModel, afmoe",
        model_type="nonesuch",
    )
    await refused("hidden_act = 'relu'; llama knows 'silu'", hidden_act="relu")
    await refused("has the rope_type 'spiral'; known are",
                  rope_parameters={"rope_type": "spiral", "rope_theta": 1.0})  # fmt: skip
    await refused("tensors that its architecture lacks", num_hidden_layers=1)
    await refused(r"no tensor 'blk\.2\.attn_norm\.weight'", num_hidden_layers=3)
    (folder / "model-00002-of-00002.safetensors").unlink()
    await refused("names .*00002-of-00002.* not in the folder")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}', encoding="utf-8")
    await refused("is no index of files")


async def test_floats_of_eight_bits_are_refused(tmp_path: Path) -> None:
    told = random_folders.cases()["llama"]
    tensors: dict[str, Any] = dict(random_folders.weights("llama", told["tensors"]))
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    raw, entries, data = b"", {}, b""
    kinds = {"float32": "F32", "float8_e4m3fn": "F8_E4M3"}
    for key, x in tensors.items():
        entries[key] = {"dtype": kinds[x.dtype.name], "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + x.nbytes]}  # fmt: skip
        data += x.tobytes()
    folder = random_folders.save(tmp_path / "x", told["config"], {})
    raw = _file(entries, data)
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(ModelError, match="float8_e4m3fn: only floats of 16 bits"):
        await aggml.models.load(folder)


class _Numbers:
    """A vocabulary whose texts are numbers of lists of token ids."""

    def __init__(self, lists: list[list[int]]) -> None:
        self.lists = lists

    def encode_prompt(self, text: str) -> list[int]:
        return self.lists[int(text)]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("head", ["colbert_linear", "linear"])
async def test_vectors_of_tokens_are_those_of_a_head(tmp_path: Path, torch: Any, head: str) -> None:
    """As bge-m3 has it, in a file of its own and without the first token, and as ColBERT has it."""
    random = np.random.default_rng(6)
    weight = random.standard_normal((24, 64)).astype(np.float32)
    bias = random.standard_normal(24).astype(np.float32)
    if head == "linear":
        told = random_folders.cases()["bert"]
        tensors = random_folders.weights("bert", told["tensors"]) | {"linear.weight": weight}
        config = told["config"] | {"architectures": ["HF_ColBERT"]}
        folder, bias, first = random_folders.save(tmp_path / "c", config, tensors), 0 * bias, 0
    else:
        folder, first = random_folders.write(tmp_path / "m3", "xlm-roberta"), 1
        parts = {name: _tensor(torch, "FloatStorage", x) for name, x in
                 (("weight", weight), ("bias", bias))}  # fmt: skip
        _save(folder / "colbert_linear.pt", parts)
    made = tmp_path / "made.gguf"
    await aggml.models.convert(folder, made, "f32")
    texts = random_models.texts()
    for path in (folder, made):
        async with await aggml.models.load(path) as model:
            assert isinstance(model, aggml.models.EncoderModel)
            hidden = await model._results("test", texts, "tokens")
            model._tokenizer = _Numbers(texts)  # type: ignore[assignment]
            got = await model.embed_multi([str(i) for i in range(len(texts))])
            unit = await model.embed_multi(["2"], normalize=True)
        for one, vectors in zip(got, hidden, strict=True):
            wanted = vectors @ weight.T + bias
            assert one.shape == wanted[first:].shape
            np.testing.assert_allclose(one, wanted[first:], atol=1e-4)
        length = np.linalg.norm(got[2], axis=1, keepdims=True)
        np.testing.assert_allclose(unit[0], got[2] / length, atol=1e-5)


async def test_a_weight_of_each_token_is_read_from_a_file_beside_the_others(
    tmp_path: Path, torch: Any
) -> None:
    """As bge-m3 has it: the weight of a word is the largest number of its tokens."""
    folder = random_folders.write(tmp_path / "m3", "xlm-roberta")
    random = np.random.default_rng(5)
    weight = random.standard_normal((1, 64)).astype(np.float32)
    bias = np.array([0.25], np.float32)
    head = {name: _tensor(torch, "FloatStorage", x) for name, x in
            (("weight", weight), ("bias", bias))}  # fmt: skip
    _save(folder / "sparse_linear.pt", head)
    made = tmp_path / "m3.gguf"
    await aggml.models.convert(folder, made, "f32")
    texts = [random.integers(3, 20, n).tolist() for n in (1, 40, 7)]
    for path in (folder, made):
        async with await aggml.models.load(path) as model:
            assert isinstance(model, aggml.models.EncoderModel)
            got = await model.embed_sparse_ids(texts)
            hidden = await model._results("test", texts, "tokens")
        for ids, one, vectors in zip(texts, got, hidden, strict=True):
            wanted: dict[int, float] = {}
            for token, number in zip(ids, (vectors @ weight[0] + bias).tolist(), strict=True):
                if number > 0:
                    wanted[token] = max(wanted.get(token, 0.0), number)
            assert one == pytest.approx(wanted, abs=3e-5)
    other = random_folders.write(tmp_path / "other", "modernbert")
    _save(other / "sparse_linear.pt", head)
    with pytest.raises(ModelError, match=r"tensors that its architecture lacks.*sparse_linear"):
        await aggml.models.load(other)
