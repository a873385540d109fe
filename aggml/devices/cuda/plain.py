"""Families whose kernels walk the node as it is: which kernel computes an op, and in what grid.

Here: the table. Not here: families whose host part decides more (kernels/<family>.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site

__all__ = ["PLAIN", "plain"]

#: op -> module, kernel, number of operands, who gets threads: "e" each element of the node,
#: "r" each row of the node gets a block, "a" each row of source 0 does, "w" each row a warp.
PLAIN: dict[str, tuple[str, str, int, str]] = {
    "norm": ("norm", "norm_rows", 1, "r"),
    "rms_norm": ("norm", "norm_rows", 1, "r"),
    "l2_norm": ("norm", "norm_rows", 1, "r"),
    "soft_max": ("soft_max", "soft_max", 3, "r"),
    "diag_mask_inf": ("diag_mask", "diag_mask", 1, "e"),
    "diag_mask_zero": ("diag_mask", "diag_mask", 1, "e"),
    "silu_back": ("backward", "silu_back", 2, "e"),
    "rms_norm_back": ("backward", "rms_norm_back", 2, "r"),
    "soft_max_back": ("backward", "soft_max_back", 2, "r"),
    "cross_entropy_loss_back": ("backward", "cross_entropy_loss_back", 3, "r"),
    "sum_rows": ("reduce", "sum_rows", 1, "a"),
    "mean": ("reduce", "sum_rows", 1, "a"),
    "argmax": ("reduce", "argmax", 1, "a"),
    "cumsum": ("reduce", "cumsum", 1, "w"),
    "repeat_back": ("shape_repeat", "repeat_back", 1, "e"),
    "pad": ("shape_pad", "shape_pad", 1, "e"),
    "pad_reflect_1d": ("shape_pad", "shape_pad", 1, "e"),
    "roll": ("shape_pad", "shape_pad", 1, "e"),
    "fill": ("shape_fill", "shape_fill", 1, "e"),
    "arange": ("shape_fill", "shape_fill", 1, "e"),
    "tri": ("shape_fill", "shape_fill", 1, "e"),
    "diag": ("shape_fill", "shape_fill", 1, "e"),
    "timestep_embedding": ("shape_fill", "shape_fill", 1, "e"),
    "win_part": ("shape_window", "shape_window", 3, "e"),
    "win_unpart": ("shape_window", "shape_window", 3, "e"),
    "get_rel_pos": ("shape_window", "shape_window", 3, "e"),
    "add_rel_pos": ("shape_window", "shape_window", 3, "e"),
    "im2col": ("conv", "im2col", 2, "e"),
    "im2col_3d": ("conv", "im2col", 2, "e"),
    "im2col_back": ("conv", "im2col_back", 2, "e"),
    "conv_2d": ("conv_direct", "conv_2d", 2, "e"),
    "conv_2d_dw": ("conv_direct", "conv_2d", 2, "e"),
    "conv_3d": ("conv_direct", "conv_3d", 2, "e"),
    "conv_transpose_1d": ("conv_direct", "conv_transpose", 2, "e"),
    "conv_transpose_2d": ("conv_direct", "conv_transpose", 2, "e"),
    "col2im_1d": ("conv_direct", "col2im_1d", 1, "e"),
    "pool_1d": ("conv_pool", "conv_pool", 1, "e"),
    "pool_2d": ("conv_pool", "conv_pool", 1, "e"),
    "pool_2d_back": ("conv_pool", "pool_2d_back", 2, "e"),
    "upscale": ("conv_upscale", "upscale", 1, "e"),
    "opt_step_adamw": ("optimizers", "opt_step_adamw", 5, "e"),
    "opt_step_sgd": ("optimizers", "opt_step_sgd", 3, "e"),
}


def plain(site: Site) -> list[Launch]:
    """The launch of an op of the table."""
    module, kernel, n_src, mode = PLAIN[site.node.op]
    if mode == "e":
        return site.per_element(module, kernel, site.node.nelements, n_src)
    tensor = site.node if mode == "r" else site.node.src[0]
    assert tensor is not None
    if site.node.is_empty:
        return []
    width = 32 if mode == "w" else tensor.ne[0]
    return site.per_row(module, kernel, tensor.nrows, width, n_src)
