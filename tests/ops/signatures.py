"""Parameters of the functions of ggml.h, without ``ctx``: families with a file for themselves.

Here: what test_builders.py compares the builders with, as far as it does not list it itself.
"""

from __future__ import annotations

__all__ = ["SIGNATURES"]

_PLANE = "s0 s1 p0 p1 d0 d1"
_VOLUME = "s0 s1 s2 p0 p1 p2 d0 d1 d2"
_YARN = "n_ctx_orig freq_base freq_scale ext_factor attn_factor beta_fast beta_slow"
_ENDS = "a lp0 rp0 lp1 rp1 lp2 rp2 lp3 rp3"

SIGNATURES = {
    "view_tensor": "src",
    "flash_attn_back": "q k v d masked",
    # custom
    **{f"map_custom1{suffix}": "a fun n_tasks userdata" for suffix in ("", "_inplace")},
    **{f"map_custom2{suffix}": "a b fun n_tasks userdata" for suffix in ("", "_inplace")},
    **{f"map_custom3{suffix}": "a b c fun n_tasks userdata" for suffix in ("", "_inplace")},
    "custom_4d": "type ne0 ne1 ne2 ne3 args n_args fun n_tasks userdata",
    "custom_inplace": "a args n_args fun n_tasks userdata",
    # conv
    "im2col": f"a b {_PLANE} is_2D dst_type",
    "im2col_back": f"a b ne {_PLANE} is_2D",
    "im2col_3d": f"a b IC {_VOLUME} dst_type",
    "conv_1d": "a b s0 p0 d0",
    "conv_1d_ph": "a b s d",
    "conv_1d_dw": "a b s0 p0 d0",
    "conv_1d_dw_ph": "a b s0 d0",
    "conv_2d": f"a b {_PLANE}",
    "conv_2d_sk_p0": "a b",
    "conv_2d_s1_ph": "a b",
    "conv_2d_dw": f"a b {_PLANE}",
    "conv_3d": f"a b IC {_VOLUME}",
    # conv_direct
    "conv_2d_direct": f"a b {_PLANE}",
    "conv_2d_dw_direct": "a b stride0 stride1 pad0 pad1 dilation0 dilation1",
    "conv_3d_direct": f"a b {_VOLUME} n_channels n_batch n_channels_out",
    "conv_transpose_1d": "a b s0 p0 d0",
    "conv_transpose_2d_p0": "a b stride",
    "col2im_1d": "a s0 oc p0",
    # conv_pool, conv_upscale
    "pool_1d": "a op k0 s0 p0",
    "pool_2d": "a op k0 k1 s0 s1 p0 p1",
    "pool_2d_back": "a af op k0 k1 s0 s1 p0 p1",
    "upscale": "a scale_factor mode",
    "upscale_ext": "a ne0 ne1 ne2 ne3 mode",
    "interpolate": "a ne0 ne1 ne2 ne3 mode",
    # shape_repeat, shape_pad, shape_fill, shape_window
    "repeat": "a b",
    "repeat_4d": "a ne0 ne1 ne2 ne3",
    "repeat_back": "a b",
    **{f"pad{suffix}": "a p0 p1 p2 p3" for suffix in ("", "_circular")},
    **{f"pad_ext{suffix}": _ENDS for suffix in ("", "_circular")},
    "pad_reflect_1d": "a p0 p1",
    "roll": "a shift0 shift1 shift2 shift3",
    "arange": "start stop step",
    **{f"fill{suffix}": "a c" for suffix in ("", "_inplace")},
    "tri": "a type",
    "diag": "a",
    "timestep_embedding": "timesteps dim max_period",
    "win_part": "a w",
    "win_unpart": "a w0 h0 w",
    "get_rel_pos": "a qh kh",
    **{f"add_rel_pos{suffix}": "a pw ph" for suffix in ("", "_inplace")},
    # rope, rope_multi
    "rope_ext_back": f"a b c n_dims mode {_YARN}",
    "rope_set_offset": "a n_offs",
    **{
        f"rope_multi{suffix}": f"a b c n_dims sections mode {_YARN}"
        for suffix in ("", "_inplace", "_back")
    },
    # rows_back
    "get_rows_back": "a b c",
    # recurrent, recurrent_dsv4
    "ssm_conv": "sx c",
    "ssm_scan": "s x dt A B C ids K",
    "rwkv_wkv6": "k v r tf td state",
    "rwkv_wkv7": "r w k v a b state",
    "gated_linear_attn": "k v q g state scale",
    "gated_delta_net": "q k v g beta state K",
    "lightning_indexer": "q k weights mask",
    "dsv4_hc_comb": "mixes scale base eps n_iter",
    "dsv4_hc_pre": "x weights",
    "dsv4_hc_post": "x residual post comb",
    # solve, optimizers
    "solve_tri": "a b left lower uni",
    "opt_step_adamw": "a grad m v adamw_params",
    "opt_step_sgd": "a grad sgd_params",
}
