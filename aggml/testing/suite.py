"""DeviceTests: all parts of the suite in one class.

Not here: the tests themselves; each part is a file beside this one.
"""

from aggml.testing.computing import ComputingTests
from aggml.testing.copies import CopyTests
from aggml.testing.data import DataTests
from aggml.testing.ending import EndingTests
from aggml.testing.failure import FailureTests
from aggml.testing.memory import MemoryTests
from aggml.testing.op_corpus import OpTests
from aggml.testing.order import OrderTests
from aggml.testing.views import ViewTests

__all__ = ["DeviceTests"]


class DeviceTests(
    MemoryTests,
    DataTests,
    ViewTests,
    OrderTests,
    CopyTests,
    ComputingTests,
    OpTests,
    FailureTests,
    EndingTests,
):
    """All tests that a device must pass: subclass this and override the fixture ``device``."""
