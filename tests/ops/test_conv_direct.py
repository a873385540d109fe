"""Convolutions in one node: transposed ones, columns to an image, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, Tensor, Unsupported, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import aggml


def test_conv_transpose_2d_computes_every_image(any_backend: aggml.Backend) -> None:
    """ggml computes only the first image."""
    kernel, image = new_tensor("f32", ne=(3, 2, 4, 3)), new_tensor("f32", ne=(5, 4, 3, 3))
    k, x = floats(3, 4, 2, 3, seed=1), floats(3, 3, 4, 5, seed=2)
    expected = np.zeros((3, 4, 8, 11))
    for i1 in range(4):
        for i0 in range(5):
            windows = expected[:, :, 2 * i1 : 2 * i1 + 2, 2 * i0 : 2 * i0 + 3]
            windows += np.einsum("nc,cokl->nokl", x[:, :, i1, i0], k)
    node = ops.conv_transpose_2d_p0(kernel, image, 2)
    assert np.allclose(compute(any_backend, node, {kernel: k, image: x}), expected, atol=1e-5)


def test_col2im_1d_ends_a_transposed_convolution(any_backend: aggml.Backend) -> None:
    kernel, line = new_tensor("f32", ne=(4, 3, 5)), new_tensor("f32", ne=(6, 5))
    k, x = floats(5, 3, 4, seed=3), floats(5, 6, seed=4)
    whole = compute(any_backend, ops.conv_transpose_1d(kernel, line, 3), {kernel: k, line: x})
    columns = new_tensor("f32", ne=(12, 6))
    product = np.ascontiguousarray(np.einsum("cok,ct->tok", k, x).reshape(6, 12))
    for p0 in (0, 2):
        node = ops.col2im_1d(columns, 3, 3, p0)
        cut = whole[..., p0 : whole.shape[-1] - p0]
        assert np.allclose(compute(any_backend, node, {columns: product}), cut, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda k, x: ops.conv_2d_direct(k, x, 0), InvalidArgument),
        (lambda k, x: ops.conv_2d_direct(ops.cast(k, "bf16"), x), Unsupported),
        (lambda k, x: ops.conv_transpose_1d(k, x, 1, 1), Unsupported),
        (lambda k, x: ops.conv_transpose_2d_p0(k, x, 0), InvalidArgument),
        (lambda _, x: ops.col2im_1d(ops.reshape_2d(x, 8, 24), 1, 4, 20), InvalidArgument),
    ],
)
def test_refused(call: Callable[[Tensor, Tensor], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+\] "):
        call(new_tensor("f32", ne=(3, 3, 3, 4)), new_tensor("f32", ne=(8, 8, 3, 1)))
