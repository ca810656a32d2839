"""What a GET or HEAD of a shard is answered, before any byte is fetched for it: status, header, range. Pure (RFC 9110, 9211).

Preconditions are looked at in the order of RFC 9110, section 13.2.2: If-Match, If-None-Match, then Range under If-Range.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_proxy import http_range
from forebay_proxy.errors import RangeNotSatisfiable
from forebay_proxy.events import Outcome
from forebay_proxy.problem import PreconditionFailed
from forebay_proxy.shard import PinKind, Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay_proxy.http_range import RangeRequest

__all__ = ["Answer", "Asked", "cache_status", "decide"]

_CACHE_STATUS = {
    Outcome.HIT: "forebay; hit",
    Outcome.MISS: "forebay; fwd=miss; stored",
    Outcome.COLLAPSED: "forebay; fwd=miss; stored; collapsed",
    Outcome.PARTIAL: "forebay; fwd=partial; stored",
    Outcome.BYPASS: "forebay; fwd=miss; detail=no-room",
}
_DEFAULT_TYPE = "application/octet-stream"
# An origin's page must never run as one of ours: an old browser that says nothing of itself gets past the rules for browsers.
_INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
# Visible ASCII, space and tab: an origin's header that holds anything else is not passed on.
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]{1,1024}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Asked:
    """The conditions of a request. ``range`` is None for HEAD: RFC 9110 defines it for GET alone."""

    range: RangeRequest | None = None
    if_match: str | None = None
    if_none_match: str | None = None
    if_range: str | None = None

    @classmethod
    def of(cls, method: str, headers: Mapping[str, str]) -> Asked:
        """Raises ``InvalidRequest`` for a malformed Range."""
        return cls(
            http_range.parse_range(headers.get("Range") if method == "GET" else None),
            headers.get("If-Match"),
            headers.get("If-None-Match"),
            headers.get("If-Range"),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """``first`` and ``last`` are the bytes to send, both inclusive; ``last`` None: to an end not known yet. ``length`` counts them."""

    status: int
    headers: dict[str, str]
    first: int = 0
    last: int | None = None
    length: int | None = None

    @property
    def empty(self) -> bool:
        """Whether no body follows, whatever the method."""
        return self.status == 304 or self.length == 0


def decide(asked: Asked, shard: str, version: Version, key: str) -> Answer:
    """The answer for ``version`` of the shard named ``shard``. Raises ``PreconditionFailed`` or ``RangeNotSatisfiable``."""
    etag = version.etag(key)
    modified = version.pin.value if version.pin.kind is PinKind.MODIFIED else ""
    headers = _common(version, etag, modified)
    if not http_range.if_match(asked.if_match, etag):
        step = f"the shard is now {etag}: read it again from its start"
        raise PreconditionFailed(shard, "If-Match names another version than the present one", etag=etag, next_step=step)
    if not http_range.if_none_match(asked.if_none_match, etag):
        return Answer(304, {name: headers[name] for name in ("ETag", "Last-Modified") if name in headers})
    if version.length is None:
        # Without a length there is no true Content-Range; the whole body is a correct answer to any Range (RFC 9110, 14.2).
        return Answer(200, headers)
    if asked.range is None or not http_range.if_range(asked.if_range, etag, modified):
        headers["Content-Length"] = str(version.length)
        return Answer(200, headers, 0, version.length - 1, version.length)
    return _partial(asked.range, shard, version.length, headers)


def cache_status(outcome: Outcome) -> str:
    """The Cache-Status field (RFC 9211)."""
    return _CACHE_STATUS[outcome]


def _partial(asked: RangeRequest, shard: str, total: int, headers: dict[str, str]) -> Answer:
    try:
        first, last = http_range.resolve(asked, total)
    except ValueError as error:
        step = f"ask for bytes between 0 and {total - 1}" if total else "the shard is empty: ask without Range"
        raise RangeNotSatisfiable(shard, f"the range lies outside its {total} bytes", length=total, next_step=step) from error
    length = last - first + 1
    headers |= {"Content-Length": str(length), "Content-Range": http_range.content_range(first, last, total)}
    return Answer(206, headers, first, last, length)


def _common(version: Version, etag: str, modified: str) -> dict[str, str]:
    found = {
        "ETag": etag,
        "Last-Modified": modified,
        "Content-Encoding": version.encoding,
        "Accept-Ranges": "none" if version.length is None else "bytes",
    }
    headers = {name: value for name, value in found.items() if _FIELD_VALUE.fullmatch(value)}
    headers["Content-Type"] = version.content_type if _FIELD_VALUE.fullmatch(version.content_type) else _DEFAULT_TYPE
    return headers | _INERT
