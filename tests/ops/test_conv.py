"""im2col and the convolutions made of it: a gradient, permuted images, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, LayoutMismatch, Tensor, Unsupported, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    import aggml


@pytest.mark.parametrize("plane", [True, False], ids=["2d", "1d"])
def test_im2col_back_is_the_transpose_of_im2col(plane: bool, any_backend: aggml.Backend) -> None:
    """Both are linear, so <im2col(x), g> = <x, im2col_back(g)> for all x and g."""
    kernel = new_tensor("f32", ne=(3, 2, 3) if plane else (3, 4))
    image = new_tensor("f32", ne=(7, 6, 3, 2) if plane else (7, 4, 2))
    window = (2, 1, 1, 2, 1, 2, plane)
    rows = ops.im2col(kernel, image, *window, "f32")
    gradient = new_tensor("f32", ne=rows.ne)
    back = ops.im2col_back(gradient, kernel, list(image.ne), *window)
    x, g = floats(*image.shape, seed=1), floats(*gradient.shape, seed=2)
    forwards = compute(any_backend, rows, {kernel: np.zeros(kernel.shape, np.float32), image: x})
    backwards = compute(
        any_backend, back, {kernel: np.zeros(kernel.shape, np.float32), gradient: g}
    )
    assert np.vdot(forwards.ravel(), g.ravel()) == pytest.approx(
        np.vdot(x.ravel(), backwards.ravel()), rel=1e-5
    )


def test_conv_2d_of_a_permuted_image(any_backend: aggml.Backend) -> None:
    kernel, image = new_tensor("f32", ne=(3, 3, 4, 5)), new_tensor("f32", ne=(4, 9, 8, 2))
    node = ops.conv_2d(kernel, ops.permute(image, 2, 0, 1, 3), 1, 1, 1, 1)
    direct = ops.conv_2d_direct(kernel, ops.permute(image, 2, 0, 1, 3), 1, 1, 1, 1)
    k, x = floats(*kernel.shape, seed=3), floats(*image.shape, seed=4)
    expected = _convolved(k, x.transpose(0, 3, 1, 2))
    for built in (node, direct):
        assert np.allclose(compute(any_backend, built, {kernel: k, image: x}), expected, atol=1e-4)


def _convolved(kernel: NDArray[Any], image: NDArray[Any]) -> NDArray[np.float64]:
    """Stride 1, padding 1, kernel 3 x 3; shapes [OC, IC, 3, 3] and [N, IC, H, W]."""
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    result: NDArray[np.float64] = np.einsum("oikl,nihwkl->nohw", kernel.astype(np.float64), windows)
    return result


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda k, x: ops.im2col(k, x, 0), InvalidArgument),
        (lambda k, x: ops.im2col(k, x, p0=-1), InvalidArgument),
        (lambda k, x: ops.im2col(k, x, d1=0), InvalidArgument),
        (lambda k, x: ops.im2col(k, x, d0=9), InvalidArgument),
        (lambda k, x: ops.im2col(k, x, dst_type="q8_0"), Unsupported),
        (lambda k, x: ops.im2col(k, x, is_2D=False), LayoutMismatch),
        (lambda k, x: ops.im2col_back(x, k, [8, 8, 3, 1]), LayoutMismatch),
        (lambda k, x: ops.im2col_back(x, k, [8, 8]), InvalidArgument),
        (lambda k, x: ops.im2col_3d(k, x, 3), LayoutMismatch),
        (lambda k, x: ops.conv_2d(k, ops.cast(x, "bf16")), Unsupported),
        (lambda k, x: ops.conv_2d_dw(k, x), LayoutMismatch),
        (lambda _, x: ops.conv_2d_dw(new_tensor("f32", ne=(3, 3, 1, 3)), x), Unsupported),
    ],
)
def test_refused(call: Callable[[Tensor, Tensor], Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+"):
        call(new_tensor("f32", ne=(3, 3, 3, 4)), new_tensor("f32", ne=(8, 8, 3, 1)))
