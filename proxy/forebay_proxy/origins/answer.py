"""What an origin's answer says: version, place of the bytes, or which error. Pure: status, headers and a piece of body in, facts out."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from forebay_proxy.errors import (
    OriginError,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.shard import ByteRange, Pin, PinKind, Version

__all__ = ["Answer", "Placement", "check_pin", "error_of", "placement", "version_of"]

REDIRECTS = frozenset({301, 302, 303, 307, 308})

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)", re.IGNORECASE | re.ASCII)
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\uffff]*"')
_CODE = re.compile(rb"<Code>([A-Za-z0-9._-]{1,64})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,300})")
_ACTUAL_SIZE = re.compile(rb"<ActualObjectSize>([0-9]{1,19})</ActualObjectSize>")
_QUERY = re.compile(r"\?\S*")  # a message may repeat the URL it was asked; its query may sign


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers (names in lower case); ``body`` is the start of an error body, at most 16 KiB, b"" for a good answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def code(self) -> str:
        """The S3 error code in an XML body ("NoSuchKey", "SlowDown"), "" if there is none."""
        found = _CODE.search(self.body)
        return found[1].decode("ascii") if found else ""

    @property
    def words(self) -> str:
        """Status, S3 code and message for a person; never a query."""
        found = _MESSAGE.search(self.body)
        message = _QUERY.sub("", html.unescape(found[1].decode("utf-8", "replace"))).strip() if found else ""
        return " ".join(part for part in (str(self.status), self.code, f"({message})" if message else "") if part)

    @property
    def is_redirect(self) -> bool:
        return self.status in REDIRECTS and "location" in self.headers


@dataclass(frozen=True, slots=True)
class Placement:
    """Which bytes of the shard a body holds: ``count`` bytes from ``first`` of ``total``; None where the origin does not say."""

    first: int
    count: int | None
    total: int | None
    ranged: bool


def content_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def placement(shard: str, answer: Answer, asked: ByteRange | None) -> Placement:
    """Check status and Content-Range of a 200 or 206 against what was asked. Raises ``OriginError`` for a lie."""
    said = answer.headers.get("content-range")
    if answer.status == 200 and (asked is None or said is None):
        length = content_length(answer.headers)
        return Placement(0, length, length, ranged=False)
    if asked is None:
        raise OriginError(shard, "the origin sent part of the shard (206) although the whole was asked for")
    # A 200 that carries a Content-Range is how `rclone serve s3` answers a range: it is taken at its word, which is checked all the same.
    found = _CONTENT_RANGE.fullmatch(said.strip()) if said is not None else None
    if found is None or found[1] is None:
        raise OriginError(shard, f"the origin answered {answer.status} to {asked.header()} with Content-Range {said!r}")
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    if first != asked.first or last < first or _beyond(last, asked.last) or _beyond(last + 1, total):
        raise OriginError(shard, f"the origin answered {asked.header()} with Content-Range {said!r}")
    length = content_length(answer.headers)
    if length is not None and length != last - first + 1:
        raise OriginError(shard, f"the origin's Content-Range {said!r} and Content-Length {length} contradict each other")
    return Placement(first, last - first + 1, total, ranged=True)


def _beyond(position: int, limit: int | None) -> bool:
    return limit is not None and position > limit


def version_of(headers: Mapping[str, str], length: int | None) -> Version:
    """Identity and pin from an answer's headers; ``length`` is the whole shard's, None if unknown."""
    etag, modified = headers.get("etag", "").strip(), headers.get("last-modified", "").strip()
    strong = _STRONG_ETAG.fullmatch(etag) is not None
    pin = Pin(PinKind.ETAG, etag) if strong else _modified(modified)
    encoding = headers.get("content-encoding", "").strip().lower()
    return Version(
        identity=_identity(headers, etag, strong, pin, length),
        pin=pin,
        length=length,
        encoding="" if encoding == "identity" else encoding,
        content_type=headers.get("content-type", "").strip(),
    )


def _modified(text: str) -> Pin:
    return Pin(PinKind.MODIFIED, text) if _http_date(text) is not None else Pin()


def _identity(headers: Mapping[str, str], etag: str, strong: bool, pin: Pin, length: int | None) -> str:
    version_id, generation = headers.get("x-amz-version-id", "null"), headers.get("x-goog-generation", "")
    if version_id != "null":  # S3 says "null" for objects written before versioning was switched on: no identity at all
        return f"s3:{version_id}"
    if generation:
        return f"gs:{generation}"
    if strong:
        return f"etag:{etag}"
    # Without a length a weak validator is too little to tell two versions apart: one second of Last-Modified holds many writes.
    if length is None:
        return ""
    if etag.startswith("W/"):
        return f"weak:{etag}:{length}"
    return f"modified:{pin.value}:{length}" if pin else ""


def check_pin(shard: str, headers: Mapping[str, str], pin: Pin) -> None:
    """Raises ``ShardChanged`` when the answer shows another version than the pin, whatever the origin made of the condition sent."""
    said = {PinKind.ETAG: "etag", PinKind.MODIFIED: "last-modified"}.get(pin.kind)
    if said is None:
        return
    now = headers.get(said, "").strip()
    if now and now != pin.value:
        raise ShardChanged(shard, f"the origin now has {said} {now}, not {pin.value}")


def error_of(
    shard: str, answer: Answer, *, asked: ByteRange | None = None, pinned: bool = False, now: Callable[[], float] = time.time
) -> ShardError:
    """The error a status other than 200 and 206 means."""
    status, words = answer.status, f"the origin answered {answer.words}"
    if status in (401, 403):
        return ShardForbidden(shard, words, status=status, next_step="check the credentials this shard is read with")
    if status in (404, 410):
        return ShardNotFound(shard, words)
    if status == 412 and pinned:
        return ShardChanged(shard, f"{words}: it no longer has the version being read")
    if status == 416:
        return RangeNotSatisfiable(shard, words, length=_length_of_416(answer, asked))
    if status in (408, 429) or status >= 500 or answer.code in ("RequestTimeout", "SlowDown"):
        throttled = status in (429, 503) or answer.code == "SlowDown"
        return OriginUnavailable(shard, words, retry_after_s=_retry_after(answer.headers, now), throttled=throttled)
    return OriginError(shard, words)


def _length_of_416(answer: Answer, asked: ByteRange | None) -> int | None:
    """Where the shard ends: from Content-Range, as S3 says it in the body, or because not even the first byte is there."""
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    if found is not None and found[3] != "*":
        return int(found[3])
    size = _ACTUAL_SIZE.search(answer.body)
    if size is not None:
        return int(size[1])
    return 0 if asked is not None and asked.first == 0 else None


def _retry_after(headers: Mapping[str, str], now: Callable[[], float]) -> float | None:
    """Seconds to wait, from a number or an HTTP date; None if absent or unreadable."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    when = _http_date(text)
    return None if when is None else max(0.0, when - now())


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
