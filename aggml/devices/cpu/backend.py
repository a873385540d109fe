"""CPUBackend: ordered work on worker threads, over host memory.

Here: which threads and kernels it uses, and how graphs are compiled. Not here: the device
(device.py), transfers (backend/direct.py), kernels and threads (native/), ordering and futures
(stream/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.backend.direct import DirectBackend
from aggml.errors import InvalidArgument
from aggml.native import cpu_mask
from aggml.plan import compile_steps
from aggml.stream import Stream
from aggml.stream.threadpool import ThreadPool, default_pool
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from aggml.backend.backend import Device
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.plan import Plan
    from aggml.stream.slices import Sliced

__all__ = ["CPUBackend"]


class CPUBackend(DirectBackend):
    """Ordered work on the worker threads.

    Args:
        n_threads: the most threads that one graph uses; None: as many as the pool has by default,
            see `ThreadPool`.
        use_ref: use only the exact scalar kernels (ggml_backend_cpu_set_use_ref).
        isa: the highest instruction set that kernels may use: "scalar", "avx2", "avxvnni",
            "avx512", "amd512", "zen5", "amx", "neon", "dotprod" or "i8mm"; None: AGGML_ISA from the
            environment, else the best that this machine has.
        max_queued: see `Backend.ready`.
        pool: worker threads; None: the pool that all CPU backends share.
    """

    def __init__(
        self,
        device: Device,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        isa: str | None = None,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        if n_threads is not None:
            n_threads = integer(n_threads, "n_threads", "CPUDevice.backend")
            if not 1 <= n_threads <= 512:
                raise InvalidArgument(
                    f"[CPUDevice.backend] n_threads={n_threads} is not within 1..512"
                )
        workers = default_pool() if pool is None else pool
        if n_threads is not None and pool is None:
            workers.grow(n_threads, widen=False)  # a caller may ask for more threads than cores
        self.cpu: int = cpu_mask("scalar" if use_ref else isa)
        self._use_ref = use_ref
        super().__init__(
            device,
            Stream(device.name, pool=workers, n_threads=n_threads or 0),
            max_queued=max_queued,
        )

    @property
    def use_ref(self) -> bool:
        """Whether only the exact scalar kernels are used."""
        return self._use_ref

    @property
    def pool(self) -> ThreadPool:
        """The worker threads; other backends may share them."""
        return self.stream.pool

    @property
    def n_threads(self) -> int:
        """The most threads that one graph uses."""
        return self.stream.native.n_threads or self.stream.pool.width

    @n_threads.setter
    def n_threads(self, n: int) -> None:
        if integer(n, "n_threads", "CPUBackend.n_threads") not in range(1, 513):
            raise InvalidArgument(f"[CPUBackend.n_threads] {n} is not within 1..512")
        self.stream.pool.grow(n, widen=False)
        self.stream.native.n_threads = n

    def _sibling(self) -> CPUBackend:
        other = CPUBackend(self.device, use_ref=self.use_ref, pool=self.pool)
        other.stream.native.n_threads = self.stream.native.n_threads
        other.cpu = self.cpu
        return other

    def _repeats(self) -> object:
        return True

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[Plan]:
        return compile_steps(graph, memory.locate, memory.scratch_size, self.cpu, pack=True)
