"""Sums over several GPUs by NCCL, where its wheel is installed.

Here: where the library lies, which tensors it sums, the plan of each GPU for one sum. Nothing of
the library is loaded here: `NcclSums.prepare` has a thread load it, or the first sum does
(native/cuda/nccl.c). Not here: who has summands (devices/meta), how the issuing threads of the GPUs
meet (native/cuda/sum.c).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aggml.devices.cuda.plan import CUDAPlan
from aggml.dtype import DType
from aggml.graph import graph_of
from aggml.native import _native
from aggml.plan import Storages
from aggml.process.locks import new_lock
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.devices.cuda.module import CudaTarget
    from aggml.stream import Stream
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

__all__ = ["NcclSums", "library", "sums_of"]

_log = logging.getLogger("aggml")
_TYPES: Final = {DType.F32: 0, DType.F16: 1, DType.BF16: 2}
#: Backends of the same GPUs share communicators: each takes memory of every GPU.
_groups: weakref.WeakValueDictionary[tuple[Any, ...], _Group] = weakref.WeakValueDictionary()
_lock = new_lock()


class _Group:
    """GPUs that NCCL sums over."""

    def __init__(self, targets: Sequence[CudaTarget], path: str) -> None:
        self.native: _native.CudaGroup = _native.CudaGroup(
            [target.native for target in targets], path
        )
        self.targets: tuple[CudaTarget, ...] = tuple(targets)


def library() -> str | None:
    """Where libnccl lies: in its wheel, or at the path AGGML_CUDA_NCCL; None without, or if "0"."""
    asked = os.environ.get("AGGML_CUDA_NCCL", "")
    if asked == "0":
        return None
    return asked or _in_wheel()


@functools.cache
def _in_wheel() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return None


def sums_of(targets: Sequence[CudaTarget], streams: Sequence[Stream]) -> NcclSums | None:
    """What sums over these GPUs; None: they are not all different, or there is no library."""
    path = library()
    if path is None or len(set(targets)) < len(targets):
        return None
    key = (path, *(id(target.native) for target in targets))
    with _lock:
        group = _groups.get(key)
        if group is None or group.native.broken is not None:
            group = _groups[key] = _Group(targets, path)
    return NcclSums(group, streams)


class NcclSums:
    """Sums over the GPUs of one device made of devices (a `Sums`).

    Args:
        group: the GPUs.
        streams: a stream of each.
    """

    def __init__(self, group: _Group, streams: Sequence[Stream]) -> None:
        self._group = group
        self._streams = tuple(streams)

    def takes(self, tensor: Tensor) -> bool:
        """Whether it sums tensors of this type and extents."""
        whole = tensor.is_contiguous and not tensor.is_empty
        return tensor.dtype in _TYPES and whole and self._group.native.broken is None

    async def prepare(self) -> None:
        """Have the library loaded and the communicators made, which takes up to seconds.

        If that fails, the log says why, and `takes` answers False from then on.

        Cancellation: abandons the wait; the communicators are made.
        """
        if self._group.native.broken is None:
            error = await self._group.targets[0].aside.call(self._group.native.open)
            if error is not None:
                _log.warning(
                    "[cuda] NCCL cannot be used for sums over GPUs: %s", exception_of(error)
                )

    def plan(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Sequence[CUDAPlan]:
        """Plans of all GPUs that leave the sum of the sources in each target; all are placed."""
        first = sources[0]
        native = _native.CudaSum(self._group.native, first.nelements, _TYPES[first.dtype])
        found = []
        for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
            plan = _native.CudaPlan(self._group.targets[rank].native, overlaps=False)
            plan.node(target.name, "all_reduce", -1, [])
            assert source.address is not None
            assert target.address is not None
            plan.sum(native, rank, source.address, target.address)
            sealed = plan.finish(0)
            storages = Storages()
            storages.reads[source.root] = storages.writes[target.root] = None
            sealed.seal(*storages.records())
            graph = graph_of([], [source, target])
            found.append(CUDAPlan(graph, sealed, storages, (), 1, 0))
        return found

    def run(self, plans: Sequence[CUDAPlan]) -> list[Future[None]]:
        """Enqueue one sum on all streams, in a step that the caller has begun."""
        return [
            stream.run_plan(plan, operation="all_reduce")
            for stream, plan in zip(self._streams, plans, strict=True)
        ]
