"""Libraries that cannot be loaded, calls that a device refuses: typed errors; the process goes on.

Not here: devices that are lost while they work (test_lost.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from devices.ggml import builds

import aggml
import aggml.devices.ggml as ggml
from aggml import Graph, ops
from aggml.devices.ggml.library import check_version

if TYPE_CHECKING:
    from pathlib import Path

#: Run in a process of its own, since this process has loaded a ggml already.
_PRODUCT = """
import sys, anyio, numpy as np, aggml
import aggml.devices.ggml as ggml
async def main(device):
    async with device.backend(n_threads=2) as be:
        w, x = aggml.new_tensor("f32", ne=(64, 48)), aggml.new_tensor("f32", ne=(64, 40))
        y = aggml.ops.mul_mat(w, x)
        graph = aggml.Graph(y)
        be.alloc_graph(graph)
        a, b = (np.random.default_rng(i).random(t.shape, np.float32) for i, t in enumerate((w, x)))
        got = await be.run(graph, {w: a, x: b}, y)
        assert np.allclose(got, b @ a.T, rtol=1e-5), device
devices = ggml.load(sys.argv[1])
for device in devices:
    for loop in ("asyncio", "trio"):
        anyio.run(main, device, backend=loop)
print(*[device.name for device in devices])
"""


#: The library's own CPU backend writes beyond the result of such copies, so that its process
#: crashed later, anywhere.
_PACKED_COPIES = """
import sys, aggml
from aggml import new_tensor, ops
device = next(d for d in aggml.devices.ggml.load(sys.argv[1]) if d.name == "ggml:CPU")
whole = ops.cont(new_tensor("q4_0", ne=(64, 4)))
rows = ops.cont(ops.permute(new_tensor("q4_0", ne=(64, 2, 4)), 0, 2, 1, 3))
other = ops.cpy(rows.src[0], new_tensor("q4_0", ne=(128, 4)))
joined = ops.concat(new_tensor("q4_0", ne=(64, 2)), new_tensor("q4_0", ne=(64, 3)), 1)
print(*["beyond the result" in (device.problem(t) or "") for t in (whole, rows, other, joined)])
"""


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("0.3.36", "False False True False"),
        ("0.3.16", "False False True True"),
    ],
)
def test_copies_that_a_library_writes_beyond_the_result_of(version: str, refused: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PACKED_COPIES, str(builds.folder(version))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == refused.split()


@pytest.mark.parametrize("version", builds.VERSIONS)
def test_each_version_computes_on_both_loops(version: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRODUCT, str(builds.folder(version))],
        # Vulkan may multiply in f16; its bounds are in test_conformance.py.
        env={k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ggml:CPU" in done.stdout


def test_a_second_build_of_one_name_is_refused(tmp_path: Path) -> None:
    """Its backends would get the first build's libggml-base, which has the same name."""
    builds.devices()
    copy = shutil.copytree(builds.folder(), tmp_path / "copy", symlinks=True)
    with pytest.raises(aggml.BackendLoadError, match="one process has one ggml"):
        ggml.load(copy)


@pytest.mark.parametrize("version", ["0.26.0", "1.0.0", "next"])
def test_what_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(aggml.BackendLoadError, match=r"newer than|no number"):
        check_version(version)
    check_version("0.25.3")
    check_version("")


def test_missing_files_and_functions_are_told(tmp_path: Path) -> None:
    with pytest.raises(aggml.BackendLoadError, match="there is no"):
        ggml.load(tmp_path / "nowhere")
    with pytest.raises(aggml.BackendLoadError, match="has no libggml-base"):
        ggml.load(tmp_path)
    for name in ("libggml-base.so", "libggml.so"):
        (tmp_path / name).write_bytes(b"no library")
    with pytest.raises(aggml.BackendLoadError, match="libggml-base"):
        ggml.load(tmp_path)


def test_a_library_that_lacks_functions_is_told(tmp_path: Path) -> None:
    for name in ("libggml-base.so", "libggml.so"):
        source = tmp_path / "empty.c"
        source.write_text("int ggml_nothing(void) { return 0; }")
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, source], check=True)
        except FileNotFoundError:
            pytest.skip("no C compiler: install one as cc")
    with pytest.raises(aggml.BackendLoadError, match="it lacks ggml_type_name"):
        ggml.load(tmp_path)


def test_a_library_whose_assertions_end_the_process_is_refused(tmp_path: Path) -> None:
    """Those before July 2025 take no callback that is called before abort()."""
    table = (builds.ROOT / "aggml/native/ggml/functions.def").read_text()
    names = re.findall(r"^AG_GGML\([^,]*,\s*(\w+),", table, re.MULTILINE)
    assert "ggml_set_abort_callback" in names
    names.remove("ggml_set_abort_callback")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install one as cc")
    functions = "".join(f"void {name}(void) {{}}\n" for name in names)
    for name, text in (("libggml-base", functions), ("libggml", "int ggml_nothing;\n")):
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        library = tmp_path / f"{name}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(aggml.BackendLoadError, match=r"it lacks ggml_set_abort_callback$"):
        ggml.load(tmp_path)


def test_a_backend_that_is_linked_in_is_no_problem(tmp_path: Path) -> None:
    """llama-cpp-python's libggml-cpu.so: its devices exist, the file itself cannot be loaded."""
    builds.devices()
    source, linked = tmp_path / "empty.c", tmp_path / "libggml-linked.so"
    source.write_text("int ggml_nothing(void) { return 0; }")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install one as cc")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", linked, source], check=True)
    for name in ("libggml-base.so", "libggml.so"):
        (tmp_path / name).symlink_to((builds.folder() / name).resolve())
    devices = ggml.load(tmp_path)
    assert "ggml:CPU" in [device.name for device in devices]
    assert str(linked) in ggml.libraries()[0].problems
    with pytest.raises(aggml.BackendLoadError, match="no ggml_backend_init"):
        ggml.load(linked)


def test_the_same_files_give_the_same_devices() -> None:
    builds.devices()
    assert ggml.load(builds.folder())[0] is next(iter(builds.devices().values()))


#: An assertion in a builder: a product of matrices whose extents do not match.
_ASSERTION = """
import sys, aggml
import aggml.devices.ggml as ggml
devices = ggml.load(sys.argv[1])
device = next(d for d in devices if d.name == "ggml:CPU")
w, x = aggml.new_tensor("f32", ne=(64, 48)), aggml.new_tensor("f32", ne=(64, 40))
y = aggml.ops.mul_mat(w, x)
from aggml.native import _native
from aggml.ops.table import NUMBERS
plan = _native.GgmlPlan(device.native)
for ne in ((64, 48, 1, 1), (32, 40, 1, 1)):
    plan.add(0, 0, ne, (4, 4, 4, 4), (), -1, 0, (0, False), (False, False), b"", "")
plan.add(NUMBERS["mul_mat"], 0, y.ne, y.nb, (0, 1), -1, 0, (0, False), (True, False), bytes(64), "")
yes, why = plan.supports()
print(yes, why)
"""


@pytest.mark.parametrize("version", builds.VERSIONS)
def test_an_assertion_of_each_version_ends_the_call_alone(version: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASSERTION, str(builds.folder(version))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "False" in done.stdout
    assert "ggml.c:" in done.stdout


def test_no_server_is_told() -> None:
    builds.devices()
    with pytest.raises(aggml.BackendLoadError, match="connect"):
        ggml.connect("127.0.0.1:1")


async def test_an_op_that_is_not_supported_raises_at_the_call() -> None:
    device = builds.device("BLAS")
    x = aggml.new_tensor("f32", ne=(4,))
    graph = Graph(ops.sqr(x))
    async with device.backend() as be:
        be.alloc_graph(graph)
        with pytest.raises(aggml.Unsupported, match="does not run"):
            be.graph_compute(graph)
        await be.set(x, np.zeros(4, np.float32))


@pytest.mark.parametrize("name", ["CPU", "Vulkan0"])
async def test_more_memory_than_there_is(name: str) -> None:
    device = builds.device(name)
    with pytest.raises(aggml.AllocFailed):
        device.buffer_type.alloc_buffer(1 << 50)
    async with device.backend() as be:
        tensor = aggml.new_tensor("f32", ne=(4,))
        be.alloc([tensor])
        await be.set(tensor, np.arange(4, dtype=np.float32))
        assert np.array_equal(await be.get(tensor), np.arange(4, dtype=np.float32))


async def test_a_mapped_file_is_read_where_it_lies(tmp_path: Path) -> None:
    device = builds.device("CPU")
    x = np.arange(1024, dtype=np.float32)
    (tmp_path / "weights").write_bytes(x.tobytes())
    mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
    tensor = aggml.new_tensor("f32", ne=(1024,))
    y = ops.scale(tensor, 2.0)
    graph = Graph(y)
    async with device.backend() as be:
        device.buffer_from_host(mapped).place(tensor, 0)
        assert tensor.address == mapped.ctypes.data
        be.alloc_graph(graph)
        assert np.array_equal(await be.run(graph, None, y), 2 * x)
