"""The builders: one function per operation of ggml, named without ``ggml_``.

Parameters have their C names. Here: the names; each file of this folder has the builders of one
group of ops. A builder checks its operands and returns a Tensor that describes the computation.
Nothing is computed before a Graph runs.
"""

from enum import EnumType as _EnumType
from types import FunctionType as _Function

from aggml.ops import operators as _operators  # noqa: F401 - gives tensors their operators
from aggml.ops._common import Prec as Prec
from aggml.ops.backward import *
from aggml.ops.binary import *
from aggml.ops.conv import *
from aggml.ops.conv_direct import *
from aggml.ops.conv_im2col import *
from aggml.ops.conv_pool import *
from aggml.ops.conv_upscale import *
from aggml.ops.cpy import *
from aggml.ops.custom import *
from aggml.ops.diag_mask import *
from aggml.ops.flash_attn_back import *
from aggml.ops.flash_attn_ext import *
from aggml.ops.glu import *
from aggml.ops.mul_mat import *
from aggml.ops.mul_mat_id import *
from aggml.ops.norm import *
from aggml.ops.optimizers import *
from aggml.ops.out_prod import *
from aggml.ops.patch import *
from aggml.ops.precision import *
from aggml.ops.recurrent import *
from aggml.ops.recurrent_dsv4 import *
from aggml.ops.reduce import *
from aggml.ops.rope import *
from aggml.ops.rope_multi import *
from aggml.ops.rows import *
from aggml.ops.rows_back import *
from aggml.ops.sample import *
from aggml.ops.shape import *
from aggml.ops.shape_fill import *
from aggml.ops.shape_pad import *
from aggml.ops.shape_repeat import *
from aggml.ops.shape_window import *
from aggml.ops.soft_max import *
from aggml.ops.solve import *
from aggml.ops.sort import *
from aggml.ops.unary import *
from aggml.ops.unary_params import *

#: The builders, and the enums of their parameters.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll] - as those of the files
    [
        name
        for name, x in globals().items()
        if isinstance(x, _Function | _EnumType) and name[0] != "_"
    ]
)


def __dir__() -> list[str]:
    return __all__
