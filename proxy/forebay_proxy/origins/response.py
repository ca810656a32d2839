"""What an origin's answer says: version, place of the bytes, or which error. Pure: status, headers and a piece of body in, facts out."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from forebay_proxy.core.errors import (
    OriginError,
    OriginLied,
    OriginLoops,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.http_range import http_date
from forebay_proxy.core.segments import MOST_BYTES
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, Version
from forebay_proxy.origins.cloud import az

__all__ = [
    "OriginResponse",
    "Placement",
    "check_length",
    "check_pin",
    "error_of",
    "next_step_of",
    "parse_content_range",
    "parse_unsatisfied_range",
    "placement",
    "vary_of",
    "version_of",
]


_ANY = "check the credentials this shard is read with"
_GS = (
    "check that the sidecar's Google account may read the object; where there is none, run 'gcloud auth application-default login' "
    "or set GOOGLE_APPLICATION_CREDENTIALS for it"
)


def next_step_of(shard: str, code: str, headers: Mapping[str, str], body: bytes) -> str:
    """The next step after a 401 or 403 to ``shard`` (a name) with this error code; headers in lower case."""
    if shard.startswith("s3://"):
        return _s3(shard)
    if shard.startswith("gs://"):
        return _GS
    if shard.startswith("hf://"):
        return _hf(code)
    return az.next_step_of(code, headers, body) or (_ended(body) or _ANY)


def _s3(shard: str) -> str:
    if "unsigned=1" in shard.rpartition("?")[2]:
        return "unsigned=1 asks without credentials: leave it out to use the sidecar's"
    return "check what the sidecar's AWS credentials may read; a public bucket may want ?unsigned=1"


def _hf(code: str) -> str:
    if code == "GatedRepo":
        return "accept the repository's conditions on its page, with the account whose token the sidecar has (HF_TOKEN)"
    return "check the repository's name; a private or gated one needs a token: HF_TOKEN, or 'hf auth login', for the sidecar"


def _ended(body: bytes) -> str:
    """A presigned URL of S3 or GCS that is over."""
    over = b"Request has expired" in body or b"<Code>ExpiredToken</Code>" in body
    return "the URL's signature has ended: sign a new one and start again with the new URLs" if over else ""


REDIRECTS = frozenset({301, 302, 303, 307, 308})

_DIGITS = "[0-9]{1,19}"  # an origin that claims more is wrong
_CONTENT_RANGE = re.compile(rf"bytes ({_DIGITS})-({_DIGITS})/({_DIGITS}|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(rf"bytes \*/({_DIGITS})", re.IGNORECASE)
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\uffff]+"')
_NOTHING = ('""', 'W/""')  # the same for all versions: as good as none
# Bytes that are no UTF-8, as the HTTP client hands them to us. It cannot send them again, and an If-Match in other bytes matches nothing.
_UNSENDABLE = re.compile("[\ud800-\udfff]")
_CODE = re.compile(rb"<Code>([A-Za-z0-9._-]{1,64})</Code>")
_CODE_HEADERS = ("x-ms-error-code", "x-error-code")
_CODE_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_MESSAGE = re.compile(rb"<Message>([^<]{1,300})")
_ACTUAL_SIZE = re.compile(rb"<ActualObjectSize>([0-9]{1,19})</ActualObjectSize>")
# The codes by which S3 and stores that speak like it ask for fewer requests, whatever the status (botocore retries the same).
_TOO_MANY = frozenset({
    "SlowDown", "SlowDownRead", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
    "RequestLimitExceeded", "TooManyRequestsException", "BandwidthLimitExceeded", "ServerBusy",
})  # fmt: skip
_COME_BACK = _TOO_MANY | {"RequestTimeout", "RequestTimeoutException", "InternalError"}
_SPENT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})", re.ASCII)  # `"resolvers";r=0;t=55`, as the Hugging Face hub says it
# A message may repeat what it was asked with, URL and credential included: only plain prose is passed on, words of small letters.
_PROSE = re.compile(r"(?:[A-Z]?[a-z']{0,15}|[A-Z]{2,4})(?:[ ,.:;()-]+(?:[A-Z]?[a-z']{1,15}|[A-Z]{2,4}|[aAI]))*[.!]?", re.ASCII)


@dataclass(frozen=True, slots=True)
class OriginResponse:
    """Status and headers (names in lower case); ``body`` is the start of an error body, at most 16 KiB, b"" for a good answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def code(self) -> str:
        """The error code in an XML body ("NoSuchKey", "SlowDown") or in a header of Azure's or a hub's; "" if there is none."""
        found = _CODE.search(self.body)
        if found is not None:
            return found[1].decode("ascii")
        said = next((self.headers[name] for name in _CODE_HEADERS if name in self.headers), "")
        return said if _CODE_WORD.fullmatch(said) else ""

    @property
    def words(self) -> str:
        """Status, S3 code and message for a person; nothing that may be a secret sent back to us."""
        found = _MESSAGE.search(self.body)
        message = html.unescape(found[1].decode("utf-8", "replace")).strip() if found else ""
        message = message if _PROSE.fullmatch(message) else ""
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
    return int(text[:40]) if text.isascii() and text.isdigit() else None  # so many digits are beyond every bound


def check_length(shard: str, length: int | None) -> None:
    """Raises ``OriginError`` for a length beyond what a shard may have here: it would be memory before it is bytes."""
    if length is not None and length > MOST_BYTES:
        cause = f"the origin says that it has {length} bytes; at most {MOST_BYTES} (32 TiB) are taken for a shard's length"
        raise OriginError(
            shard, cause, next_step="compare the object's size at the origin (curl -I); a data set is read in shards of gigabytes"
        )


def placement(shard: str, answer: OriginResponse, asked: ByteRange | None) -> Placement:
    """Check status and Content-Range of a 200 or 206 against what was asked.

    Raises ``OriginLied``, and ``OriginError`` for a length that no shard may have here.
    """
    said = answer.headers.get("content-range")
    if answer.status == 200 and (asked is None or said is None):
        length = content_length(answer.headers)
        check_length(shard, length)
        return Placement(0, length, length, ranged=False)
    if asked is None:
        raise OriginLied(shard, "the origin sent part of the shard (206) although the whole was asked for")
    # A 200 that carries a Content-Range is how `rclone serve s3` answers a range: it is taken at its word, which is checked all the same.
    answered = f"the origin answered {answer.status} to {asked.header()} with Content-Range {said!r}"
    try:
        first, last, total = parse_content_range(said or "")
    except ValueError as error:
        raise OriginLied(shard, answered) from error
    if first != asked.first or (asked.last is not None and last > asked.last):
        raise OriginLied(shard, answered)
    length = content_length(answer.headers)
    if length is not None and length != last - first + 1:
        raise OriginLied(shard, f"the origin's Content-Range {said!r} and Content-Length {length} contradict each other")
    check_length(shard, total if total is not None else last + 1)
    return Placement(first, last - first + 1, total, ranged=True)


def parse_content_range(text: str) -> tuple[int, int, int | None]:
    """First and last byte, and the length of the whole (None for ``*``), of a 206. Raises ``ValueError``."""
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if not match:
        raise ValueError("Content-Range is not 'bytes first-last/length'")
    first, last, length = int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])
    if first > last or (length is not None and last >= length):
        raise ValueError("Content-Range contradicts itself")
    return first, last, length


def parse_unsatisfied_range(text: str) -> int:
    """The length in a 416 (``bytes */length``). Raises ``ValueError``."""
    match = _UNSATISFIED.fullmatch(text.strip())
    if not match:
        raise ValueError("Content-Range is not 'bytes */length'")
    return int(match[1])


def version_of(headers: Mapping[str, str], length: int | None) -> Version:
    """Identity and pin from an answer's headers; ``length`` is the whole shard's, None if unknown."""
    etag, modified = headers.get("etag", "").strip(), headers.get("last-modified", "").strip()
    etag = "" if etag in _NOTHING else etag
    strong = _STRONG_ETAG.fullmatch(etag) is not None
    last = http_date(modified) if modified else None  # seconds since the epoch
    date = Pin() if last is None else Pin(PinKind.MODIFIED, modified)
    pin = Pin(PinKind.ETAG, etag) if strong and not _UNSENDABLE.search(etag) else date
    encoding = headers.get("content-encoding", "").strip().lower()
    return Version(
        identity=_identity(headers, etag, strong, pin, length),
        pin=pin,
        length=length,
        encoding="" if encoding == "identity" else encoding,
        content_type=headers.get("content-type", "").strip(),
        modified=date.value,
        second_over=last is not None and _is_over(last, headers.get("date", "")),
        vary=vary_of(headers),
    )


def vary_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The request headers, in lower case, that an answer was chosen by."""
    return tuple(name.strip().lower() for name in headers.get("vary", "").split(",") if name.strip())


def _is_over(second: float, date: str) -> bool:
    """Whether the second of the last change had passed when it was told, by the origin's own clock: one second holds many writes."""
    now = http_date(date)
    return now is not None and now >= second + 1


def _identity(headers: Mapping[str, str], etag: str, strong: bool, pin: Pin, length: int | None) -> str:
    version_id, generation = headers.get("x-amz-version-id", "").strip(), headers.get("x-goog-generation", "").strip()
    if version_id not in ("", "null"):  # S3 says "null" for objects written before versioning was switched on: no identity at all
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
    shard: str, answer: OriginResponse, *, asked: ByteRange | None = None, pinned: bool = False, now: Callable[[], float] = time.time
) -> ShardError:
    """The error a status other than 200 and 206 means."""
    status, words = answer.status, f"the origin answered {answer.words}"
    if status in (401, 403):
        return ShardForbidden(shard, words, status=status, next_step=next_step_of(shard, answer.code, answer.headers, answer.body))
    if status in (404, 410):
        return ShardNotFound(shard, words)
    if status == 412 and pinned:
        return ShardChanged(shard, f"{words}: it no longer has the version being read")
    if status == 416:
        return RangeNotSatisfiable(shard, words, length=_length_of_416(answer, asked))
    if status in (408, 429) or (status >= 500 and status != 508) or answer.code in _COME_BACK:
        throttled = status in (429, 503, 509) or answer.code in _TOO_MANY
        return OriginUnavailable(shard, words, retry_after_s=_retry_after(answer.headers, now), throttled=throttled, answered=True)
    return _loops(shard, words) if status == 508 else OriginError(shard, words)


def _loops(shard: str, words: str) -> OriginLoops:
    step = "let the web server or proxy on the way point to the origin, not to Forebay"
    return OriginLoops(shard, f"{words}: the way to the origin leads back to a Forebay", next_step=step)


def _length_of_416(answer: OriginResponse, asked: ByteRange | None) -> int | None:
    """Where the shard ends: from Content-Range, as S3 says it in the body, or because not even the first byte is there."""
    with suppress(ValueError):
        return parse_unsatisfied_range(answer.headers.get("content-range", ""))
    size = _ACTUAL_SIZE.search(answer.body)
    if size is not None:
        return int(size[1])
    return 0 if asked is not None and asked.first == 0 else None


def _retry_after(headers: Mapping[str, str], now: Callable[[], float]) -> float | None:
    """Seconds to wait, from a number, an HTTP date, or a RateLimit header that says nothing is left; None if absent or unreadable."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    when = http_date(text)
    if when is not None:
        return max(0.0, when - now())
    spent = _SPENT.search(headers.get("ratelimit", ""))
    return float(spent[1]) if spent is not None else None
