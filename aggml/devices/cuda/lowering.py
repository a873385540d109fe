"""From nodes to launches: the kernels of this package as `Kernels`.

Here: which family lowers an op, what is refused. Not here: the families (plain.py,
kernels/<family>.py), cubins (compile.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aggml.devices.cuda.compile import Cubins
from aggml.devices.cuda.kernels import blas, flash_attn_ext
from aggml.devices.cuda.pack import Site
from aggml.devices.cuda.plain import PLAIN, plain
from aggml.dtype import DType
from aggml.errors import Unsupported
from aggml.plan import node_problem

if TYPE_CHECKING:
    from types import ModuleType

    from aggml.devices.cuda.launch import Address, Launch
    from aggml.tensor import Tensor

__all__ = ["FAMILIES", "CudaKernels", "modules"]

_VIEWS = frozenset({"none", "view", "reshape", "permute", "transpose"})
_UNARY = (
    "abs sgn neg step tanh elu relu sigmoid gelu gelu_quick gelu_erf silu exp expm1 softplus "
    "hardswish hardsigmoid floor ceil round trunc sqr sqrt log sin cos xielu clamp leaky_relu"
)
_BY_FAMILY = {
    "unary": _UNARY,
    "binary": "add sub mul div add1 scale",
    "glu": "reglu geglu swiglu swiglu_oai geglu_erf geglu_quick",
    "cpy": "cpy cont dup",
    "mul_mat": "mul_mat mul_mat_id",
    "flash_attn_ext": "flash_attn_ext",
    "norm": "group_norm",
    "out_prod": "out_prod",
    "patch": "set acc",
    "recurrent": ("ssm_conv ssm_scan rwkv_wkv6 rwkv_wkv7 gated_linear_attn gated_delta_net"),
    "recurrent_dsv4": "lightning_indexer dsv4_hc_comb dsv4_hc_pre dsv4_hc_post",
    "solve": "solve_tri",
    "reduce": "sum count_equal cross_entropy_loss",
    "rope": "rope rope_back",
    "shape": "concat repeat",
    "sort": "argsort top_k",
    "rows": "get_rows set_rows get_rows_back add_id",
}
#: Ops that look at their data first, and may leave a fault; kernels of others do not know of it.
_CHECKED = frozenset(
    {"get_rows", "set_rows", "get_rows_back", "add_id", "mul_mat_id", "ssm_scan", "solve_tri"}
)
#: op -> family, of those that have a host part of their own
FAMILIES: dict[str, str] = {op: family for family, ops in _BY_FAMILY.items() for op in ops.split()}

_QUANTIZED = [kind for kind in DType if kind.is_quantized]
#: Types of which blocks are written; the others are codebooks, which are fitted on the CPU alone.
_WRITTEN = [kind for kind in _QUANTIZED if kind.name[:3] not in {"IQ1", "IQ2", "IQ3"}]
_MODULES = sorted(
    {
        "binary",
        "columns",
        "cpy",
        "glu",
        "mul_mat_f",
        "out_prod",
        "recurrent",
        "recurrent_dsv4",
        "rope",
        "rows",
        "solve",
        "sort",
        "unary",
    }
    | {module for module, _, _, _ in PLAIN.values()}
)
#: Modules that are compiled for a quantized type each.
_BY_TYPE = {"mul_mat_q": _QUANTIZED, "quantize": _WRITTEN}


def modules() -> list[str]:
    """Every module that `CudaKernels.module` may be asked for."""
    return [
        *_MODULES,
        *flash_attn_ext.modules(),
        *(f"{name}[TYPE={kind.name}]" for name, kinds in _BY_TYPE.items() for kind in kinds),
    ]


def _family(op: str) -> ModuleType:
    return importlib.import_module(f"aggml.devices.cuda.kernels.{FAMILIES[op]}")


class CudaKernels:
    """The kernels of this package (a `Kernels`).

    Args:
        cubins: where modules come from; None: of the user's cache.
        blas: where libcublasLt lies (`blas.library`), for large products; None: kernels do all.
    """

    def __init__(self, cubins: Cubins | None = None, blas: str | None = None) -> None:
        self.blas = blas
        self._cubins = cubins if cubins is not None else Cubins()

    def supports(self, node: Tensor) -> bool:
        """Whether there are kernels for a node that ggml would accept."""
        if node.op in _VIEWS:
            return True
        if node.op not in PLAIN and node.op not in FAMILIES:
            return False
        if node_problem(node) is not None:
            return False
        refuses: Any = None if node.op in PLAIN else getattr(_family(node.op), "refuses", None)
        return refuses is None or not refuses(node)

    def scratch(self, node: Tensor) -> int:
        """Bytes that the launches of a node share."""
        if node.op not in FAMILIES or node.is_empty:
            return 0
        size: Any = getattr(_family(node.op), "scratch", None)
        of_kernels = 0 if size is None else int(size(node))
        return of_kernels if self.blas is None else max(of_kernels, blas.scratch(node))

    def launches(self, node: Tensor, address: Address, scratch: int, fault: int) -> list[Launch]:
        """The launches of a node that is supported.

        Raises:
            Unsupported: there is no kernel for the op.
        """
        if node.op in _VIEWS:
            return []
        site = Site(node, address, scratch, fault if node.op in _CHECKED else 0)
        if node.op in PLAIN:
            return plain(site)
        if node.op not in FAMILIES:
            raise Unsupported(f"[cuda] there is no kernel for {node.op!r}")
        if node.is_empty:
            return []
        found: list[Launch] = _family(node.op).launches(site)
        return blas.instead(site, found) if self.blas is not None and blas.fits(node) else found

    def module(self, name: str, arch: str) -> bytes:
        """The cubin of a module, see `Cubins.get`."""
        return self._cubins.get(name, arch)
