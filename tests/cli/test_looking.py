"""`aggml bench`, `trace` and `ops`: the machine's speed, timelines, the ops of devices.

Not here: the figures themselves (tests/devices/cpu/test_roofline.py), timelines (tests/tracing).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import ops_calls
import pytest
from cli.program import run, told
from models import random_models

import aggml
from aggml.cli.bench import work_of
from aggml.cli.ops import find_types, node_of
from aggml.devices.sim import SimDevice
from aggml.models.small import write_small
from aggml.ops.table import IDLE, OPS
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


# -- bench


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_bench_measures_the_machine_and_a_model(small: Path, loop: str) -> None:
    short = ["--tokens", "4", "--rounds", "1", "--ctx", "256", "--threads", "2", "--loop", loop]
    found = told("bench", small, *short)
    assert found["threads"] == 2
    assert {"read", "f32", "int8"} <= set(found["roofline"])
    assert all(value > 0 for value in found["roofline"].values())
    model = found["model"]
    assert (model["architecture"], model["unit"]) == ("llama", "f32")
    assert model["share"] == pytest.approx(
        model["tokens_per_second"] * model["bytes_per_token"] / found["roofline"]["read"]
    )
    assert model["prompt_share"] > 0


@pytest.mark.long
def test_bench_without_a_model_and_as_a_table(tmp_path: Path) -> None:
    text, errors = run("bench", "--threads", "1")
    assert text.startswith("this machine, 1 threads\n")
    assert "GB/s" in text
    assert errors == ""
    encoder = random_models.write(tmp_path / "bert.gguf", "bert")
    text, _ = run("bench", encoder, "--threads", "1", "--rounds", "1")
    assert "(bert)" in text
    assert "prompt" in text
    assert "answer" not in text


def test_the_work_of_a_token_counts_what_is_read(tmp_path: Path) -> None:
    """All matrices count once, except the embeddings; of experts only the share that is used."""
    path = random_models.write(tmp_path / "moe.gguf", "qwen2moe")
    with aggml.GGUFFile.open(path) as file:
        work = work_of(file.tensors, file.metadata)
        matrices = {name: x for name, x in file.tensors.items() if sum(n > 1 for n in x.ne) >= 2}
        whole = sum(x.nbytes for name, x in matrices.items() if name != "token_embd.weight")
        experts = sum(x.nbytes for name, x in matrices.items() if "_exps." in name)
        used, count = (file.metadata[f"qwen2moe.expert{x}_count"] for x in ("_used", ""))
        part = used / count
    assert 0 < part < 1
    assert work.bytes == pytest.approx(whole - (1 - part) * experts, abs=1)
    assert work.operations == work.bytes // 2  # all is f32: two operations for four bytes
    assert work.kind == "f32"


# -- trace


def test_trace_writes_a_picture_and_a_timeline(small: Path, tmp_path: Path) -> None:
    files = ["--picture", tmp_path / "a.svg", "--out", tmp_path / "a.json"]
    options = ["-p", "hello", "-n", "4", "--temperature", "0", "--ctx", "256"]
    text, errors = run("trace", *files, "generate", small, *options)
    assert text == run("generate", small, *options)[0]
    assert "operations" in errors
    assert str(tmp_path / "a.svg") in errors
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) >= 4
    summary = json.loads(run("trace", "--json", *files, "generate", small, *options)[1])
    assert sum(row["operations"] for row in summary["streams"].values()) >= 4


def test_trace_ends_as_its_command_does(small: Path, tmp_path: Path) -> None:
    files = ["--picture", tmp_path / "a.svg", "--out", tmp_path / "a.json"]
    assert "No such command" in run("trace", *files, "nonesuch", status=2)[1]
    _, errors = run("trace", *files, "generate", tmp_path, "-p", "x", status=1)
    assert errors.startswith(f"python -m aggml: {str(tmp_path)!r} has no config.json")
    assert "trace cannot trace itself" in run("trace", *files, "trace", "devices", status=2)[1]
    assert "--picture" in run("trace", "--picture", "a.gif", "devices", status=2)[1]
    text, errors = run("trace", *files, "gguf", "info", small)
    assert "general.architecture" in text
    assert "a.json" in errors
    assert "a.svg" not in errors  # nothing was computed, so there is nothing to draw


# -- ops


@pytest.mark.long
def test_ops_lists_what_a_device_computes() -> None:
    found = told("ops", "--device", "CPU")
    assert found["device"] == "CPU"
    assert set(found["ops"]) == OPS.keys() - IDLE
    not_tried = {op for op, types in found["ops"].items() if types is None}
    assert not_tried == {"quantize", "map_custom1", "map_custom2", "map_custom3", "custom"}
    assert [op for op, types in found["ops"].items() if types == {}] == []
    assert set(found["ops"]["mul_mat"]["a"]) >= {"f32", "f16", "bf16", "q4_K", "iq2_xxs", "mxfp4"}
    text, errors = run("ops", "--device", "CPU", "rms_norm", "soft_max")
    assert text == "rms_norm  a: f32\nsoft_max  a: f32; mask: f32 f16\n"
    assert errors == "CPU computes 2 of these 2 ops\n"
    text, _ = run("ops", "--device", "CPU", "--type", "q4_K")
    assert "\nget_rows" in text
    assert "\nnorm" not in text


def test_what_a_device_leaves_out_is_seen() -> None:
    device = SimDevice("S", unsupported=("soft_max",))
    assert find_types(device, "soft_max") == {}
    assert find_types(device, "rms_norm") == {"a": ["f32"]}


def test_an_op_that_is_not_there_is_named() -> None:
    assert "there is no op 'nonesuch'" in run("ops", "nonesuch", status=2)[1]
    assert "there is no op 'view'" in run("ops", "view", status=2)[1]
    assert "q9" in run("ops", "--type", "q9", status=1)[1]


def test_the_calls_are_those_that_were_recorded() -> None:
    """If they are not: run python tools/ops_calls.py."""
    assert ops_calls.FILE.read_text() == ops_calls.page()
    for op, calls in ops_calls.chosen().items():
        for call in calls:
            node = node_of(call)
            assert node is not None
            assert node.op == op


def test_arrays_of_arrays_and_odd_values_are_json(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", "llama")
        writer.add("nested", [[1, 2], [3], list(range(20))])
        writer.add("deeper", [[["a", "b"], ["c"]]])
        writer.add("bytes", b"\xff\xfeabc")
        writer.add("nothing", float("nan"))
    metadata = told("gguf", "info", path)["metadata"]
    assert metadata["nested"] == [[1, 2], [3], {"length": 20, "first": [0, 1, 2, 3]}]
    assert metadata["deeper"] == [[["a", "b"], ["c"]]]
    assert metadata["bytes"] == "\\udcff\\udcfeabc"
    assert metadata["nothing"] == "nan"
    assert "nested = [[1, 2], [3]" in run("gguf", "info", path)[0]


def test_quantize_names_a_tensor_with_nan_and_leaves_no_file(tmp_path: Path) -> None:
    made = llama_files.weights("llama")
    made["blk.0.ffn_up.weight"][3, 4] = float("nan")
    path = llama_files.write(tmp_path / "bad.gguf", tensors=made)
    target = tmp_path / "q8.gguf"
    _, errors = run("gguf", "quantize", path, target, "--type", "q8_0", status=1)
    assert errors.count("\n") == 1
    assert "'blk.0.ffn_up.weight'" in errors
    assert "x is nan in row 3, column 4" in errors
    assert sorted(x.name for x in tmp_path.iterdir()) == ["bad.gguf"]
