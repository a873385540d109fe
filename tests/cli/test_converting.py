"""``aggml gguf convert`` and ``quantize``: types, importance matrices, Ctrl-C, files that stay.

Not here: the other commands (test_program.py), reading folders (tests/models).
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import program
from models import random_folders, random_models
from waiting import wait_until

import aggml
from aggml.models import small

PROGRAM = [*program.PROGRAM, "gguf"]


def run(*arguments: object, status: int = 0) -> str:
    output, errors = program.run("gguf", *arguments, status=status)
    return output if status == 0 else errors


def told(*arguments: object) -> Any:
    return program.told("gguf", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_folders.write(tmp_path_factory.mktemp("folder") / "model", "qwen2", kind="f16")


async def test_a_folder_becomes_a_file_that_computes_the_same(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "model.gguf"
    found = told("convert", folder, made)
    assert found["changed"] == 0
    assert found["bytes"] == made.stat().st_size
    assert {*found["bytes_by_type"]} == {"f32", "f16"}
    logits = []
    for path in (folder, made):
        async with await aggml.models.load(path, ctx=256) as model:
            logits.append(await model.logits(random_models.prompt()))
    np.testing.assert_array_equal(logits[0], logits[1])
    run("check", made)


CARD = """---
license: other
license_name: some-research  # with conditions
license_link: 'https://example.org/LICENSE'
language:
- en
- de
tags: [chat, "small"]
base_model:
  - someone/else
model-index:
  - name: not this one
---
# A model
license: mit
"""


def test_a_file_made_of_a_folder_says_which_model_it_is(tmp_path: Path) -> None:
    folder = random_folders.write(tmp_path / "Tiny-Model-Chat", "qwen2", kind="f16")
    made = tmp_path / "model.gguf"

    def general() -> dict[str, Any]:
        run("convert", folder, made)
        with aggml.GGUFFile.open(made) as file:
            found = {k: v for k, v in file.metadata.items() if k.startswith("general.")}
        found.pop("general.architecture")
        return found

    assert general() == {"general.type": "model", "general.name": "Tiny-Model-Chat"}
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    assert general() == {
        "general.type": "model", "general.name": "Tiny-Model-Chat", "general.license": "other",
        "general.license.name": "some-research",
        "general.license.link": "https://example.org/LICENSE", "general.languages": ["en", "de"],
        "general.tags": ["chat", "small"],
    }  # fmt: skip
    named = CARD.replace("license: other", 'model_name: "Tiny: a model"')
    (folder / "README.md").write_text(named, encoding="utf-8")
    assert general()["general.name"] == "Tiny: a model"
    (folder / "README.md").write_text("---\nlicense: mit\n", encoding="utf-8")  # no head
    assert general() == {"general.type": "model", "general.name": "Tiny-Model-Chat"}
    once = tmp_path / "hub" / "models--someone--Tiny" / "snapshots" / ("0a" * 20)
    once.parent.mkdir(parents=True)
    folder = folder.rename(once)
    assert general()["general.name"] == "Tiny"
    again = tmp_path / "again.gguf"
    run("quantize", made, again, "-t", "q8_0")
    with aggml.GGUFFile.open(again) as file:
        assert file.metadata["general.name"] == "Tiny"


def test_types_are_those_that_were_asked_for(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "model.gguf"
    found = told("convert", folder, made, "--type", "q8_0", "--output-type", "f16",
                 "--keep", "ffn_down")  # fmt: skip
    with aggml.GGUFFile.open(made) as file:
        kinds = {name: x.dtype.type_name for name, x in file.tensors.items()}
    changed = [name for name, kind in kinds.items() if kind == "q8_0"]
    assert len(changed) == found["changed"] == 2 * 6
    assert kinds["blk.0.attn_q.weight"] == "q8_0"
    assert kinds["blk.0.ffn_down.weight"] == kinds["token_embd.weight"] == "f16"
    assert kinds["blk.0.attn_norm.weight"] == kinds["blk.0.attn_q.bias"] == "f32"
    again = tmp_path / "smaller.gguf"
    assert "in another type" in run("quantize", made, again, "-t", "q4_K")
    # rows of 64 and 96 elements, which are no multiples of 256
    with aggml.GGUFFile.open(again) as file:
        assert file.tensors["blk.0.attn_q.weight"].dtype.type_name == "q5_0"


def _older(columns: dict[str, int]) -> bytes:
    raw = struct.pack("<i", len(columns))
    for name, n in columns.items():
        values = np.linspace(1, 50, n, dtype=np.float32)
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 2, n)
        raw += values.tobytes()
    return raw


def _newer(path: Path, columns: dict[str, int]) -> None:
    with aggml.GGUFWriter(path) as writer:
        for name, n in columns.items():
            sums = np.linspace(1, 50, n, dtype=np.float32).reshape(1, n)
            writer.add_tensor(f"{name}.in_sum2", sums)
            writer.add_tensor(f"{name}.counts", np.full((1, 1), 2, np.float32))


@pytest.mark.parametrize("form", ["dat", "gguf"])
def test_an_importance_matrix_weighs_columns(folder: Path, tmp_path: Path, form: str) -> None:
    name, made = "blk.1.ffn_down.weight", tmp_path / "model.gguf"
    path = tmp_path / f"imatrix.{form}"
    if form == "dat":
        path.write_bytes(_older({name: 96}))
    else:
        _newer(path, {name: 96})
    run("convert", folder, made, "--type", "q4_0", "--imatrix", path)
    tensors = random_folders.cases()["qwen2"]["tensors"]
    source = "model.layers.1.mlp.down_proj.weight"
    values = random_folders.values("qwen2", source, tuple(tensors[source]))
    values = values.astype(np.float16).astype(np.float32)
    weighs = np.linspace(1, 50, 96, dtype=np.float32) / 2
    with aggml.GGUFFile.open(made) as file:
        got = file.data(name).tobytes()
    assert got == aggml.quantize(values, "q4_0", weighs).tobytes()
    assert got != aggml.quantize(values, "q4_0").tobytes()
    path.write_bytes(_older({name: 95}))
    text = run("convert", folder, made, "--type", "q4_0", "--imatrix", path, status=1)
    assert "has 95 columns for 'blk.1.ffn_down.weight', which has 96" in text
    path.write_bytes(b"nonsense")
    assert "cannot read the importance matrix" in run(
        "convert", folder, made, "--type", "q4_0", "--imatrix", path, status=1
    )


def test_mistakes_leave_the_file_that_was_there(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "model.gguf"
    made.write_bytes(b"old")
    assert "q99" in run("convert", folder, made, "--type", "q99", status=2)
    assert "config.json" in run("convert", tmp_path, made, status=1)
    assert made.read_bytes() == b"old"
    assert [x.name for x in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks for open files in /proc")
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """Converting a model of 300 MB takes seconds; the signal comes while tensors are written."""
    case = random_folders.cases()["llama"]
    wide = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
            "num_key_value_heads": 16, "vocab_size": 512, "head_dim": 128}  # fmt: skip
    sizes = {64: 2048, 96: 8192, 320: 512, 32: 2048}
    shapes = {name: [sizes[n] for n in shape] for name, shape in case["tensors"].items()}
    tensors = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    folder = random_folders.save(tmp_path / "model", case["config"] | wide, tensors)
    place = tmp_path / "out"
    place.mkdir()
    made = place / "model.gguf"
    with subprocess.Popen(
        [*PROGRAM, "convert", str(folder), str(made), "--type", "iq3_s"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        wait_until(lambda: _spooled(program.pid) or program.poll() is not None)
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert [*place.iterdir()] == []


def _spooled(pid: int) -> bool:
    """Whether the program has begun: it writes to a file that has no name yet."""
    try:
        return any("(deleted)" in str(x.readlink()) for x in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_an_adapter_becomes_part_of_a_file_and_generate_takes_it_without(tmp_path: Path) -> None:
    from models import adapter_files

    base = small.write_small(tmp_path / "base.gguf")
    with aggml.GGUFFile.open(base) as file:
        columns, rows = file.tensors["blk.0.attn_q.weight"].ne[:2]
        architecture = file.metadata["general.architecture"]
    parts = adapter_files.pairs({"blk.0.attn_q.weight": (rows, columns)}, "x", strength=20.0)
    adapter = adapter_files.write(tmp_path / "adapter.gguf", architecture, parts)
    made = tmp_path / "merged.gguf"
    assert told("convert", base, made, "--adapter", f"{adapter}:0.5")["changed"] == 0
    words = ("--prompt", "Once upon a time", "--max-tokens", 8)
    answers = [
        program.told("generate", base, *words, "--adapter", f"{adapter}:0.5")["ids"],
        program.told("generate", made, *words)["ids"],
        program.told("generate", base, *words)["ids"],
    ]
    assert answers[0] == answers[1] != answers[2]
    for command in (("gguf", "convert", base, made), ("generate", base)):
        _, error = program.run(*command, "--adapter", tmp_path / "none", status=2)
        assert "there is no file or folder" in error
    _, error = program.run("generate", base, *words, "--adapter", base, status=1)
    assert "general.type" in error


def test_a_model_is_written_in_parts(folder: Path, tmp_path: Path) -> None:
    one, parts = tmp_path / "one.gguf", tmp_path / "model.gguf"
    run("convert", folder, one)
    found = told("convert", one, parts, "--split-max-size", "1M", "--no-tensor-first-split")
    names = [Path(path).name for path in found["paths"]]
    assert names == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    assert not parts.exists()
    joined = told("convert", tmp_path / names[0], tmp_path / "joined.gguf")
    assert joined["bytes"] == one.stat().st_size
    assert "in 2 parts" in run("quantize", one, parts, "--type", "q8_0", "--split-max-size", "1M",
                               "--no-tensor-first-split")  # fmt: skip
    for wrong in ("2", "0G", "2T", "-1M", "x"):
        assert "no size such as" in run("convert", one, parts, "--split-max-size", wrong, status=2)
