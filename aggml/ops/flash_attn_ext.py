"""Attention as one node: flash_attn_ext, its precision and sinks, facts about its keys.

Here: shapes, types, checks. Not here: kernels (native/*/flash_attn_ext.c).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F16,
    F32,
    FLOATS,
    Prec,
    all_tensors,
    gaps,
    mismatch,
    need_node,
    pack,
    refuse_type,
    set_param,
    set_sinks,
    whole,
)
from aggml.ops._precision import ACC_AT, set_acc
from aggml.tensor import Tensor, new_node

__all__ = [
    "flash_attn_ext",
    "flash_attn_ext_add_sinks",
    "flash_attn_ext_get_prec",
    "flash_attn_ext_set_n_kv_max",
    "flash_attn_ext_set_prec",
    "flash_attn_ext_set_shared",
]

_PARAMS = struct.Struct("<3f52x")
# Slots of 32 bits among the parameters; ggml counts the first five alike.
_N_KV_MAX_AT = 4
_SHARED_AT = 5


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
) -> Tensor:
    """Attention of each head, ``soft_max(q k scale + mask) v`` (``ggml_flash_attn_ext``).

    Args:
        q: f32 [d, n, heads, batch], rows without gaps.
        k: [d, kv, kv heads, batch] of any float or quantized type, rows without gaps.
        v: [dv, kv, kv heads, batch] likewise, not transposed.
        mask: f16 [kv, at least n, divides heads, divides batch], contiguous; or None.
        scale: factor of the products of q and k.
        max_bias: above 0, the mask's slope falls from head to head (ALiBi).
        logit_softcap: above 0, logits x become ``softcap * tanh(x / softcap)``.

    Returns:
        f32 [dv, heads, n, batch]: permuted. Zeros where the mask leaves nothing.

    Raises:
        InvalidArgument: ALiBi without mask, a number that f32 cannot hold.
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    op = "flash_attn_ext"
    if q.__class__ is not Tensor or k.__class__ is not Tensor or v.__class__ is not Tensor:
        all_tensors(op, q=q, k=k, v=v)
    d, n, heads, batch = q.ne
    dk, kv, k_heads, k_batch = k.ne
    dv, v_kv, v_heads, v_batch = v.ne
    if not (d == dk and kv == v_kv and batch == k_batch == v_batch):
        raise mismatch(
            op, "expected q [d, n, h, s], k [d, kv, h, s], v [dv, kv, h, s]", q=q, k=k, v=v
        )
    if (heads % k_heads if k_heads else heads) or (heads % v_heads if v_heads else heads):
        raise mismatch(op, "q must have a multiple of the heads of k and v", q=q, k=k, v=v)
    if q.dtype is not F32 or not (_has_rows_for(k) and _has_rows_for(v)):
        raise refuse_type(op, "q of f32, k and v of floats or quantized types", q=q, k=k, v=v)
    if q.nb[0] != 4 or k.nb[0] != k.dtype.type_size or v.nb[0] != v.dtype.type_size:
        raise gaps(op, q=q, k=k, v=v)
    params = pack(op, _PARAMS, scale, max_bias, logit_softcap)
    src: tuple[Tensor, ...] = (q, k, v)
    if mask is not None:
        if mask.__class__ is not Tensor:
            all_tensors(op, mask=mask)
        if mask.dtype is not F16:
            raise refuse_type(op, "a mask of f16", mask=mask)
        m0, m1, m2, m3 = mask.ne
        if m0 != kv or m1 < n or (heads % m2 if m2 else heads) or (batch % m3 if m3 else batch):
            raise mismatch(
                op,
                f"mask must be [{kv}, {n} or more, a divisor of {heads}, a divisor of {batch}]",
                q=q,
                k=k,
                mask=mask,
            )
        if not mask.is_contiguous:
            raise gaps(op, mask=mask)
        src = (q, k, v, mask)
    elif max_bias > 0:
        raise InvalidArgument(f"[{op}] max_bias = {max_bias} needs a mask")
    # Of q [d, n, heads, ...] dimensions 1 and 2 change places.
    return new_node(op, F32, (dv, heads, n, batch), src, params, ndim=max(q.ndim, 3))


def _has_rows_for(a: Tensor) -> bool:
    return a.dtype in FLOATS or a.dtype.is_quantized


def flash_attn_ext_set_prec(a: Tensor, prec: Prec | str | int) -> Tensor:
    """`prec_set_acc` for a flash_attn_ext alone (``ggml_flash_attn_ext_set_prec``).

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no flash_attn_ext; no such precision.
        InvalidState: ``a`` is in a Graph.
    """
    need_node("flash_attn_ext_set_prec", a, "flash_attn_ext")
    return set_acc("flash_attn_ext_set_prec", a, prec)


def flash_attn_ext_get_prec(a: Tensor) -> Prec:
    """The precision of a flash_attn_ext (``ggml_flash_attn_ext_get_prec``).

    Returns:
        A member of `Prec`.

    Raises:
        InvalidArgument: ``a`` is no flash_attn_ext.
    """
    need_node("flash_attn_ext_get_prec", a, "flash_attn_ext", to_change=False)
    at = 4 * ACC_AT["flash_attn_ext"]
    return Prec(int.from_bytes(a.op_params[at : at + 4], "little", signed=True))


def flash_attn_ext_add_sinks(a: Tensor, sinks: Tensor | None) -> Tensor:
    """Give attention one more logit per head, of value 0 (``ggml_flash_attn_ext_add_sinks``).

    Args:
        a: the node that `flash_attn_ext` returned.
        sinks: f32 [heads], contiguous; None takes them away again.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no flash_attn_ext.
        InvalidState: ``a`` is in a Graph or has sinks already.
        LayoutMismatch: other extents, or gaps.
        Unsupported: ``sinks`` is not f32.
    """
    op = "flash_attn_ext_add_sinks"
    need_node(op, a, "flash_attn_ext")
    return set_sinks(op, a, sinks, a.ne[1], 4)


def flash_attn_ext_set_n_kv_max(a: Tensor, n_kv_max: int) -> Tensor:
    """Promise that no query sees more keys than this (``ggml_flash_attn_ext_set_n_kv_max``).

    A device may then gather the keys whose mask is finite and leave out the others. The promise
    changes no result: the mask alone says which keys a query sees.

    Args:
        a: the node that `flash_attn_ext` returned.
        n_kv_max: at least the number of finite elements in every row of the mask; 0 takes the
            promise back.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no flash_attn_ext, or ``n_kv_max`` is negative or beyond 32 bits.
        InvalidHandle: ``n_kv_max`` is no integer.
        InvalidState: ``a`` is in a Graph.
    """
    op = "flash_attn_ext_set_n_kv_max"
    need_node(op, a, "flash_attn_ext")
    (keys,) = whole(op, n_kv_max)
    if keys < 0:
        raise InvalidArgument(f"[{op}] n_kv_max = {keys}: must be at least 0")
    return set_param(op, a, _N_KV_MAX_AT, keys)


def flash_attn_ext_set_shared(a: Tensor, keys: int, batch: int = 0) -> Tensor:
    """Declare that all batches have the same first keys and values, so a device may read them once.

    It changes the speed of ``a`` and the order of its sums, nothing else. The CPU makes use of it
    if each batch has one query. ggml has no such function.

    Args:
        a: the node that `flash_attn_ext` returned.
        keys: how many rows of k and of v are equal in all batches; 0: none.
        batch: the one whose rows are read.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no flash_attn_ext, or has fewer keys or batches.
        InvalidState: ``a`` is in a Graph.
    """
    op = "flash_attn_ext_set_shared"
    need_node(op, a, "flash_attn_ext")
    k = a.src[1]
    assert k is not None
    if not (0 <= keys <= k.ne[1] and 0 <= batch < k.ne[3]):
        raise InvalidArgument(
            f"[{op}] {keys} keys of batch {batch} are to be shared, but k has {k.ne[1]} keys and "
            f"{k.ne[3]} batches"
        )
    return set_param(op, a, _SHARED_AT, keys, batch)
