"""Ranges and preconditions of one request (RFC 9110, sections 8.8, 13.1 and 14): read them, compare them, no I/O. Pure.

One range is answered with 206. Several are ignored, which 14.2 allows a server, and the whole shard is sent with 200: no loader asks for
them, and a multipart answer could not be resumed. A malformed range is refused with 400 rather than ignored: the client would take
the whole body for the part it meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.core.shard import ByteRange

__all__ = [
    "RangeRequest", "Suffix", "content_range", "http_date", "if_match", "if_modified_since", "if_none_match", "if_range",
    "if_unmodified_since", "parse_range", "resolve",
]  # fmt: skip

_BEYOND = 2**63 - 1  # no file is longer, and origins keep positions in 64 bits
_RANGE = re.compile("([0-9]+)-([0-9]+)?|-([0-9]+)")  # a client may claim as many digits as it likes: they mean "to the end"
_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\U0010ffff]*"'
_TAGS = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")


@dataclass(frozen=True, slots=True)
class Suffix:
    """``bytes=-count``: the last ``count`` bytes, or all of a shorter shard."""

    count: int


RangeRequest = ByteRange | Suffix


def parse_range(header: str) -> RangeRequest | None:
    """The one range that ``header`` (a Range field) asks for.

    None: send everything, because it is of another unit than bytes (must be ignored, 14.2), or of several ranges.
    Raises ``InvalidRequest`` (400) for a malformed one. Only for GET; on HEAD a Range field has no meaning.
    """
    unit, equals, specs = header.partition("=")
    if equals and unit.strip().lower() != "bytes":
        return None
    ranges = [_one(spec.strip(" \t")) for spec in specs.split(",") if spec.strip(" \t")]
    if not ranges:
        raise _malformed()
    return ranges[0] if len(ranges) == 1 else None


def resolve(range: RangeRequest, length: int) -> tuple[int, int]:
    """First and last byte (inclusive) of ``range`` in ``length`` bytes. Raises ``ValueError`` where it is unsatisfiable (416)."""
    if isinstance(range, Suffix):
        first, last = max(0, length - range.count), length - 1
    else:
        first, last = range.first, length - 1 if range.last is None else min(range.last, length - 1)
    if first > last:
        raise ValueError(f"the range begins at byte {first} of {length}")
    return first, last


def content_range(first: int, last: int, length: int | None) -> str:
    """The Content-Range field of a 206."""
    return f"bytes {first}-{last}/{'*' if length is None else length}"


def if_match(header: str | None, etag: str | None) -> bool:
    """Whether the request may go on under If-Match; False means 412. Strong comparison; a malformed header matches nothing."""
    if header is None or header.strip() == "*":
        return True
    return etag is not None and _is_strong(etag) and etag in _tags(header)


def if_none_match(header: str | None, etag: str | None) -> bool:
    """Whether the request may go on under If-None-Match; False means 304. Weak comparison; a malformed header matches nothing."""
    if header is None:
        return True
    if header.strip() == "*":
        return False
    return etag is None or _opaque(etag) not in map(_opaque, _tags(header))


def http_date(text: str | None) -> float | None:
    """Seconds since the epoch that an HTTP-date in any of its three forms says (RFC 9110, section 5.6.7); None for no such date."""
    try:
        when = parsedate_to_datetime(text or "")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()  # the form of asctime names no zone: it is UTC
    except (ValueError, TypeError, OverflowError):
        return None


def if_modified_since(header: str | None, modified: str | None) -> bool:
    """Whether the request may go on under If-Modified-Since; False means 304. Ignored without two dates (RFC 9110, section 13.1.3)."""
    since, last = http_date(header), http_date(modified)
    return since is None or last is None or last > since


def if_unmodified_since(header: str | None, modified: str | None) -> bool:
    """Whether the request may go on under If-Unmodified-Since; False means 412. Ignored without two dates (section 13.1.4)."""
    since, last = http_date(header), http_date(modified)
    return since is None or last is None or last <= since


def if_range(header: str | None, etag: str | None, modified: str | None = None) -> bool:
    """Whether Range is to be honoured; False means the whole body. ``modified`` is given only where it is a strong validator."""
    if header is None:
        return True
    header = header.strip()
    if _tags(header):
        return header == etag and _is_strong(header)
    said = http_date(header)
    return said is not None and said == http_date(modified)


def _one(spec: str) -> RangeRequest:
    match = _RANGE.fullmatch(spec)
    if not match:
        raise _malformed()
    if match[3] is not None:
        return Suffix(_position(match[3]))
    first, last = _position(match[1]), None if match[2] is None else _position(match[2])
    if last is not None and last < first:
        raise _malformed()
    return ByteRange(first, last)


def _position(digits: str) -> int:
    """The number, or one beyond every shard's end: int() refuses thousands of digits."""
    digits = digits.lstrip("0") or "0"
    return min(int(digits), _BEYOND) if len(digits) <= 19 else _BEYOND


def _malformed() -> InvalidRequest:
    return InvalidRequest(
        "the Range header is malformed", next_step="write one range, as Range: bytes=0-1048575, bytes=1048576- or bytes=-1024"
    )


def _tags(header: str) -> list[str]:
    return re.findall(_TAG, header) if _TAGS.fullmatch(header) else []


def _is_strong(etag: str) -> bool:
    return not etag.startswith("W/")


def _opaque(etag: str) -> str:
    return etag[2:] if etag.startswith("W/") else etag
