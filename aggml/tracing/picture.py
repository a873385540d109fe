"""Picture: rectangles and small capitals on white, written as PNG.

Here: enough to draw a timeline where no drawing package is installed. Not here: what is drawn
(timeline.py).
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.process.paths import user_path

if TYPE_CHECKING:
    import os

__all__ = ["Picture"]

# Five rows of three dots, each row an octal digit.
_SIGNS: Final = (
    "0 75557|1 26227|2 71747|3 71717|4 55711|5 74717|6 74757|7 71111|8 75757|9 75717|A 25755|"
    "B 65656|C 74447|D 65556|E 74747|F 74744|G 74557|H 55755|I 72227|J 11157|K 55655|L 44447|"
    "M 57755|N 65555|O 75557|P 75744|Q 75571|R 75655|S 34216|T 72222|U 55557|V 55552|W 55775|"
    "X 55255|Y 55222|Z 71247|. 00002|: 02020|- 00700|_ 00007|( 12221|) 42224|/ 11244|, 00024|"
    "+ 02720|= 07070"
)
_GLYPHS: Final = {entry[0]: entry[2:] for entry in _SIGNS.split("|")}
GLYPH_WIDTH: Final = 4
GLYPH_HEIGHT: Final = 5


class Picture:
    """An array of pixels, white at first; drawing outside of it is cut off."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height, width, 3), 255, np.uint8)

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle, at least a pixel wide; ``colour`` is "#rrggbb"."""
        x0, y0 = max(round(x), 0), max(round(y), 0)
        x1 = max(round(x + width), x0 + 1)
        self.pixels[y0 : max(round(y + height), 0), x0:x1] = _rgb(colour)

    def text(
        self, x: float, y: float, text: str, *, scale: int = 2, colour: str = "#222222"
    ) -> int:
        """Write capitals from (x, y) to the right; returns their width. Unknown signs are gaps."""
        for i, sign in enumerate(text.upper()):
            for row, dots in enumerate(_GLYPHS.get(sign, "00000")):
                for column in range(3):
                    if int(dots) & 4 >> column:
                        left = x + (i * GLYPH_WIDTH + column) * scale
                        self.rect(left, y + row * scale, scale, scale, colour)
        return len(text) * GLYPH_WIDTH * scale

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an 8-bit RGB PNG."""
        height, width, _ = self.pixels.shape
        rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, none
        rows[:, 1:] = self.pixels.reshape(height, -1)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
        user_path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*c) for c in chunks))


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
