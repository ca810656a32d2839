"""Digests of the whole shard in an origin's answer: which headers name one, and which only look as if they did. Pure.

Stored bytes are what the origin sent, its Content-Encoding included, so a digest is of use when it is over the *encoded, whole* body:

- ``Repr-Digest`` (RFC 9530): of the representation as it is encoded, whole on a 206 too. (``Content-Digest`` is of the part on a 206, and
  ``Digest`` is obsolete because nobody agreed on which of the two it was.)
- ``Content-MD5`` (RFC 1864): of the body it comes with; on a 206 some servers mean the part and some the whole, so a 200 only.
- ``x-goog-hash``: of the stored object, whole on a 206 too; not where Google decompresses on the way, and then it says how it is stored.
- ``x-amz-checksum-*``: of the stored object on a 200 or a HEAD. Not on a 206, where S3 names that part's sum if any; not a composite one
  (``sum-N``, or x-amz-checksum-type), which is a sum of the parts' sums.
- ``x-ms-blob-content-md5``: of the stored blob, whole on a 206 (where Azure's Content-MD5 is of the part).
- ``X-Linked-Etag`` of 64 hex digits: the SHA-256 of the file, where the Hugging Face hub redirects to it (``linked``).

An ETag is no digest, however much it looks like an MD5: of a multipart upload it is a sum of sums, with SSE-KMS or SSE-C it is no sum at
all, other servers put an inode and a date there, and nothing in the answer tells these cases apart.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping

from forebay_proxy.core.digests import SIZES, Digest

__all__ = ["HEADERS", "linked", "offered"]

# A structured-field dictionary (RFC 8941) whose values are byte sequences; anything else in it is not ours to read.
_MEMBER = re.compile(r"\s*([a-z*][a-z0-9_.*-]{0,31})\s*=\s*:([A-Za-z0-9+/=]{0,128}):\s*(?:;[^,]*)?")
_REPR_NAMES = {"sha-256": "sha-256", "sha-512": "sha-512"}  # RFC 9530 calls the others insecure: not believed
_AMZ_NAMES = {"crc32": "crc32", "crc32c": "crc32c", "crc64nvme": "crc64nvme", "sha1": "sha-1", "sha256": "sha-256"}
# An answer without any of these names no digest.
HEADERS = frozenset({
    "repr-digest", "x-goog-hash", "x-ms-blob-content-md5", "content-md5", *(f"x-amz-checksum-{name}" for name in _AMZ_NAMES),
})  # fmt: skip
_SHA256_HEX = re.compile(r'"?([0-9a-fA-F]{64})"?')


def offered(headers: Mapping[str, str], *, whole: bool, length: int | None = None) -> tuple[Digest, ...]:
    """Every digest of the whole shard that ``headers`` (names in lower case) carry.

    ``whole``: they came with the whole body or a HEAD, not with a 206. ``length``: of the shard, if known.
    """
    found = [*_of_rfc9530(headers), *_of_google(headers, length), *_base64("md5", headers.get("x-ms-blob-content-md5", ""))]
    if whole:
        found += [*_of_amazon(headers), *_base64("md5", headers.get("content-md5", ""))]
    return tuple(dict.fromkeys(found))


def linked(etag: str, encoding: str = "") -> tuple[Digest, ...]:
    """What an ``X-Linked-Etag`` says of the file it is about; nothing where the body comes encoded, or it is a git hash."""
    found = _SHA256_HEX.fullmatch(etag.strip().removeprefix("W/"))
    plain = encoding.strip().lower() in ("", "identity")
    return (Digest("sha-256", bytes.fromhex(found[1])),) if found and plain else ()


def _of_rfc9530(headers: Mapping[str, str]) -> Iterator[Digest]:
    text = headers.get("repr-digest", "")
    members: dict[str, str] = {}
    for part in text.split(","):
        member = _MEMBER.fullmatch(part)
        if member is not None:
            members[member[1]] = member[2]  # of two with one name the last counts (RFC 8941)
    for name, algorithm in _REPR_NAMES.items():
        yield from _base64(algorithm, members.get(name, ""))


def _of_google(headers: Mapping[str, str], length: int | None) -> Iterator[Digest]:
    stored_as = headers.get("x-goog-stored-content-encoding", "identity").strip().lower()
    sent_as = headers.get("content-encoding", "identity").strip().lower()
    stored_length = headers.get("x-goog-stored-content-length", "").strip()
    if stored_as != sent_as or (length is not None and stored_length not in ("", str(length))):
        return  # decompressed on the way: the hash is of bytes we do not see
    for part in headers.get("x-goog-hash", "").split(","):
        name, _, value = part.strip().partition("=")
        if name in ("crc32c", "md5"):
            yield from _base64(name, value)


def _of_amazon(headers: Mapping[str, str]) -> Iterator[Digest]:
    if headers.get("x-amz-checksum-type", "FULL_OBJECT").strip().upper() != "FULL_OBJECT":
        return
    for name, algorithm in _AMZ_NAMES.items():
        yield from _base64(algorithm, headers.get(f"x-amz-checksum-{name}", ""))  # `sum-N` is no base64


def _base64(algorithm: str, text: str) -> Iterator[Digest]:
    try:
        value = binascii.a2b_base64(text.strip().encode("ascii"), strict_mode=True)
    except ValueError:
        return
    if len(value) == SIZES[algorithm]:
        yield Digest(algorithm, value)
