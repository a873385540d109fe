"""Recurrences over tokens: ssm_conv, ssm_scan, RWKV 6 and 7, gated linear attention, delta net.

A result holds all outputs first, then the states after them. Here: shapes, types, checks. Not
here: kernels (native/*/recurrent.c).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    I32,
    all_tensors,
    gaps,
    mismatch,
    need_dense,
    need_f32_rows,
    pack,
    refuse_type,
    whole,
)
from aggml.tensor import Tensor, new_node

__all__ = [
    "gated_delta_net",
    "gated_linear_attn",
    "rwkv_wkv6",
    "rwkv_wkv7",
    "ssm_conv",
    "ssm_scan",
]

_SNAPSHOTS = struct.Struct("<i60x")
_SCALE = struct.Struct("<f60x")


def ssm_conv(sx: Tensor, c: Tensor) -> Tensor:
    """Convolve each channel of the tokens with a short kernel of its own (``ggml_ssm_conv``).

    Args:
        sx: f32 [k - 1 + t, d, s], the last k - 1 tokens before, then t tokens, of s sequences.
        c: f32 [k, d].

    Returns:
        f32 [d, t, s].

    Raises:
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    need_f32_rows("ssm_conv", sx=sx, c=c)
    k, d = c.ne[:2]
    tokens = sx.ne[0] - k + 1
    if not c.is_matrix or sx.ne[1] != d or sx.ne[3] != 1 or tokens < 0:
        raise mismatch("ssm_conv", "c [k, d] does not fit sx [k - 1 + t, d, s]", sx=sx, c=c)
    return new_node("ssm_conv", F32, (d, tokens, sx.ne[2], 1), (sx, c))


def ssm_scan(
    s: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ids: Tensor,
    K: int = 1,
) -> Tensor:
    """The selective scan of Mamba 1 and 2 (``ggml_ssm_scan``).

    With ``d = softplus(dt)``, each token makes the state ``exp(d A) s + d x B``, and gives ``C s``.

    Args:
        s: f32 [n, p, h, slots], states of n numbers for each of p rows of h heads.
        x: f32 [p, h, t, q], t tokens of q sequences.
        dt: f32 [h, t, q].
        A: f32 [1, h] (Mamba 2), or [n, h].
        B: f32 [n, g, t, q]; h / g heads that follow each other share a group.
        C: f32, the extents of B.
        ids: i32 [q], the slot where each sequence begins. One out of range fails the computation.
        K: how many states are kept of each sequence: after its last token, after the one before,
            and so on; before its first token the initial state.

    Returns:
        f32 [p * h * t * q + K * n * p * h * q]: outputs like x, then states [n, p, h, q], K times.

    Raises:
        InvalidArgument: K below 1.
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "ssm_scan"
    if ids.__class__ is not Tensor:
        all_tensors(op, s=s, x=x, dt=dt, A=A, B=B, C=C, ids=ids)
    need_f32_rows(op, s=s, x=x, dt=dt, A=A, B=B, C=C)
    need_dense(op, s=s, dt=dt, A=A)
    for name, a in (("x", x), ("B", B), ("C", C)):
        if a.nb[:2] != (4, 4 * a.ne[0]):
            raise gaps(op, **{name: a})
    (kept,) = whole(op, K)
    if kept < 1:
        raise InvalidArgument(f"[{op}] K = {kept} is not 1 or more")
    if ids.dtype is not I32:
        raise refuse_type(op, "ids of i32", s=s, ids=ids)
    n, p, heads, _ = s.ne
    _, _, tokens, q = x.ne
    groups = B.ne[1]
    if (
        x.ne[:2] != (p, heads)
        or dt.ne != (heads, tokens, q, 1)
        or A.ne not in {(1, heads, 1, 1), (n, heads, 1, 1)}
        or B.ne != (n, groups, tokens, q)
        or B.ne != C.ne
        or not groups
        or heads % groups
        or ids.ne != (q, 1, 1, 1)
    ):
        raise mismatch(
            op,
            "expected x [p, h, t, q], dt [h, t, q], A [1 or n, h], B and C [n, g, t, q], ids [q] "
            "for s [n, p, h]",
            s=s,
            x=x,
            dt=dt,
            A=A,
            B=B,
            C=C,
            ids=ids,
        )
    size = p * heads * tokens * q + kept * n * p * heads * q
    src = (s, x, dt, A, B, C, ids)
    return new_node(op, F32, (size, 1, 1, 1), src, pack(op, _SNAPSHOTS, kept))


def _heads(op: str, params: bytes, state: Tensor, *like: Tensor) -> Tensor:
    """The node of an op with states [d, d, h, s]; the first of ``like`` gives d, h and t."""
    d, heads, tokens, outer = like[0].ne
    sequences = state.ne[1]
    whole_sequences = tokens % sequences == 0 if sequences else tokens == 0
    if outer != 1 or not whole_sequences:
        raise mismatch(
            op, f"{tokens} tokens cannot be divided evenly among {sequences} states", first=like[0]
        )
    if state.nelements != d * d * heads * sequences:
        raise mismatch(
            op, f"state must be [{d * d * heads}, {sequences}]", first=like[0], state=state
        )
    ne = (d * heads, tokens + d * sequences, 1, 1)
    return new_node(op, F32, ne, (*like, state), params)


def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Tensor:
    """The time mixing of RWKV 6 (``ggml_rwkv_wkv6``).

    A token gives ``r (tf k v + S)`` and makes the state ``td S + k v``, ``S[k][v]``.

    Args:
        k: f32 [d, h, t], the tokens of all sequences one after the other.
        v: f32, likewise.
        r: f32, likewise.
        tf: f32 [d, h], the bonus of the token itself.
        td: f32 [d, h, t], the factor by which the state decays.
        state: f32 [d * d * h, s], contiguous.

    Returns:
        f32 [d * h, t + d * s]: outputs, then states.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "rwkv_wkv6"
    need_f32_rows(op, k=k, v=v, r=r, tf=tf, td=td, state=state)
    need_dense(op, k=k, v=v, r=r, tf=tf, td=td, state=state)
    if not k.ne == v.ne == r.ne == td.ne or tf.ne != (k.ne[0], k.ne[1], 1, 1):
        raise mismatch(
            op,
            "k, v, r, td must have the same extents [d, h, t] and tf [d, h]",
            k=k,
            v=v,
            r=r,
            tf=tf,
            td=td,
        )
    return _heads(op, bytes(64), state, k, v, r, tf, td)


def rwkv_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> Tensor:
    """The time mixing of RWKV 7 (``ggml_rwkv_wkv7``).

    A token makes the state ``S w + v k + (S a) b``, ``S[v][k]``, and gives ``S r``.

    Args:
        r: f32 [d, h, t], the tokens of all sequences one after the other.
        w: f32, likewise.
        k: f32, likewise.
        v: f32, likewise.
        a: f32, likewise.
        b: f32, likewise.
        state: f32 [d * d * h, s], contiguous.

    Returns:
        f32 [d * h, t + d * s]: outputs, then states.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "rwkv_wkv7"
    need_f32_rows(op, r=r, w=w, k=k, v=v, a=a, b=b, state=state)
    need_dense(op, r=r, w=w, k=k, v=v, a=a, b=b, state=state)
    if not r.ne == w.ne == k.ne == v.ne == a.ne == b.ne:
        raise mismatch(
            op, "r, w, k, v, a, b must have the same extents", r=r, w=w, k=k, v=v, a=a, b=b
        )
    return _heads(op, bytes(64), state, r, w, k, v, a, b)


def gated_linear_attn(
    k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float = 1.0
) -> Tensor:
    """Gated linear attention (``ggml_gated_linear_attn``).

    A token makes the state ``g S + k v``, ``S[k][v]``, and gives ``scale q S``.

    Args:
        k: f32 [d, h, t], the tokens of all sequences one after the other.
        v: f32, likewise.
        q: f32, likewise.
        g: f32, likewise.
        state: f32 [d * d * h, s], contiguous.
        scale: factor of the outputs.

    Returns:
        f32 [d * h, t + d * s]: outputs, then states.

    Raises:
        InvalidArgument: ``scale`` is no number that f32 can hold.
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "gated_linear_attn"
    need_f32_rows(op, k=k, v=v, q=q, g=g, state=state)
    need_dense(op, k=k, v=v, q=q, g=g, state=state)
    if not k.ne == v.ne == q.ne == g.ne:
        raise mismatch(op, "k, v, q, g must have the same extents", k=k, v=v, q=q, g=g)
    return _heads(op, pack(op, _SCALE, scale), state, k, v, q, g)


def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, K: int = 1
) -> Tensor:
    """The gated delta rule (``ggml_gated_delta_net``).

    A token makes the state ``S exp(g)``, adds ``beta (v - S k) k`` to it, and gives
    ``S q / sqrt(d)``, ``S[v][k]``.

    Args:
        q: f32 [d, hk, t, s]; head h of v goes with head h mod hk.
        k: f32, likewise.
        v: f32 [d, h, t, s].
        g: f32 [1, h, t, s], or [d, h, t, s] with a gate for each element of a key.
        beta: f32 [1, h, t, s].
        state: f32, contiguous, as many elements as [d, d, h, s].
        K: how many states are kept of each sequence: after its last token, after the one before,
            and so on; before its first token the initial state.

    Returns:
        f32 [d * h, t * s + K * d * s]: outputs [d, h, t, s], then states [d, d, h, s], K times.

    Raises:
        InvalidArgument: K below 1.
        LayoutMismatch: extents that do not fit, or gaps in rows.
        Unsupported: other types.
    """
    op = "gated_delta_net"
    need_f32_rows(op, q=q, k=k, v=v, g=g, beta=beta, state=state)
    need_dense(op, g=g, beta=beta, state=state)
    (kept,) = whole(op, K)
    if kept < 1:
        raise InvalidArgument(f"[{op}] K = {kept} is not 1 or more")
    d, heads, tokens, sequences = v.ne
    outer = (heads, tokens, sequences)
    if (
        q.ne != k.ne
        or (q.ne[0], *q.ne[2:]) != (d, tokens, sequences)
        or not q.ne[1]
        or heads % q.ne[1]
        or g.ne not in {(1, *outer), (d, *outer)}
        or beta.ne != (1, *outer)
        or state.nelements != d * d * heads * sequences
    ):
        raise mismatch(
            op,
            "expected q, k [d, h / r, t, s], g [1 or d, h, t, s], beta [1, h, t, s], state "
            "[d d h, s] for v [d, h, t, s]",
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            state=state,
        )
    ne = (d * heads, tokens * sequences + kept * d * sequences, 1, 1)
    return new_node(op, F32, ne, (q, k, v, g, beta, state), pack(op, _SNAPSHOTS, kept))
