"""Every recorded call of ggml on ggml's own devices, within the bounds of the record.

What a library computes wrong, or ends by, is named here with the reason; all else has to pass or to
be refused. Each device works in a process of its own, which may crash. Not here: that process
(recorded_runs.py), the cases and their bounds (tests/ops/recorded.py).
"""

from __future__ import annotations

import pytest
from devices.ggml import builds
from devices.ggml.recorded_runs import op_of, run, table

pytestmark = pytest.mark.slow

#: Of ggml 0.0.1 (llama-cpp-python 0.3.16) on its CPU, by op. What writes beyond its result may end
#: the process in another case behind it, so ops are named and not cases.
OLDER = {
    "cast": "an assertion of ops.cpp: no conversion between these types",
    "cpy": "an assertion of ops.cpp: no conversion between these types",
    "concat": "ends the process: writes beyond its result for some types",
    "repeat": "ends the process: behind concat, whose damage it meets",
    "conv_2d_dw_direct": "other values",
    "conv_transpose_2d_p0": "an assertion of ops.cpp: kernels of f16 only",
    "im2col": "an assertion of ops.cpp: kernels of f16 only",
    "interpolate": "other values: flags of later versions are not known",
    "pad": "an assertion of ops.cpp: rows of floats one behind the other only",
    "pool_1d": "an assertion of ops.cpp: no padding, windows that do not overlap",
    "rope_multi": "other values: modes of later versions are not known",
    "rope_multi_back": "other values: modes of later versions are not known",
    "rope_multi_inplace": "other values: modes of later versions are not known",
    "scale_bias": "other values: ggml_vec_mad1_f32 takes the factors of its FMA in another order",
    "scale_bias_inplace": "other values: as scale_bias",
    "ssm_scan": "other values",
}


def bad_ops(found: dict[str, tuple[str, str]]) -> set[str]:
    """Ops of cases that neither passed nor were refused."""
    return {op_of(name) for name, (what, _) in found.items() if what not in {"passed", "refused"}}


def passed(found: dict[str, tuple[str, str]]) -> int:
    """How many passed."""
    return sum(what == "passed" for what, _ in found.values())


def test_on_the_cpu() -> None:
    builds.device("CPU")
    found = run("CPU")
    assert not bad_ops(found), table(found)
    assert passed(found) >= 2300


def test_on_blas() -> None:
    builds.device("BLAS")
    found = run("BLAS")
    assert not bad_ops(found), table(found)
    assert passed(found) >= 20


def test_over_rpc() -> None:
    builds.devices()
    process, endpoint = builds.start_server()
    try:
        found = run(endpoint)
    finally:
        process.kill()
        process.wait()
    assert not bad_ops(found), table(found)
    assert passed(found) >= 2300


def test_an_older_version_on_its_cpu() -> None:
    found = run("CPU", libraries=builds.folder("0.3.16"))
    assert bad_ops(found) <= OLDER.keys(), table(found)
    assert passed(found) >= 1750
