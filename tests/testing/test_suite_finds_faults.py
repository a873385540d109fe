"""aggml.testing fails where a device is wrong. A suite that cannot fail would prove nothing.

Each class below breaks the example plug-in in one way; a pytest of its own runs it. Not here:
devices that pass (test_conformance.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin_device" / "aggml_numpy"

BROKEN = '''
import sys
import numpy as np, pytest, aggml
from aggml.testing import *

family = aggml.load({plugin!r})
package = sys.modules[type(family).__module__.rpartition(".")[0]]
Device = package.NumpyDevice
Backend = sys.modules[package.__name__ + ".backend"].NumpyBackend
Memory = sys.modules[package.__name__ + ".memory"].NumpyMemory

def device_of(backend=None, memory=None, **changes):
    class Broken(type("Changed", (Device,), changes)):
        def __init__(self):
            super().__init__("BROKEN")
            if memory is not None:
                self._memory = memory(self, 1 << 30)
        def backend(self, *, n_threads=None, use_ref=False, max_queued=None):
            return (backend or Backend)(self, max_queued=max_queued)
    return pytest.fixture(lambda self: Broken())

def done(backend):
    return backend.stream.mark()

class Misaligned(Memory):
    def alloc_buffer(self, size):
        made = super().alloc_buffer(size + 4)
        return aggml.Buffer(self, size, made.base + 4 if size else 0, made)

class Leaking(Memory):
    def _give_back(self, size):
        pass

class Forgetful(Backend):
    def _set(self, tensor, array):
        return done(self)

class Hasty(Backend):
    """Writes at the call, not in its turn."""
    def _set(self, tensor, array):
        aggml.Stream("hasty").copy(tensor, array).wait()
        return done(self)

class Blunt(Backend):
    def _memset(self, tensor, value, offset, size):
        return self.stream.fill(tensor, value)

class Blind(Backend):
    """Computes, but tells the stream nothing about what it reads and writes."""
    def _compute(self, plan, arena):
        return self.stream.call(plan.run, None if arena is None else arena.memory)

class Wrong(Backend):
    def _compile(self, graph, memory):
        plan = yield from super()._compile(graph, memory)
        plan.work.reverse()
        return plan

class TestMisaligned(MemoryTests):
    device = device_of(memory=Misaligned)
class TestLeaking(MemoryTests):
    device = device_of(memory=Leaking)
class TestForgetful(DataTests):
    device = device_of(Forgetful)
class TestHasty(OrderTests):
    device = device_of(Hasty)
class TestBlunt(ViewTests):
    device = device_of(Blunt)
class TestBlind(FailureTests):
    device = device_of(Blind)
class TestWrong(ComputingTests):
    device = device_of(Wrong)
class TestBoastful(OpTests):
    device = device_of(supports_op=lambda self, tensor: True)
class TestModest(OpTests):
    device = device_of(supports_op=lambda self, tensor: False)
class TestRight(MemoryTests):
    device = device_of()
'''


@pytest.mark.long
@pytest.mark.timeout(600)  # two minutes were too short beside six other jobs on four cores
def test_each_broken_device_fails(tmp_path: Path) -> None:
    text = BROKEN.replace("{plugin!r}", repr(str(PLUGIN)))
    (tmp_path / "test_broken.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-rf", "--tb=no", "--no-header", "-k", "not trio"]  # one loop suffices
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_broken.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=590,
    )
    failed = set(re.findall(r"FAILED test_broken\.py::(\w+)::", done.stdout))
    classes = set(re.findall(r"class (Test\w+)\(", text))
    assert failed == classes - {"TestRight"}, done.stdout[-1000:] + done.stderr
