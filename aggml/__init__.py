"""aggml: tensors on devices, awaited. The public face: names, and nothing else."""

# First: the threads that numpy starts leave the signals to the program.
from aggml.process import signals  # noqa: F401

# isort: split
from aggml import devices, errors, ops, unsafe
from aggml.backend import Backend, GraphPlan
from aggml.backend.device import Device, DeviceCaps, DeviceProps, DeviceType
from aggml.backend.family import API_VERSION, Family
from aggml.compare import (
    Comparison,
    GraphCopy,
    NodeComparison,
    compare_backends,
    copy_graph,
)
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
    Unsupported,
)
from aggml.gguf import GGUFError, GGUFFile, GGUFWriter
from aggml.graph import Graph
from aggml.memory.allocator import GraphAllocator, HeapAllocator, TensorAllocator
from aggml.memory.arrays import empty
from aggml.memory.buffer import Buffer, BufferType
from aggml.memory.graph_memory import GraphBuffer
from aggml.memory.multi_buffer import MultiBuffer
from aggml.memory.numa import NumaStrategy, is_numa, numa_nodes, numa_pool
from aggml.native import _native
from aggml.plan import DevicePlan, Plan, compile_plan
from aggml.registry import (
    LoadReport,
    LoadResult,
    best_device,
    get_device,
    get_family,
    init_backend,
    init_best,
    init_by_name,
    init_by_type,
    list_devices,
    list_families,
    load,
    load_all,
    load_report,
    register_device,
    register_family,
    search_path,
    split_backend_text,
    unload,
    unregister_device,
)
from aggml.scheduler import Evaluation, SchedulePlan, Scheduler
from aggml.stream import Stream
from aggml.stream.completions import as_completed, gather
from aggml.stream.event import Event
from aggml.stream.future import Future, Times
from aggml.stream.threadpool import ThreadPool, ThreadPoolParams, ThreadPriority
from aggml.tensor import Tensor, TensorFlag, new_tensor
from aggml.tensor.placement import BufferUsage
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
    "LoadReport",
    "LoadResult",
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
    "Trace",
    "TraceEvent",
    "Unsupported",
    "as_completed",
    "best_device",
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
    "load",
    "load_all",
    "load_report",
    "new_tensor",
    "numa_nodes",
    "numa_pool",
    "ops",
    "quantize",
    "quantize_async",
    "register_device",
    "register_family",
    "search_path",
    "split_backend_text",
    "trace",
    "unload",
    "unregister_device",
    "unsafe",
]
