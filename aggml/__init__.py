"""aggml: tensors on devices, awaited. This is the public face: names, and nothing else.

Names that programs seldom type stay in submodules: loading plug-ins in `aggml.registry`, files in
`aggml.gguf`, the tests that every device must pass in `aggml.testing`. `aggml.load_all` and the
other loading functions can also be reached from here.
"""

# Imported first, so that the threads that numpy starts leave signals to the program.
from aggml.process import signals  # noqa: F401

# isort: split
import importlib
import typing

from aggml import devices, errors, ops, registry, unsafe
from aggml.backend import Backend, GraphPlan
from aggml.backend.backend import Device
from aggml.backend.family import API_VERSION, Family
from aggml.backend.props import DeviceCaps, DeviceProps, DeviceType
from aggml.conversion.floats import convert
from aggml.conversion.quant import dequantize, dequantize_async, quantize, quantize_async
from aggml.dlpack import from_dlpack
from aggml.dtype import DType
from aggml.errors import (
    Aborted,
    AggmlError,
    AllocFailed,
    AlreadyAllocated,
    BackendLoadError,
    CapacityExceeded,
    DeviceError,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    LayoutMismatch,
    Misaligned,
    NoBackendForOp,
    NotAllocated,
    OutOfBounds,
    Status,
    TooManyFiles,
    Unsupported,
)
from aggml.graph import Graph, build_forward_expand, build_forward_order, build_forward_select
from aggml.memory.allocator import HeapAllocator
from aggml.memory.allocators import GraphAllocator, TensorAllocator
from aggml.memory.arrays import empty
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import BufferType
from aggml.memory.graph_memory import GraphBuffer
from aggml.memory.multi_buffer import MultiBuffer
from aggml.memory.numa import NumaStrategy, is_numa, numa_nodes, numa_pool
from aggml.native import _native
from aggml.plan import DevicePlan, Plan, compile_plan
from aggml.registry import (
    best_device,
    get_device,
    get_family,
    init_backend,
    init_best,
    init_by_name,
    init_by_type,
    list_devices,
    list_families,
)
from aggml.stream import Stream
from aggml.stream.completions import as_completed, gather
from aggml.stream.event import Event
from aggml.stream.future import Future, Times
from aggml.stream.threadpool import ThreadPool, ThreadPoolParams, ThreadPriority
from aggml.tensor import Tensor, TensorFlag, new_tensor
from aggml.tensor.placement import BufferUsage

if typing.TYPE_CHECKING:
    from aggml import gguf as gguf
    from aggml import gradients as gradients
    from aggml import models as models
    from aggml import opt as opt
    from aggml import scheduler as scheduler
    from aggml import tracing as tracing
    from aggml.compare import (
        Comparison,
        GraphCopy,
        NodeComparison,
        compare_backends,
        copy_graph,
    )
    from aggml.gguf import GGUFError, GGUFFile, GGUFWriter
    from aggml.gradients import build_backward_expand
    from aggml.registry import (
        LoadReport as LoadReport,
    )
    from aggml.registry import (
        LoadResult as LoadResult,
    )
    from aggml.registry import (
        load as load,
    )
    from aggml.registry import (
        load_all as load_all,
    )
    from aggml.registry import (
        load_report as load_report,
    )
    from aggml.registry import (
        register_device as register_device,
    )
    from aggml.registry import (
        register_family as register_family,
    )
    from aggml.registry import (
        search_path as search_path,
    )
    from aggml.registry import (
        split_backend_text as split_backend_text,
    )
    from aggml.registry import (
        unload as unload,
    )
    from aggml.registry import (
        unregister_device as unregister_device,
    )
    from aggml.scheduler import Evaluation, SchedulePlan, Scheduler
    from aggml.tracing.race import Race, RaceChecker, RaceError, check_races
    from aggml.tracing.timeline import Trace, TraceEvent, trace

__version__ = "0.1.0"
__commit__ = _native.commit

__all__ = [
    "API_VERSION",
    "Aborted",
    "AggmlError",
    "AllocFailed",
    "AlreadyAllocated",
    "Backend",
    "BackendLoadError",
    "Buffer",
    "BufferType",
    "BufferUsage",
    "CapacityExceeded",
    "Comparison",
    "DType",
    "Device",
    "DeviceCaps",
    "DeviceError",
    "DevicePlan",
    "DeviceProps",
    "DeviceType",
    "Evaluation",
    "Event",
    "Family",
    "Future",
    "GGUFError",
    "GGUFFile",
    "GGUFWriter",
    "Graph",
    "GraphAllocator",
    "GraphBuffer",
    "GraphCopy",
    "GraphPlan",
    "HeapAllocator",
    "InvalidArgument",
    "InvalidHandle",
    "InvalidState",
    "LayoutMismatch",
    "Misaligned",
    "MultiBuffer",
    "NoBackendForOp",
    "NodeComparison",
    "NotAllocated",
    "NumaStrategy",
    "OutOfBounds",
    "Plan",
    "Race",
    "RaceChecker",
    "RaceError",
    "SchedulePlan",
    "Scheduler",
    "Status",
    "Stream",
    "Tensor",
    "TensorAllocator",
    "TensorFlag",
    "ThreadPool",
    "ThreadPoolParams",
    "ThreadPriority",
    "Times",
    "TooManyFiles",
    "Trace",
    "TraceEvent",
    "Unsupported",
    "as_completed",
    "best_device",
    "build_backward_expand",
    "build_forward_expand",
    "build_forward_order",
    "build_forward_select",
    "check_races",
    "compare_backends",
    "compile_plan",
    "convert",
    "copy_graph",
    "dequantize",
    "dequantize_async",
    "devices",
    "empty",
    "errors",
    "from_dlpack",
    "gather",
    "get_device",
    "get_family",
    "init_backend",
    "init_best",
    "init_by_name",
    "init_by_type",
    "is_numa",
    "list_devices",
    "list_families",
    "models",
    "new_tensor",
    "numa_nodes",
    "numa_pool",
    "ops",
    "quantize",
    "quantize_async",
    "trace",
    "unsafe",
]

#: Modules that a program uses only for files, several devices or diagnosis, with the names that
#: they define. They would take a third of the import time, so each is imported when one of its
#: names is first used.
_LATER = {
    "aggml.compare": (
        "Comparison",
        "GraphCopy",
        "NodeComparison",
        "compare_backends",
        "copy_graph",
    ),
    "aggml.gradients": ("build_backward_expand",),
    "aggml.gguf": ("GGUFError", "GGUFFile", "GGUFWriter"),
    "aggml.scheduler": ("Evaluation", "SchedulePlan", "Scheduler"),
    "aggml.tracing.race": ("Race", "RaceChecker", "RaceError", "check_races"),
    "aggml.tracing.timeline": ("Trace", "TraceEvent", "trace"),
}
_LATER_BY_NAME = {name: room for room, names in _LATER.items() for name in names}
_ROOMS = (
    "compare",
    "gguf",
    "gradients",
    "models",
    "opt",
    "pipeline",
    "ray",
    "scheduler",
    "serve",
    "tracing",
)


def __getattr__(name: str) -> object:
    if name in registry.__all__:
        return getattr(registry, name)
    if name in _ROOMS:
        return importlib.import_module(f"aggml.{name}")
    room = _LATER_BY_NAME.get(name)
    if room is None:
        raise AttributeError(f"module 'aggml' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(room), name)
    return found


def __dir__() -> list[str]:
    return __all__
