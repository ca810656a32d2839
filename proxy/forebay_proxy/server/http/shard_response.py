"""Decides the answer to a GET or HEAD of a shard (status, headers, range) before any byte is fetched. Pure (RFC 9110, RFC 9211).

Preconditions are checked in the order of RFC 9110, section 13.2.2: If-Match, else If-Unmodified-Since; If-None-Match, else
If-Modified-Since; then Range, if If-Range allows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_proxy.core import http_range
from forebay_proxy.core.errors import RangeNotSatisfiable
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import ByteRange, SparseRange, Version
from forebay_proxy.server.http.problem import PreconditionFailed

if TYPE_CHECKING:
    from multidict import MultiMapping

    from forebay_proxy.core.http_range import RangeRequest

__all__ = ["ShardRequest", "ShardResponse", "cache_status", "decide", "joined"]

_CACHE_STATUS = {
    RequestOutcome.HIT: "forebay; hit",
    RequestOutcome.MISS: "forebay; fwd=miss; stored",
    RequestOutcome.COLLAPSED: "forebay; fwd=miss; stored; collapsed",
    RequestOutcome.PARTIAL: "forebay; fwd=partial; stored",
    RequestOutcome.BYPASS: "forebay; fwd=miss; detail=no-room",
    RequestOutcome.RELAYED: "forebay; fwd=miss; detail=sparse",
}
_SPARSE = "Forebay-Sparse"  # the client wants little of the segments around this range
_DEFAULT_TYPE = "application/octet-stream"
# An origin's HTML must never run as one of our pages: old browsers that send no Origin header pass the rules for browsers.
_INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
# Visible ASCII, space and tab. An origin's header with any other character is not passed on.
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]{1,1024}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """The conditions of a request. ``range`` is None for HEAD: RFC 9110 defines it for GET alone."""

    range: RangeRequest | None = None
    if_match: str | None = None
    if_none_match: str | None = None
    if_range: str | None = None
    if_modified_since: str | None = None
    if_unmodified_since: str | None = None

    @classmethod
    def of(cls, method: str, headers: MultiMapping[str]) -> ShardRequest:
        """Read the conditions from ``headers``. Raises ``InvalidRequest`` for a malformed Range."""
        asked = headers.get("Range") if method == "GET" else None
        return cls(
            None if asked is None else _sparsely(http_range.parse_range(asked), headers.get(_SPARSE)),
            joined(headers, "If-Match"),
            joined(headers, "If-None-Match"),
            headers.get("If-Range"),
            headers.get("If-Modified-Since"),
            headers.get("If-Unmodified-Since"),
        )

    @property
    def has_preconditions(self) -> bool:
        """Whether the answer depends on the client's own version; most requests have no such condition."""
        named = (self.if_match, self.if_none_match, self.if_modified_since, self.if_unmodified_since)
        return named != (None, None, None, None)


def _sparsely(asked: RangeRequest | None, said: str | None) -> RangeRequest | None:
    """``asked`` as a sparse range if the client says so. The header is a hint: where it makes no sense it is ignored."""
    if said != "1" or not isinstance(asked, ByteRange) or asked.last is None:
        return asked
    return SparseRange(asked.first, asked.last)


def joined(headers: MultiMapping[str], name: str) -> str | None:
    """All lines of a list field, joined into one (RFC 9110, section 5.3)."""
    lines = headers.getall(name, ())
    return ", ".join(lines) if lines else None


@dataclass(frozen=True, slots=True)
class ShardResponse:
    """``first`` and ``last`` are the bytes to send, both inclusive; ``last`` is None if the end is unknown. ``length`` counts them."""

    status: int
    headers: dict[str, str]
    first: int = 0
    last: int | None = None
    length: int | None = None

    @property
    def empty(self) -> bool:
        """Whether the answer has no body, whatever the method."""
        return self.status == 304 or self.length == 0


def decide(asked: ShardRequest, shard: str, version: Version, key: str) -> ShardResponse:
    """The answer for ``version`` of the shard named ``shard``. Raises ``PreconditionFailed`` or ``RangeNotSatisfiable``."""
    etag, modified = version.etag(key), version.modified
    headers = _common(version, etag, modified)
    if asked.has_preconditions:
        _check_unchanged(asked, shard, etag, modified)
        if not _is_news(asked, etag, modified):
            return ShardResponse(304, {name: headers[name] for name in ("ETag", "Last-Modified") if name in headers})
    if version.length is None:
        # Without a length there is no valid Content-Range. The whole body is a correct answer to any Range (RFC 9110, 14.2).
        return ShardResponse(200, headers)
    if asked.range is None or not http_range.if_range(asked.if_range, etag, modified if version.second_over else None):
        headers["Content-Length"] = str(version.length)
        return ShardResponse(200, headers, 0, version.length - 1, version.length)
    return _partial(asked.range, shard, version.length, headers)


def _check_unchanged(asked: ShardRequest, shard: str, etag: str, modified: str) -> None:
    step = f"the shard is now {etag}: read it again from its start"
    if not http_range.if_match(asked.if_match, etag):
        raise PreconditionFailed(shard, "If-Match names another version than the present one", etag=etag, next_step=step)
    if asked.if_match is None and not http_range.if_unmodified_since(asked.if_unmodified_since, modified):
        raise PreconditionFailed(shard, f"If-Unmodified-Since: it is of {modified}", etag=etag, next_step=step)


def _is_news(asked: ShardRequest, etag: str, modified: str) -> bool:
    """Whether the client does not have this version yet. If it names tags, dates do not count (RFC 9110, section 13.1.3)."""
    if asked.if_none_match is not None:
        return http_range.if_none_match(asked.if_none_match, etag)
    return http_range.if_modified_since(asked.if_modified_since, modified)


def cache_status(outcome: RequestOutcome) -> str:
    """The Cache-Status field (RFC 9211)."""
    return _CACHE_STATUS[outcome]


def _partial(asked: RangeRequest, shard: str, total: int, headers: dict[str, str]) -> ShardResponse:
    try:
        first, last = http_range.resolve(asked, total)
    except ValueError as error:
        step = f"ask for bytes between 0 and {total - 1}" if total else "the shard is empty: ask without Range"
        raise RangeNotSatisfiable(shard, f"the range lies outside its {total} bytes", length=total, next_step=step) from error
    length = last - first + 1
    headers |= {"Content-Length": str(length), "Content-Range": http_range.content_range(first, last, total)}
    return ShardResponse(206, headers, first, last, length)


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
