"""Bodies that are compressed, have a byte order mark or another charset; bombs and damaged ones.

Not here: the fields of a body (test_fields.py), its size as such (test_ends.py).
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve.support import GREEDY, serving

from aggml.models.small import write_small
from aggml.serve.http.bodies import _decompress, json_of
from aggml.serve.http.schema import RequestError
from aggml.serve.http.streams import LARGEST, TooLargeError

if TYPE_CHECKING:
    from pathlib import Path

GIVEN: dict[str, Any] = {"prompt": "Grüße 天", "max_tokens": 4, **GREEDY}
BODY = json.dumps(GIVEN, ensure_ascii=False)


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


RAW = BODY.encode()
TAKEN: list[tuple[bytes, dict[str, str]]] = [
    (gzip.compress(RAW), {"content-encoding": "gzip"}),
    (gzip.compress(RAW), {"content-encoding": "x-gzip"}),
    (gzip.compress(RAW), {"content-encoding": " GZIP "}),
    (gzip.compress(RAW[:9]) + gzip.compress(RAW[9:]), {"content-encoding": "gzip"}),
    (gzip.compress(RAW) + bytes(7), {"content-encoding": "gzip"}),
    (zlib.compress(RAW), {"content-encoding": "deflate"}),
    (bare(RAW), {"content-encoding": "deflate"}),
    (gzip.compress(zlib.compress(RAW)), {"content-encoding": "deflate, gzip"}),
    (RAW, {"content-encoding": "identity"}),
    (RAW, {"content-encoding": ""}),
    (b"\xef\xbb\xbf" + RAW, {}),
    (gzip.compress(b"\xef\xbb\xbf" + RAW), {"content-encoding": "gzip"}),
    (BODY.encode("utf-16"), {}),
    (b"\xfe\xff" + BODY.encode("utf-16-be"), {}),
    (BODY.encode("utf-32"), {}),
    (BODY.encode("utf-16-le"), {"content-type": "application/json; charset=utf-16le"}),
    (RAW, {"content-type": "application/json; charset=UTF-8"}),
    (RAW, {"content-type": 'application/json; charset="utf-8"'}),
    (RAW, {"content-type": "application/x-www-form-urlencoded"}),
    (RAW, {"content-type": "text/plain"}),
]


async def test_bodies_are_read_in_every_form_that_clients_send(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        wanted = (await client.post("/v1/completions", json=GIVEN)).json()["choices"]
        for data, headers in TAKEN:
            answer = await client.post("/v1/completions", content=data, headers=headers)
            assert (answer.status_code, headers) == (200, headers), answer.text
            assert answer.json()["choices"] == wanted
        latin = json.dumps(GIVEN | {"prompt": "Grüße"}, ensure_ascii=False)
        wanted = (await client.post("/v1/completions", content=latin.encode())).json()["choices"]
        headers = {"content-type": "application/json; charset=ISO-8859-1"}
        answer = await client.post(
            "/v1/completions", content=latin.encode("latin-1"), headers=headers
        )
        assert answer.json()["choices"] == wanted


REFUSED: list[tuple[bytes, dict[str, str], int, str]] = [
    (RAW, {"content-encoding": "gzip"}, 400, "no gzip"),
    (RAW, {"content-encoding": "deflate"}, 400, "no deflate"),
    (b"", {"content-encoding": "gzip"}, 400, "end is missing"),
    (gzip.compress(RAW)[:-1], {"content-encoding": "gzip"}, 400, "end is missing"),
    (gzip.compress(RAW)[:20], {"content-encoding": "gzip"}, 400, "end is missing"),
    (gzip.compress(RAW) + b"rest", {"content-encoding": "gzip"}, 400, "no gzip"),
    (zlib.compress(RAW), {"content-encoding": "gzip"}, 400, "no gzip"),
    (gzip.compress(RAW), {}, 400, "cannot be read as a JSON object"),
    (RAW, {"content-encoding": "br"}, 415, "'br'"),
    (RAW, {"content-encoding": "zstd"}, 415, "one of: gzip, deflate"),
    (RAW, {"content-encoding": "gzip, compress"}, 415, "'compress'"),
    (RAW, {"content-encoding": "gzip, gzip, gzip"}, 415, "encoded 3 times"),
    (RAW, {"content-type": "application/json; charset=klingon"}, 415, "'klingon'"),
    (RAW, {"content-type": "application/json; charset=utf-7"}, 415, "'utf-7'"),
    (RAW, {"content-type": "application/json; charset=base64"}, 415, "'base64'"),
    (RAW, {"content-type": "application/json; charset=\0"}, 415, "charset"),
    (RAW[:-1], {"content-type": "application/json; charset=utf-16"}, 400, "no text in utf-16"),
    (b"\xff\xfea", {}, 400, "no text in utf-16-le"),
    (b"\xef\xbb\xbf", {}, 400, "cannot be read as a JSON object"),
    (b"", {}, 400, "cannot be read as a JSON object"),
    (gzip.compress(bytes(LARGEST + 1)), {"content-encoding": "gzip"}, 413, "decompressed"),
    (gzip.compress(bytes(20 << 20)), {"content-encoding": "gzip"}, 413, "decompressed"),
    (
        gzip.compress(gzip.compress(bytes(17 << 20))),
        {"content-encoding": "gzip, gzip"},
        413,
        "more",
    ),
    (gzip.compress(b"") * 30000, {"content-encoding": "gzip"}, 400, "members"),
]


async def test_other_bodies_are_refused_with_the_reason(file: Path) -> None:
    async with serving(models=[file]) as (_, client):
        for path in ("completions", "chat/completions"):
            for data, headers, status, reason in REFUSED:
                answer = await client.post(f"/v1/{path}", content=data, headers=headers)
                assert answer.status_code == status, (headers, answer.text)
                error = answer.json()["error"]
                assert reason in error["message"], error
                assert error["type"] == "invalid_request_error"
                if status == 415:
                    assert answer.headers["accept-encoding"] == "gzip, deflate"
        assert (await client.post("/v1/completions", json=GIVEN)).status_code == 200


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate"]), st.data())
def test_a_damaged_body_is_refused_or_decompressed_as_zlib_does(
    data: bytes, encoding: str, more: st.DataObject
) -> None:
    packed = bytearray(gzip.compress(data) if encoding == "gzip" else zlib.compress(data))
    assert _decompress(bytes(packed), encoding, 1000) == data
    at = more.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= more.draw(st.integers(0, 255))
    try:
        found = _decompress(bytes(packed), encoding, 1000)
    except (RequestError, TooLargeError):
        return
    bits = 31 if encoding == "gzip" else 15
    try:
        assert found == zlib.decompress(packed, bits)
    except zlib.error:
        assert encoding == "deflate"  # without a header
        assert found == zlib.decompress(packed, -15)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=50), st.sampled_from(["utf-8-sig", "utf-16", "utf-32"]))
def test_a_byte_order_mark_says_which_unicode_it_is(text: str, charset: str) -> None:
    wanted = text.encode(errors="replace")
    assert json_of(wanted.decode().encode(charset)) == wanted
