"""The body of a request: received within limits, decompressed, and as JSON in UTF-8.

Here: Content-Encoding, byte order marks, charsets. Not here: the fields of a body (fields.py),
forms with a recording (speech.py).
"""

from __future__ import annotations

import codecs
import zlib
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from aggml.serve.http.schema import RequestError
from aggml.serve.http.streams import LARGEST, TooLargeError, body_of

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["ENCODINGS", "json_of", "read_body", "read_json"]

SMALL: Final = 1 << 10  # compressed bytes that the event loop decompresses; a thread does more
LAYERS: Final = 2  # encodings of one body, one upon the other
MEMBERS: Final = 64  # of one body: a file of gzip may have several, one after the other
ENCODINGS: Final = ("gzip", "deflate")

# Marks at the beginning of a text; that of UTF-32 begins like that of UTF-16.
MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
CHARSETS: Final = frozenset(
    {"utf-8", "ascii", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
     "iso8859-1", "iso8859-15", "cp1252"}
)  # fmt: skip


async def read_body(request: Request, most: int = LARGEST, seconds: float = 60.0) -> bytes:
    """The body of a request, decompressed if the header Content-Encoding says so.

    Args:
        request: its body has not been read.
        most: bytes of the body, before and after it is decompressed.
        seconds: in which the next part of it must come.

    Raises:
        TooLargeError: the body has more than ``most`` bytes.
        RequestError: an encoding is unknown (415); the body is not what its header says (400).
        SlowError: the next part of the body did not come in time.
        HungUpError: the client went before the body was complete.
    """
    layers = _layers(request)
    body = await body_of(request, most, seconds)
    for layer in reversed(layers):
        if len(body) > SMALL:
            body = await anyio.to_thread.run_sync(_decompress, body, layer, most)
        else:
            body = _decompress(body, layer, most)
    return body


async def read_json(request: Request, most: int = LARGEST, seconds: float = 60.0) -> bytes:
    """The body of a request as JSON in UTF-8, without a byte order mark.

    Raises:
        TooLargeError, SlowError, RequestError, HungUpError: as `read_body` and `json_of`.
    """
    return json_of(await read_body(request, most, seconds), request.headers.get("content-type", ""))


def _layers(request: Request) -> list[str]:
    """The encodings of a body, in the order in which they were applied.

    Raises:
        RequestError: one is unknown, or there are too many.
    """
    headers = ",".join(request.headers.getlist("content-encoding")).lower()
    names = [name.strip().removeprefix("x-") for name in headers.split(",")]
    layers = [name for name in names if name not in ("", "identity")]
    unknown = [name for name in layers if name not in ENCODINGS]
    if unknown:
        raise RequestError(
            415, f"the body has the content-encoding {unknown[0][:64]!r}; send it as it is, or in "
            f"one of: {', '.join(ENCODINGS)}",
        )  # fmt: skip
    if len(layers) > LAYERS:
        raise RequestError(415, f"the body is encoded {len(layers)} times, the most is {LAYERS}")
    return layers


def _decompress(data: bytes, encoding: str, most: int) -> bytes:
    """A body without one of its encodings.

    Raises:
        TooLargeError: it would have more than ``most`` bytes; no more than these are made.
        RequestError: it has another encoding, is damaged or incomplete.
    """
    # As browsers and other servers do, `deflate` is taken with and without the header of zlib.
    bare = encoding == "deflate" and not (len(data) > 1 and data[0] & 15 == 8
                                          and (data[0] << 8 | data[1]) % 31 == 0)  # fmt: skip
    bits = -zlib.MAX_WBITS if bare else zlib.MAX_WBITS + 16 * (encoding == "gzip")
    found = bytearray()
    try:
        for _ in range(MEMBERS):
            inflate = zlib.decompressobj(bits)
            found += inflate.decompress(data, most + 1 - len(found))
            if len(found) > most:
                raise TooLargeError(f"the body has more than {most} bytes when it is decompressed")
            if not inflate.eof:
                raise RequestError(400, f"the body is no complete {encoding}: its end is missing")
            data = inflate.unused_data
            if not data.strip(b"\0"):
                return bytes(found)
        raise RequestError(400, f"the body has more than {MEMBERS} members of {encoding}")
    except zlib.error as error:
        raise RequestError(
            400, f"the body is no {encoding}, as its content-encoding says: {error}"
        ) from error


def json_of(body: bytes, content_type: str = "") -> bytes:
    """JSON as UTF-8 without a byte order mark.

    A byte order mark says in which form of Unicode a body is; else the charset of the header
    Content-Type; else it is UTF-8.

    Raises:
        RequestError: the charset is unknown (415); the body is no such text (400).
    """
    charset = _charset(content_type)
    for mark, name in MARKS:
        if body.startswith(mark):
            body, charset = body[len(mark) :], name
            break
    if charset in ("utf-8", "ascii"):
        return body
    try:
        return body.decode(charset).encode()
    except UnicodeError as error:
        raise RequestError(400, f"the body is no text in {charset}: {error}") from error


def _charset(content_type: str) -> str:
    """The charset of a header, by Python's name."""
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() != "charset":
            continue
        given = value.strip().strip("\"'")
        found = _known_charset(given)
        if found is None:
            raise RequestError(415, f"the body has the charset {given[:64]!r}; send it as utf-8")
        return found
    return "utf-8"


def _known_charset(charset: str) -> str | None:
    try:
        found = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return None
    return found if found in CHARSETS else None
