"""What the device is given to launch: the seam between kernels and streams.

Here: one launch as data, and what a set of kernels answers. Not here: the kernels (lowering.py,
kernels/), who launches them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aggml.plan import Chain
    from aggml.plan.fusion import Readers
    from aggml.tensor import Tensor

__all__ = ["ALWAYS", "WITHOUT_BLAS", "WITH_BLAS", "Address", "Extent", "Gpu", "Kernels", "Launch"]

#: When a launch is carried out: where the products of its node can, or cannot, be left to cuBLASLt.
ALWAYS, WITH_BLAS, WITHOUT_BLAS = 0, 1, 2

#: x, y, z
Extent = tuple[int, int, int]
#: Where the first element of a tensor lies in device memory, its offset into a storage included.
Address = Callable[["Tensor"], int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """What kernels are cut by; the defaults are for when no GPU is asked.

    Attributes:
        multiprocessors: split work fills them; an H100 has 132.
        shared: bytes of shared memory that a block may have: 48 KiB on every GPU without being
            asked for, 64 to 227 on request.
        overlaps: a kernel may be launched while the one before it runs (from sm_90 on).
    """

    multiprocessors: int = 132
    shared: int = 48 * 1024
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, ready to go; of a stream none touches memory before the one before has ended.

    Attributes:
        module: what `Kernels.module` makes a cubin of.
        kernel: its name in the module.
        grid, block: blocks, and threads of each.
        shared: bytes of dynamic shared memory of a block; above 48 KiB the function has to be
            allowed them first.
        args: the kernel's only parameter, a struct passed by value.
        when: see `ALWAYS`.
        gemm: no kernel but a call of cuBLASLt, of which ``args`` is an ag_cuda_gemm (cuda_blas.h).
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
        blas: where libcublasLt lies; None: large products are left to kernels.
        overlaps: a kernel may be launched while the one before it runs: each waits by itself.
        copies: the module whose kernels copy bytes of any strides (cpy.cu); None: the driver does.
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

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The launches that compute a node, none if there is nothing to do.

        Args:
            node: one that is supported.
            address: asked for the node and its sources.
            scratch: address of as many bytes as `scratch` tells; not used after the last launch.
            fault: address of 32 bytes of device memory, four int64, all 0 beforehand. A kernel
                that meets what only the data can tell (an index out of range) leaves there 1, the
                index, its position, and the number of rows (2 for a zero on a diagonal: its place,
                and the matrix), and writes nothing to the node.
        """
        ...

    def find(self, node: Tensor, readers: Readers) -> Chain | None:
        """The chain that begins with a node, of a shape that only these kernels have."""
        ...

    def fits(self, chain: Chain) -> bool:
        """Whether `together` knows the chain; each of its nodes is supported."""
        ...

    def together(self, chain: Chain, address: Address, scratch: int, fault: int) -> list[Launch]:
        """As `launches`, for all nodes of a chain that fits: only the last one is written."""
        ...

    def module(self, name: str, arch: str) -> bytes:
        """The cubin of a module for ``arch`` ("90"), from the cache or compiled; slow when not.

        Raises:
            Unsupported: it is in no cache and NVRTC is not installed.
        """
        ...
