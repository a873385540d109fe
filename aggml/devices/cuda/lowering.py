"""From nodes to launches: CudaKernels, the package's implementation of `Kernels`.

Here: which group of kernels lowers an op, which nodes are refused. Not here: the groups (plain.py,
kernels/<group>.py), cubins (compile.py).
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any, Final

from aggml.devices.cuda import fusion_chain, fusion_pair
from aggml.devices.cuda.compile import Cubins
from aggml.devices.cuda.kernels import blas, flash_attn_ext
from aggml.devices.cuda.launch import Gpu
from aggml.devices.cuda.pack import NodeSite
from aggml.devices.cuda.plain import KERNELS, PLAIN, plain
from aggml.dtype import TYPES
from aggml.errors import Unsupported
from aggml.ops.table import CHECKS, IDLE
from aggml.plan import node_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from aggml.devices.cuda.launch import Address, Launch
    from aggml.plan import FusionChain
    from aggml.plan.fusion import Readers
    from aggml.tensor import Tensor

__all__ = ["HOSTS", "CudaKernels", "modules"]


def _hosts() -> Iterator[tuple[str, ModuleType]]:
    """Each op that a file of kernels/ launches, and that file."""
    for info in pkgutil.iter_modules([str(KERNELS)]):
        module = importlib.import_module(f"aggml.devices.cuda.kernels.{info.name}")
        for op in getattr(module, "OPS", ()):
            yield op, module


#: op -> the module with its host part, for each op that has one
HOSTS: Final[dict[str, ModuleType]] = dict(_hosts())

#: In the head of a kernel file: the file is compiled once for each type.
_FOR_EACH_TYPE: Final = re.compile(r"^// for each type: (quantized|written)$", re.MULTILINE)


def modules() -> list[str]:
    """Every module that `CudaKernels.module` may be asked for."""
    found: list[str] = []
    for path in sorted(KERNELS.glob("*.cu")):
        which = _FOR_EACH_TYPE.search(path.read_text(encoding="utf-8"))
        if path.stem == "flash_attn_ext_wide":
            continue  # listed together with the tiles
        if path.stem == "flash_attn_ext_tiles":
            found += flash_attn_ext.modules()
        elif which is None:
            found.append(path.stem)
        else:
            found += [
                f"{path.stem}[TYPE={dtype.name}]"
                for dtype, row in TYPES.items()
                if dtype.is_quantized and (row.writes or which[1] == "quantized")
            ]
    return found


class CudaKernels:
    """The kernels of this package (a `Kernels`).

    Args:
        cubins: where modules come from; None: the user's cache.
        blas: path of libcublasLt (`blas.library`), for large products; None: kernels compute all.
        gpu: the numbers by which launches are sized.
        tf32: whether cuBLASLt may cut mantissas of f32 to 10 bits. Tensor cores then compute
            products that 32-bit units compute otherwise.
    """

    def __init__(
        self,
        cubins: Cubins | None = None,
        blas: str | None = None,
        gpu: Gpu | None = None,
        *,
        tf32: bool = False,
    ) -> None:
        self.blas = blas
        self.copies: str | None = "cpy"
        self._tf32 = tf32
        self._gpu = Gpu() if gpu is None else gpu
        self.overlaps: bool = self._gpu.overlaps
        self._cubins = cubins if cubins is not None else Cubins()

    def supports(self, node: Tensor) -> bool:
        """Whether there are kernels for a node that ggml would accept."""
        if node.op in IDLE:
            return True
        if node.op not in PLAIN and node.op not in HOSTS:
            return False
        if node_problem(node) is not None:
            return False
        refuses: Any = None if node.op in PLAIN else getattr(HOSTS[node.op], "refuses", None)
        return refuses is None or not refuses(node)

    def scratch(self, node: Tensor) -> int:
        """Bytes that the launches of a node share."""
        if node.op not in HOSTS or node.is_empty:
            return 0
        host: Any = HOSTS[node.op]
        if hasattr(host, "scratch_on"):
            of_kernels = int(host.scratch_on(node, self._gpu))
        else:
            of_kernels = int(host.scratch(node)) if hasattr(host, "scratch") else 0
        return of_kernels if self.blas is None else max(of_kernels, blas.scratch(node))

    def counters(self, node: Tensor) -> int:
        """How many words its blocks count in."""
        host: Any = None if node.is_empty else HOSTS.get(node.op)
        return int(host.counters_on(node, self._gpu)) if hasattr(host, "counters_on") else 0

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The launches of a node that is supported.

        Raises:
            Unsupported: there is no kernel for the op.
        """
        if node.op in IDLE:
            return []
        word = fault if node.op in CHECKS or self.counters(node) else 0
        site = NodeSite(node, address, scratch, word, self._gpu)
        if node.op in PLAIN:
            return plain(site)
        if node.op not in HOSTS:
            raise Unsupported(
                f"[cuda] there is no kernel for {node.op!r}: a Scheduler runs it on the CPU"
            )
        if node.is_empty:
            return []
        found: list[Launch] = HOSTS[node.op].launches(site)
        if self.blas is None or not blas.fits(node):
            return found
        return blas.instead(site, found, tf32=self._tf32)

    def find(self, node: Tensor, readers: Readers) -> FusionChain | None:
        """The chain beginning with ``node`` that only these kernels can fuse, or None."""
        if self.blas is not None and blas.fits(node):
            return None
        return fusion_pair.find(node, readers)

    def fits(self, chain: FusionChain) -> bool:
        """Whether one launch computes the chain."""
        lead = chain.nodes[0]
        return fusion_chain.fits(chain) and (self.blas is None or not blas.fits(lead))

    def together(
        self, chain: FusionChain, address: Address, scratch: int, fault: int
    ) -> list[Launch]:
        """The launches of the first node of a chain, which compute the other nodes as well."""
        if fusion_pair.is_pair(chain):
            return fusion_pair.launches(chain, address, scratch, fault, self._gpu)
        lead, where = fusion_chain.begin_chain(chain, address)
        return fusion_chain.end_chain(chain, self.launches(lead, where, scratch, fault), address)

    def module(self, name: str, arch: str) -> bytes:
        """The cubin of a module, see `Cubins.get`."""
        return self._cubins.get(name, arch)
