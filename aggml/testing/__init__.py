"""The tests that every device must pass, in this package or in a plug-in; needs pytest and trio.

Subclass `DeviceTests` in a test file and override its fixture ``device`` (docs/plugins.md). Each
test runs on asyncio and trio, by anyio's plugin for pytest. Here: the public names. Not here: tests
of what only some devices promise.
"""

import pytest

pytest.register_assert_rewrite(
    "aggml.testing.computing",
    "aggml.testing.copies",
    "aggml.testing.data",
    "aggml.testing.ending",
    "aggml.testing.failure",
    "aggml.testing.memory",
    "aggml.testing.op_corpus",
    "aggml.testing.order",
    "aggml.testing.views",
)

from aggml.testing.computing import ComputingTests
from aggml.testing.copies import CopyTests
from aggml.testing.data import DataTests
from aggml.testing.ending import EndingTests
from aggml.testing.failure import FailureTests
from aggml.testing.fixtures import DeviceFixtures
from aggml.testing.memory import MemoryTests
from aggml.testing.op_cases import OP_CASES, Leaves, OpCase
from aggml.testing.op_corpus import OpTests
from aggml.testing.order import OrderTests
from aggml.testing.suite import DeviceTests
from aggml.testing.views import ViewTests

__all__ = [
    "OP_CASES",
    "ComputingTests",
    "CopyTests",
    "DataTests",
    "DeviceFixtures",
    "DeviceTests",
    "EndingTests",
    "FailureTests",
    "Leaves",
    "MemoryTests",
    "OpCase",
    "OpTests",
    "OrderTests",
    "ViewTests",
]


def __dir__() -> list[str]:
    return __all__
