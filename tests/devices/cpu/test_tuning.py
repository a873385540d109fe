"""Tuning parameters of a processor: ranges, the cache, the search; no result depends on them.

Not here: whether a parameter makes anything faster, which a test cannot decide.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.cli import tune
from aggml.devices.cpu import tuning
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

TABLE = {name: (least, most) for name, least, most, _, _ in _native.tunables()}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {name: value for name, _, _, _, value in _native.tunables()}
    yield
    for name, value in before.items():
        assert _native.tune(name, value)


@pytest.mark.parametrize("name", TABLE)
def test_a_number_stays_within_its_range(name: str) -> None:
    least, most = TABLE[name]
    for value in (least, most, 0):
        assert _native.tune(name, value)
        assert tuning.chosen().get(name, 0) == value
    assert _native.tune(name, least)
    for value in (least - 1, most + 1, -1, 2**31, 2**40):
        assert not _native.tune(name, value)
    assert tuning.chosen()[name] == least


def test_an_unknown_name_is_refused() -> None:
    assert not _native.tune("nothing", 1024)


def test_each_number_is_searched() -> None:
    assert set(tune.TRIED) == set(TABLE)
    for name, (_, values) in tune.TRIED.items():
        least, most = TABLE[name]
        assert all(least <= value <= most for value in values)


async def _product(dtype: str, columns: int) -> bytes:
    rng = np.random.default_rng(0)
    async with aggml.get_device("CPU").backend(n_threads=2) as be:
        w = aggml.new_tensor(dtype, ne=(512, 200))
        be.alloc([w], usage="weights")
        rows = aggml.quantize(rng.standard_normal((200, 512), np.float32), dtype)
        await be.set(w, rows.view(np.uint16) if dtype == "bf16" else rows)
        x = aggml.new_tensor("f32", ne=(512, columns)).set_input()
        y = ops.mul_mat(w, x)
        graph = Graph(y)
        be.alloc_graph(graph)
        got = await be.run(graph, {x: rng.standard_normal((columns, 512), np.float32)}, y)
        return got.tobytes()


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_K", "q6_K", "bf16"])
@pytest.mark.parametrize("columns", [1, 5, 8])
async def test_no_result_depends_on_them(dtype: str, columns: int) -> None:
    before = await _product(dtype, columns)
    for end in (0, 1):
        for name, ends in TABLE.items():
            assert _native.tune(name, ends[end])
        assert await _product(dtype, columns) == before


def test_what_is_kept_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tuning.cache_path()
    assert tuning.known(path) == {}
    tuning.save({"ahead_q8_0": 4096})
    read = json.loads(path.read_text())
    read["processors"]["another"] = {"ahead_q8_0": 1024}
    path.write_text(json.dumps(read))
    tuning.save({"packed_chunk": 200})
    assert tuning.known(path) == {
        tuning.processor(): {"packed_chunk": 200},
        "another": {"ahead_q8_0": 1024},
    }
    for text in ("", "[]", '{"version": 0, "processors": {}}', '{"version": 1}'):
        path.write_text(text)
        assert tuning.known(path) == {}


def test_the_numbers_that_are_shipped_are_within_their_ranges() -> None:
    for numbers in tuning.known(tuning.SHIPPED).values():
        for name, value in numbers.items():
            assert TABLE[name][0] <= value <= TABLE[name][1]


ADOPTING = """
import aggml
from aggml.devices.cpu import tuning
assert tuning.chosen() == {}, "read by the import"
aggml.get_device("CPU").backend().close()
print(tuning.chosen())
"""


def test_the_first_backend_takes_them(tmp_path: Path) -> None:
    folder = tmp_path / "aggml"
    folder.mkdir()
    numbers = {"ahead_q8_0": 4096, "packed_chunk": 10**6, "nothing": 1, "ahead_32": "x"}
    kept = {"version": 1, "processors": {tuning.processor(): numbers}}
    (folder / "tuned.json").write_text(json.dumps(kept))
    told = subprocess.run(
        [sys.executable, "-c", ADOPTING],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.strip() == "{'ahead_q8_0': 4096}"


async def test_the_search_gives_numbers_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "BYTES", 1 << 20)
    monkeypatch.setattr(tune, "K", 256)
    monkeypatch.setattr(tune, "ROWS", 256)
    before = tuning.chosen()
    async with aggml.get_device("CPU").backend(n_threads=1) as be:
        found = await tune.search(be)
    assert tuning.chosen() == before
    assert {x.name for x in found} == set(TABLE)
    for x in found:
        assert x.value in (0, *tune.TRIED[x.name][1])
        assert (x.gain >= tune.BETTER) == (x.value != 0)
