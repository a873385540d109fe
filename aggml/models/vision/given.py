"""Pictures as programs and clients give them: arrays, bytes of files, data URLs, base64.

Here: checks at the call, which need no Pillow. Addresses are never fetched: a model that reads what
a message names would let anybody who writes messages look into the network. Not here: decoding
(decoding.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml import InvalidArgument, Unsupported
from aggml.models.arguments import is_text, show
from aggml.models.vision.decoding import decode_picture, shape_problem

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["GivenPicture", "is_picture", "picture_of", "picture_of_part", "rgb_of"]

WANTED: Final = (
    "uint8 [height, width, 3], the bytes of a file, or a text 'data:image/png;base64,...'"
)
_DATA: Final = re.compile(r"data:(?P<type>[^,]*?)(?P<base64>;base64)?,", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
DETAILS: Final = ("auto", "low", "high")
LARGEST: Final = 1 << 26  # bytes of a file


@dataclass(frozen=True, slots=True, eq=False)
class GivenPicture:
    """A picture that was checked as far as that is possible without decoding.

    Attributes:
        name: of the argument, with the call, for errors.
        digest: of its pixels or of its file's bytes: equal digests mean equal pictures.
        pixels: (height, width, 3); None: they have to be decoded.
        data: bytes of a file; None: there are pixels.
    """

    name: str
    digest: bytes
    pixels: npt.NDArray[np.uint8] | None
    data: bytes | None

    def decode(self) -> npt.NDArray[np.uint8]:
        """Its pixels, (height, width, 3). Call it in a thread.

        Raises:
            ModelError: Pillow is not installed.
            InvalidArgument: the bytes are no picture, or it has too many pixels.
        """
        if self.pixels is not None:
            return self.pixels
        assert self.data is not None
        return decode_picture(self.name, self.data)


def is_picture(value: object) -> bool:
    """Whether a value is meant as a picture: an array that is no list of ids, or bytes."""
    if isinstance(value, (bytes, bytearray, memoryview, GivenPicture)):
        return True
    return isinstance(value, np.ndarray) and value.ndim != 1


def rgb_of(place: str, name: str, value: Any) -> GivenPicture:  # noqa: ANN401 whatever was given
    """A picture of an array, which is copied.

    Raises:
        InvalidArgument: another type, shape or size.
    """
    if not isinstance(value, np.ndarray):
        raise InvalidArgument(
            f"[{place}] {name} is {show(value)}, expected an array uint8 [height, width, 3]"
        )
    if value.dtype != np.uint8:
        raise InvalidArgument(
            f"[{place}] {name} is an array of {value.dtype}, expected uint8 [height, width, 3] "
            "with values from 0 to 255"
        )
    if value.ndim != 3 or value.shape[2] != 3:
        raise InvalidArgument(
            f"[{place}] {name} has the shape {list(value.shape)}, expected uint8 [height, width, 3]"
        )
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidArgument(
            f"[{place}] {name} is a masked array, of which some values are masked, expected uint8 "
            "[height, width, 3]"
        )
    problem = shape_problem(value.shape[1], value.shape[0])
    if problem is not None:
        raise InvalidArgument(f"[{place}] {name} {problem}")
    pixels = np.array(value, order="C")
    pixels.flags.writeable = False
    about = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=32)
    about.update(pixels.data.cast("B"))
    return GivenPicture(f"[{place}] {name}", about.digest(), pixels, None)


def picture_of(place: str, name: str, value: Any) -> GivenPicture:  # noqa: ANN401 whatever was given
    """A picture of an array, of a file's bytes, of a data URL or of base64.

    Raises:
        InvalidArgument: it is none of these, or has another shape or size.
        Unsupported: it is an address.
    """
    if isinstance(value, GivenPicture):
        return value
    if isinstance(value, np.ndarray):
        return rgb_of(place, name, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_file(place, name, bytes(value))
    if not isinstance(value, str):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected {WANTED}")
    found = _DATA.match(value)
    if found is not None:
        if found["base64"] is None:
            raise InvalidArgument(
                f"[{place}] {name} is a data URL without ';base64', expected {WANTED}"
            )
        kind = found["type"].split(";")[0].strip().lower()
        if kind and not kind.startswith("image/"):
            raise InvalidArgument(f"[{place}] {name} is data of the type {kind!r}, no picture")
        return _of_file(place, name, _decode_url(place, name, value[found.end() :]))
    if _ADDRESS.match(value):
        raise Unsupported(
            f"[{place}] {name} is the address {show(value)}: addresses are never fetched; give "
            "the picture itself, as 'data:image/png;base64,...'"
        )
    if not _BASE64.fullmatch(value):
        raise InvalidArgument(f"[{place}] {name} is {show(value)}, expected {WANTED}")
    return _of_file(place, name, _decode_url(place, name, value))


def picture_of_part(place: str, name: str, part: Mapping[str, Any]) -> GivenPicture:
    """The picture of a part of a message.

    It is {"type": "image_url", "image_url": {"url": ...}}, where the inner dict may be left out; or
    {"type": "image", "image": ...}; or, as Anthropic's clients write it, {"type": "image",
    "source": {"type": "base64", "media_type": ..., "data": ...}}.

    Raises:
        InvalidArgument, Unsupported: as `picture_of`.
    """
    if is_text(part.get("type"), "image_url"):
        _only(place, name, part, ("type", "image_url"))
        given = part.get("image_url")
        if isinstance(given, Mapping):
            _only(place, f"{name}.image_url", given, ("url", "detail"))
            # All details are seen; the field is what OpenAI's clients send.
            detail = given.get("detail")
            if detail is not None and not is_text(detail, *DETAILS):
                raise InvalidArgument(
                    f"[{place}] {name}.image_url.detail is {show(detail)}, expected one of "
                    f"{', '.join(map(repr, DETAILS))}"
                )
            return picture_of(place, f"{name}.image_url.url", given.get("url"))
        return picture_of(place, f"{name}.image_url", given)
    if "source" not in part:
        _only(place, name, part, ("type", "image"))
        return picture_of(place, f"{name}.image", part.get("image"))
    _only(place, name, part, ("type", "source", "cache_control"))
    cached = part.get("cache_control")  # what was computed is kept anyway
    if cached is not None and not isinstance(cached, Mapping):
        raise InvalidArgument(
            f"[{place}] {name}.cache_control is {show(cached)}, expected an object"
        )
    source = part["source"]
    if not isinstance(source, Mapping):
        raise InvalidArgument(f"[{place}] {name}.source is {show(source)}, expected an object")
    if is_text(source.get("type"), "url"):
        raise Unsupported(
            f"[{place}] {name}.source is the address {show(source.get('url'))}: addresses are "
            "never fetched; give the picture itself, as {'type': 'base64', 'data': ...}"
        )
    if not is_text(source.get("type"), "base64"):
        raise InvalidArgument(
            f"[{place}] {name}.source.type is {show(source.get('type'))}, expected 'base64'"
        )
    _only(place, f"{name}.source", source, ("type", "media_type", "data"))
    kind = source.get("media_type")
    if kind is not None and not (isinstance(kind, str) and kind.lower().startswith("image/")):
        raise InvalidArgument(
            f"[{place}] {name}.source.media_type is {show(kind)}, expected 'image/png' or another "
            "type of pictures"
        )
    data = source.get("data")
    if not isinstance(data, str):
        raise InvalidArgument(f"[{place}] {name}.source.data is {show(data)}, expected base64")
    return _of_file(place, f"{name}.source.data", _decode_url(place, f"{name}.source.data", data))


def _only(place: str, name: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in given:
        if key not in keys:
            raise InvalidArgument(
                f"[{place}] {name} has the key {show(key)}, expected {', '.join(keys)}"
            )


def _decode_url(place: str, name: str, text: str) -> bytes:
    if len(text) > LARGEST * 4 // 3 + 4:
        raise InvalidArgument(
            f"[{place}] {name} has {len(text)} characters of base64, at most {LARGEST} bytes are "
            "taken"
        )
    plain = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"[{place}] {name} is no base64: {show(text)}") from None


def _of_file(place: str, name: str, data: bytes) -> GivenPicture:
    if not data:
        raise InvalidArgument(f"[{place}] {name} is empty, expected {WANTED}")
    if len(data) > LARGEST:
        raise InvalidArgument(
            f"[{place}] {name} has {len(data)} bytes, at most {LARGEST} are taken"
        )
    digest = hashlib.blake2b(b"file" + data, digest_size=32).digest()
    return GivenPicture(f"[{place}] {name}", digest, None, data)
