"""aggml: tensors on devices, awaited. This is the public face: names, and nothing else.

``dir(aggml)`` has the names that programs type. Further public names can be reached from here, too,
as ``aggml.MultiBuffer``, and stay in their modules: all exceptions in `aggml.errors`, loading of
plug-ins in `aggml.registry`, files in `aggml.gguf`, the tests that every device must pass in
`aggml.testing`.
"""

# Imported first, so that the threads that numpy starts leave signals to the program.
from aggml.process import signals  # noqa: F401

# isort: split
import importlib
import typing

from aggml import devices, errors, ops
from aggml.backend import Backend
from aggml.backend.backend import Device
from aggml.conversion.floats import convert
from aggml.conversion.quant import dequantize, quantize
from aggml.dlpack import from_dlpack
from aggml.dtype import DType
from aggml.errors import (
    Aborted,
    AggmlError,
    AllocFailed,
    DeviceError,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    LayoutMismatch,
    NoBackendForOp,
    NotAllocated,
    OutOfBounds,
    Unsupported,
)
from aggml.graph import Graph
from aggml.memory.allocators import GraphAllocator
from aggml.memory.arrays import empty
from aggml.memory.buffer import Buffer
from aggml.native import _native
from aggml.plan import compile_plan
from aggml.registry import best_device, get_device, list_devices
from aggml.stream import Stream
from aggml.stream.completions import as_completed, gather
from aggml.stream.event import Event
from aggml.stream.future import Future
from aggml.stream.threadpool import ThreadPool
from aggml.tensor import Tensor, new_tensor
from aggml.tensor.placement import BufferUsage

if typing.TYPE_CHECKING:
    from aggml import gguf as gguf
    from aggml import gradients as gradients
    from aggml import models as models
    from aggml import opt as opt
    from aggml import registry as registry
    from aggml import scheduler as scheduler
    from aggml import tracing as tracing
    from aggml import unsafe as unsafe
    from aggml.backend import GraphPlan as GraphPlan
    from aggml.backend.family import API_VERSION as API_VERSION
    from aggml.backend.family import Family as Family
    from aggml.backend.props import DeviceCaps as DeviceCaps
    from aggml.backend.props import DeviceProps as DeviceProps
    from aggml.backend.props import DeviceType as DeviceType
    from aggml.compare import Comparison as Comparison
    from aggml.compare import GraphCopy as GraphCopy
    from aggml.compare import NodeComparison as NodeComparison
    from aggml.compare import compare_backends as compare_backends
    from aggml.compare import copy_graph as copy_graph
    from aggml.conversion.quant import dequantize_async as dequantize_async
    from aggml.conversion.quant import quantize_async as quantize_async
    from aggml.errors import AlreadyAllocated as AlreadyAllocated
    from aggml.errors import BackendLoadError as BackendLoadError
    from aggml.errors import CapacityExceeded as CapacityExceeded
    from aggml.errors import Misaligned as Misaligned
    from aggml.errors import ReadOnly as ReadOnly
    from aggml.errors import Status as Status
    from aggml.errors import TooManyFiles as TooManyFiles
    from aggml.gguf import GGUFError as GGUFError
    from aggml.gguf import GGUFFile as GGUFFile
    from aggml.gguf import GGUFWriter as GGUFWriter
    from aggml.gradients import build_backward_expand as build_backward_expand
    from aggml.graph import build_forward_expand as build_forward_expand
    from aggml.graph import build_forward_order as build_forward_order
    from aggml.graph import build_forward_select as build_forward_select
    from aggml.memory.allocator import HeapAllocator as HeapAllocator
    from aggml.memory.allocators import TensorAllocator as TensorAllocator
    from aggml.memory.buffer_type import BufferType as BufferType
    from aggml.memory.graph_memory import GraphBuffer as GraphBuffer
    from aggml.memory.multi_buffer import MultiBuffer as MultiBuffer
    from aggml.memory.numa import NumaStrategy as NumaStrategy
    from aggml.memory.numa import is_numa as is_numa
    from aggml.memory.numa import numa_nodes as numa_nodes
    from aggml.memory.numa import numa_pool as numa_pool
    from aggml.plan import DevicePlan as DevicePlan
    from aggml.plan import Plan as Plan
    from aggml.registry import LoadReport as LoadReport
    from aggml.registry import LoadResult as LoadResult
    from aggml.registry import get_family as get_family
    from aggml.registry import init_backend as init_backend
    from aggml.registry import init_best as init_best
    from aggml.registry import init_by_name as init_by_name
    from aggml.registry import init_by_type as init_by_type
    from aggml.registry import list_families as list_families
    from aggml.registry import load as load
    from aggml.registry import load_all as load_all
    from aggml.registry import load_report as load_report
    from aggml.registry import register_device as register_device
    from aggml.registry import register_family as register_family
    from aggml.registry import search_path as search_path
    from aggml.registry import split_backend_text as split_backend_text
    from aggml.registry import unload as unload
    from aggml.registry import unregister_device as unregister_device
    from aggml.scheduler import Evaluation as Evaluation
    from aggml.scheduler import SchedulePlan as SchedulePlan
    from aggml.scheduler import Scheduler as Scheduler
    from aggml.stream.future import Times as Times
    from aggml.stream.threadpool import ThreadPoolParams as ThreadPoolParams
    from aggml.stream.threadpool import ThreadPriority as ThreadPriority
    from aggml.tensor import TensorFlag as TensorFlag
    from aggml.tracing.race import Race as Race
    from aggml.tracing.race import RaceChecker as RaceChecker
    from aggml.tracing.race import RaceError as RaceError
    from aggml.tracing.race import check_races as check_races
    from aggml.tracing.timeline import Trace as Trace
    from aggml.tracing.timeline import TraceEvent as TraceEvent
    from aggml.tracing.timeline import trace as trace

__version__ = "0.2.0"
__commit__: str = _native.commit

__all__ = [
    "Aborted",
    "AggmlError",
    "AllocFailed",
    "Backend",
    "Buffer",
    "BufferUsage",
    "DType",
    "Device",
    "DeviceError",
    "Event",
    "Future",
    "GGUFFile",
    "GGUFWriter",
    "Graph",
    "GraphAllocator",
    "InvalidArgument",
    "InvalidHandle",
    "InvalidState",
    "LayoutMismatch",
    "NoBackendForOp",
    "NotAllocated",
    "OutOfBounds",
    "Scheduler",
    "Stream",
    "Tensor",
    "ThreadPool",
    "Unsupported",
    "as_completed",
    "best_device",
    "build_backward_expand",
    "check_races",
    "compile_plan",
    "convert",
    "dequantize",
    "devices",
    "empty",
    "errors",
    "from_dlpack",
    "gather",
    "get_device",
    "gguf",
    "list_devices",
    "models",
    "new_tensor",
    "ops",
    "quantize",
    "trace",
]

#: The other public names, by module. Each module is imported when one of its names is first used:
#: those for files, several devices and diagnosis would take a third of the import time.
_LATER = {
    "aggml.backend": ("GraphPlan",),
    "aggml.backend.family": (
        "API_VERSION",
        "Family",
    ),
    "aggml.backend.props": (
        "DeviceCaps",
        "DeviceProps",
        "DeviceType",
    ),
    "aggml.compare": (
        "Comparison",
        "GraphCopy",
        "NodeComparison",
        "compare_backends",
        "copy_graph",
    ),
    "aggml.conversion.quant": (
        "dequantize_async",
        "quantize_async",
    ),
    "aggml.errors": tuple(errors.__all__),
    "aggml.gguf": (
        "GGUFError",
        "GGUFFile",
        "GGUFWriter",
    ),
    "aggml.gradients": ("build_backward_expand",),
    "aggml.graph": (
        "build_forward_expand",
        "build_forward_order",
        "build_forward_select",
    ),
    "aggml.memory.allocator": ("HeapAllocator",),
    "aggml.memory.allocators": ("TensorAllocator",),
    "aggml.memory.buffer_type": ("BufferType",),
    "aggml.memory.graph_memory": ("GraphBuffer",),
    "aggml.memory.multi_buffer": ("MultiBuffer",),
    "aggml.memory.numa": (
        "NumaStrategy",
        "is_numa",
        "numa_nodes",
        "numa_pool",
    ),
    "aggml.plan": (
        "DevicePlan",
        "Plan",
    ),
    "aggml.registry": (
        "LoadReport",
        "LoadResult",
        "get_family",
        "init_backend",
        "init_best",
        "init_by_name",
        "init_by_type",
        "list_families",
        "load",
        "load_all",
        "load_report",
        "register_device",
        "register_family",
        "search_path",
        "split_backend_text",
        "unload",
        "unregister_device",
    ),
    "aggml.scheduler": (
        "Evaluation",
        "SchedulePlan",
        "Scheduler",
    ),
    "aggml.stream.future": ("Times",),
    "aggml.stream.threadpool": (
        "ThreadPoolParams",
        "ThreadPriority",
    ),
    "aggml.tensor": ("TensorFlag",),
    "aggml.tracing.race": (
        "Race",
        "RaceChecker",
        "RaceError",
        "check_races",
    ),
    "aggml.tracing.timeline": (
        "Trace",
        "TraceEvent",
        "trace",
    ),
}
_LATER_BY_NAME = {name: room for room, names in _LATER.items() for name in names}
_ROOMS = (
    *("compare", "gguf", "gradients", "models", "opt", "pipeline", "ray", "registry"),
    *("scheduler", "serve", "tracing", "unsafe"),
)


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return importlib.import_module(f"aggml.{name}")
    room = _LATER_BY_NAME.get(name)
    if room is None:
        raise AttributeError(f"module 'aggml' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(room), name)
    if name in __all__:
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
