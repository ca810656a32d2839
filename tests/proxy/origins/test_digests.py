"""Which headers of an origin name a digest of the whole shard, and which only look as if they did."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest

from forebay_proxy.core.digests import Digest
from forebay_proxy.origins.digests import HEADERS, linked, offered

DATA = b"all of the shard"


def b64(name: str) -> str:
    return base64.b64encode(hashlib.new(name, DATA).digest()).decode()


def digest(algorithm: str, name: str = "") -> Digest:
    return Digest(algorithm, hashlib.new(name or algorithm.replace("-", ""), DATA).digest())


SHA256, SHA512, MD5 = digest("sha-256"), digest("sha-512"), digest("md5")
CRC32 = Digest("crc32", zlib.crc32(DATA).to_bytes(4, "big"))
CRC32_TEXT = base64.b64encode(CRC32.value).decode()


@pytest.mark.parametrize(
    ("headers", "whole", "found"),
    [
        ({}, True, ()),
        ({"repr-digest": f"sha-256=:{b64('sha256')}:"}, False, (SHA256,)),
        ({"repr-digest": f"sha-256=:{b64('sha256')}:"}, True, (SHA256,)),
        ({"repr-digest": f" sha-512=:{b64('sha512')}: ,sha-256=:{b64('sha256')}:;x=1"}, True, (SHA256, SHA512)),
        ({"repr-digest": f"sha-256=:{b64('md5')}:, sha-256=:{b64('sha256')}:"}, True, (SHA256,)),
        ({"repr-digest": f"sha-256={b64('sha256')}"}, True, ()),  # no byte sequence
        ({"repr-digest": f"md5=:{b64('md5')}:, sha=:{b64('sha1')}:, adler=:AAAAAA==:"}, True, ()),
        ({"repr-digest": f"sha-256=:{b64('md5')}:"}, True, ()),
        ({"content-digest": f"sha-256=:{b64('sha256')}:", "digest": f"sha-256={b64('sha256')}"}, True, ()),
        ({"content-md5": b64("md5")}, True, (MD5,)),
        ({"content-md5": b64("md5")}, False, ()),
        ({"content-md5": hashlib.md5(DATA).hexdigest()}, True, ()),
        ({"content-md5": b64("md5") + "!"}, True, ()),
        ({"x-ms-blob-content-md5": b64("md5"), "content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}, False, (MD5,)),
        ({"x-goog-hash": f"crc32c={CRC32_TEXT}, md5={b64('md5')}"}, False, (Digest("crc32c", CRC32.value), MD5)),
        ({"x-goog-hash": f"crc32c={CRC32_TEXT}"}, True, (Digest("crc32c", CRC32.value),)),
        ({"x-amz-checksum-crc32": CRC32_TEXT}, True, (CRC32,)),
        ({"x-amz-checksum-crc32": CRC32_TEXT, "x-amz-checksum-type": "FULL_OBJECT"}, True, (CRC32,)),
        ({"x-amz-checksum-crc32": CRC32_TEXT, "x-amz-checksum-type": "COMPOSITE"}, True, ()),
        ({"x-amz-checksum-sha256": f"{b64('sha256')}-3"}, True, ()),
        ({"x-amz-checksum-crc32": CRC32_TEXT}, False, ()),  # of the part
        ({"x-amz-checksum-sha1": b64("sha1"), "x-amz-checksum-sha256": b64("sha256")}, True, (digest("sha-1"), SHA256)),
        ({"etag": f'"{hashlib.md5(DATA).hexdigest()}"'}, True, ()),
    ],
)
def test_what_is_offered(headers: dict[str, str], whole: bool, found: tuple[Digest, ...]) -> None:
    """Header by header; an answer without any of HEADERS is not looked at."""
    assert offered(headers, whole=whole) == found
    assert not found or not HEADERS.isdisjoint(headers)


@pytest.mark.parametrize(("how", "counts"), [
    ({"x-goog-stored-content-encoding": "identity"}, True), ({"x-goog-stored-content-encoding": "gzip", "content-encoding": "gzip"}, True),
    ({"x-goog-stored-content-encoding": "gzip"}, False), ({"x-goog-stored-content-length": "16"}, True),
    ({"x-goog-stored-content-length": "9"}, False),
])  # fmt: skip
def test_google_decompressing_on_the_way(how: dict[str, str], counts: bool) -> None:
    """Its hash is of what is stored: of no use where something else is sent."""
    assert bool(offered({"x-goog-hash": f"md5={b64('md5')}", **how}, whole=True, length=16)) is counts


@pytest.mark.parametrize("name", ["repr-digest", "content-md5"])
def test_an_encoded_body_is_digested_as_it_is_sent(name: str) -> None:
    """We store what was sent, Content-Encoding included, and so do these headers count."""
    value = f"sha-256=:{b64('sha256')}:" if name == "repr-digest" else b64("md5")
    assert offered({name: value, "content-encoding": "gzip"}, whole=True)


@pytest.mark.parametrize(
    ("etag", "encoding", "found"),
    [
        (SHA256.value.hex(), "", True),
        (f'"{SHA256.value.hex()}"', "identity", True),
        (SHA256.value.hex().upper(), "", True),
        (f'W/"{SHA256.value.hex()}"', "", True),
        (SHA256.value.hex(), "gzip", False),  # it is of the file, not of what comes
        ("5d41402abc4b2a76b9719d911017c592", "", False),
        ("a" * 40, "", False),  # a git blob
        ("", "", False),
        ("g" * 64, "", False),
    ],
)
def test_what_a_hub_says(etag: str, encoding: str, found: bool) -> None:
    """64 hex digits are the SHA-256 of a large file; anything else is not."""
    assert linked(etag, encoding) == ((SHA256,) if found else ())
