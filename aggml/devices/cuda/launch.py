"""Launch and Kernels: the interface between kernels and the streams that launch them.

Here: one launch as data, and the methods of a set of kernels. Not here: the kernels (lowering.py,
kernels/), launching them (native/cuda/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aggml.plan import FusionChain
    from aggml.plan.fusion import Readers
    from aggml.tensor import Tensor

__all__ = ["ALWAYS", "WITHOUT_BLAS", "WITH_BLAS", "Address", "Extent", "Gpu", "Kernels", "Launch"]

#: When a launch is carried out: always, or only if cuBLASLt can (or cannot) compute the product.
ALWAYS, WITH_BLAS, WITHOUT_BLAS = 0, 1, 2

#: x, y, z
Extent = tuple[int, int, int]
#: Gives the device address of a tensor's first element, including its offset into a storage.
Address = Callable[["Tensor"], int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The numbers of a GPU by which launches are sized; the defaults serve where there is no GPU.

    Attributes:
        multiprocessors: how many; work is split so that it fills them. An H100 has 132.
        shared: bytes of shared memory that a block may have: 48 KiB on every GPU by default, 64 to
            227 KiB on request.
        overlaps: whether a kernel may be launched while the one before it runs (from sm_90 on).
    """

    multiprocessors: int = 132
    shared: int = 48 * 1024
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, ready to launch. On a stream it touches memory only after the previous one ended.

    Attributes:
        module: the name by which `Kernels.module` finds its cubin.
        kernel: its name in the module.
        grid, block: blocks, and threads of each.
        shared: bytes of dynamic shared memory of a block; above 48 KiB the function has to be
            allowed them first.
        args: the kernel's only parameter, a struct passed by value.
        when: see `ALWAYS`.
        gemm: not a kernel but a call of cuBLASLt; ``args`` is then an ag_cuda_gemm (cuda_blas.h).
    """

    module: str
    kernel: str
    grid: Extent
    block: Extent
    shared: int
    args: bytes
    when: int = ALWAYS
    gemm: bool = False


class Kernels(Protocol):
    """A set of kernels; every method may be called from any thread.

    Attributes:
        blas: path of libcublasLt; None: kernels compute large products, too.
        overlaps: whether a kernel may be launched while the previous one runs; each then waits
            inside the kernel.
        copies: the module whose kernels copy bytes with any strides (cpy.cu); None: the driver
            copies.
    """

    copies: str | None
    blas: str | None
    overlaps: bool

    def supports(self, node: Tensor) -> bool:
        """Whether `launches` knows the node, by op, types and strides; nothing is compiled."""
        ...

    def scratch(self, node: Tensor) -> int:
        """Bytes of device memory, aligned to 256, that the launches of a node share; often 0."""
        ...

    def counters(self, node: Tensor) -> int:
        """How many 4-byte words at ``fault`` its blocks count in; often 0.

        They are 0 before the launches of the node and have to be 0 afterwards. Such a node leaves
        no word of a fault.
        """
        ...

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The launches that compute a node, none if there is nothing to do.

        Args:
            node: one that is supported.
            address: gives the addresses of the node and its sources.
            scratch: address of as many bytes as `scratch` returns; unused after the last launch.
            fault: address of 32 bytes of device memory: four int64, all 0 beforehand. A kernel that
                finds an error in the data (an index out of range) writes there 1, the index, its
                position, and the number of rows, and writes nothing to the node. (For a zero on a
                diagonal it writes 2, the place of the zero, and the matrix.)
        """
        ...

    def find(self, node: Tensor, readers: Readers) -> FusionChain | None:
        """The chain beginning with ``node`` that only these kernels can fuse, or None."""
        ...

    def fits(self, chain: FusionChain) -> bool:
        """Whether `together` knows the chain; each of its nodes is supported."""
        ...

    def together(
        self, chain: FusionChain, address: Address, scratch: int, fault: int
    ) -> list[Launch]:
        """As `launches`, for all nodes of a chain that fits; only the last node is written."""
        ...

    def module(self, name: str, arch: str) -> bytes:
        """The cubin of a module for ``arch`` ("90"), from the cache or compiled (slow).

        Raises:
            Unsupported: it is in no cache and NVRTC is not installed.
        """
        ...
