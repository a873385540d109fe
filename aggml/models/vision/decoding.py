"""Files of pictures to pixels, by Pillow, within bounds.

A small file can stand for a picture of billions of pixels. So the size is read first, and a picture
of too many pixels is refused before any of them is computed. Not here: arrays, data URLs
(given.py).
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml import InvalidArgument
from aggml.models.errors import ModelError
from aggml.process.extras import install_command

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MOST_PIXELS", "decode_picture", "shape_problem"]

MOST_PIXELS: Final = 1 << 26  # of one picture: 8192 x 8192
LONGEST_SIDE: Final = 1 << 15
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def shape_problem(width: int, height: int) -> str | None:
    """Why a picture of this size is refused; None: it is not."""
    if width < 1 or height < 1:
        return f"has {width} x {height} pixels, there must be at least one"
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        return (
            f"has {width} x {height} pixels, at most {MOST_PIXELS} are taken, and at most "
            f"{LONGEST_SIDE} on a side: make it smaller"
        )
    return None


def decode_picture(name: str, data: bytes) -> npt.NDArray[np.uint8]:
    """The pixels of a file's bytes, (height, width, 3); of several pictures the first.

    Transparency is dropped. The picture is turned as its file says it was taken. Call it in a
    thread.

    Args:
        name: of the argument, with the call, for errors.
        data: of PNG, JPEG, WebP, GIF, BMP, TIFF or PPM.

    Raises:
        ModelError: Pillow is not installed.
        InvalidArgument: the bytes are no such picture, or it has too many pixels.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ModelError(
            f"pictures in files need Pillow; get it with: {install_command('vision')}"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own bound, which is higher
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                problem = shape_problem(*image.size)
                if problem is None:
                    return np.array(ImageOps.exif_transpose(image).convert("RGB"), np.uint8)
    except UnidentifiedImageError as error:  # its message has an address
        raise InvalidArgument(
            f"{name} is no picture that can be read ({len(data)} bytes that begin with "
            f"{data[:8]!r}): expected {', '.join(FORMATS)}"
        ) from error
    except Exception as error:  # of any class: what a decoder raises for wrong bytes
        raise InvalidArgument(
            f"{name} is no picture that can be read ({len(data)} bytes): {error}"
        ) from error
    raise InvalidArgument(f"{name} {problem}")
