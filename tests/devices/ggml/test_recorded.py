"""Every recorded call of ggml on ggml's own devices, within the bounds of the record.

A call has to pass or to be refused, by older libraries, too. Each device works in a process of its
own, which may crash. Not here: that process (recorded_runs.py), the cases and their bounds
(tests/ops/recorded.py).
"""

from __future__ import annotations

import pytest
from devices.ggml import builds
from devices.ggml.recorded_runs import op_of, run, table

pytestmark = pytest.mark.slow


def bad_ops(found: dict[str, tuple[str, str]]) -> set[str]:
    """The ops of cases that neither passed nor were refused."""
    return {op_of(name) for name, (what, _) in found.items() if what not in {"passed", "refused"}}


def passed(found: dict[str, tuple[str, str]]) -> int:
    """How many cases passed."""
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
    """Cases that this version computes wrong, or crashes on, are refused (native/ggml/wrong.c)."""
    found = run("CPU", libraries=builds.folder("0.3.16"))
    assert not bad_ops(found), table(found)
    assert passed(found) >= 1800


def test_an_older_version_over_rpc() -> None:
    builds.devices()
    process, endpoint = builds.start_server("0.3.16")
    try:
        found = run(endpoint, libraries=builds.folder("0.3.16"))
    finally:
        process.kill()
        process.wait()
    assert not bad_ops(found), table(found)
    assert passed(found) >= 1800
