"""Errors as ``application/problem+json`` (RFC 9457): what is wrong, with which shard, the numbers, and what to do next."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from aiohttp import web

from forebay_proxy.errors import (
    ForebayError,
    IndexNotYet,
    NoIndex,
    OriginError,
    OriginLoops,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    TruncatedShard,
    WrongBytes,
)  # fmt: skip

__all__ = [
    "SERVER",
    "Draining",
    "InternalFault",
    "MethodNotAllowed",
    "NoSuchPath",
    "PreconditionFailed",
    "answer_error",
    "describe",
    "headers_of",
    "shown",
]

SERVER = "forebay"  # of every answer; versions are nobody's business who may not ask for /v1/status
CONTENT_TYPE = "application/problem+json"
# The fetch behind a 502/503/504 has already been repeated for minutes; 2 s keeps sixty-four workers from asking again at once, and
# curl takes the longer of this and its own delay.
_RETRY_AFTER_S = 2
_RETRY_AFTER_MAX_S = 3600
_RETRY_STATUSES = frozenset({429, 502, 503, 504})


class InternalFault(ForebayError):
    """Forebay itself went wrong. What exactly is in the log, not in the answer."""


class NoSuchPath(ForebayError):
    """Neither a shard nor one of our own paths."""

    status = 404
    title = "No such path"


class MethodNotAllowed(ForebayError):
    """The path exists, the method does not. ``allow`` are the methods that do."""

    status = 405
    title = "Method not allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...], next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.allow = allow


class Draining(ForebayError):
    """The sidecar is shutting down: what is being answered ends, nothing new begins."""

    status = 503
    retryable = True
    title = "Shutting down"


class PreconditionFailed(ShardError):
    """If-Match names a version that is not the one here. ``etag`` is the one that is."""

    status = 412
    title = "Precondition failed"

    def __init__(self, shard: str, cause: str, *, etag: str, next_step: str = "") -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.etag = etag


# Where whoever raised the error knew nothing better. The first class that fits counts.
_NEXT_STEPS: dict[type[ForebayError], str] = {
    ShardNotFound: "check the URL against the origin; a 404 is remembered for 5 s",
    ShardForbidden: "check which credential travels: the request's own headers, or the sidecar's AWS settings (forebay config show)",
    NoIndex: "read it from its start; only whole, plain tars have an index",
    IndexNotYet: "read it first, or 'forebay index' its URL, and ask again",
    OriginUnavailable: "ask again: what has already been fetched is kept; GET /v1/status shows how the origin does",
    ShardChanged: "read the shard again from its start: it is another version now",
    TruncatedShard: "ask again; if it stays, the origin cuts this shard off or promises a wrong length",
    WrongBytes: "read the shard again from its start: the segment is fetched anew; if it happens again, look at the disk",
    OriginLoops: "look at the upstream proxy and the URL: following them leads back to a sidecar",
    OriginError: "ask the origin for the same URL with curl -v: it answers something no cache can keep",
}


def shown(shard: str) -> str:
    """A shard's name as people and logs may see it: without an http query, which may hold what we do not recognise as a secret."""
    if shard.startswith(("http:", "https:")):
        return shard.partition("?")[0]
    return shard


def describe(error: ForebayError) -> dict[str, object]:
    """The members of the problem document. ``type`` is a stable name made from the class; the rest is for people and for numbers."""
    document: dict[str, object] = {
        "type": f"urn:forebay:problem:{_kebab(_public_name(type(error)))}",
        "title": error.title,
        "status": error.status,
        "detail": _detail(error),
        "retryable": error.retryable,
    }
    if step := error.next_step or next((text for kind, text in _NEXT_STEPS.items() if isinstance(error, kind)), ""):
        document["next_step"] = step
    if isinstance(error, ShardError):
        document["shard"] = shown(error.shard)
    if isinstance(error, RangeNotSatisfiable) and error.length is not None:
        document["length_bytes"] = error.length
    if isinstance(error, PreconditionFailed):
        document["etag"] = error.etag
    return document


def headers_of(error: ForebayError) -> dict[str, str]:
    """The header fields that belong to the status: Allow, Content-Range, Retry-After."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.allow)
    if isinstance(error, RangeNotSatisfiable) and error.length is not None:
        headers["Content-Range"] = f"bytes */{error.length}"
    if error.status in _RETRY_STATUSES:
        headers["Retry-After"] = str(_retry_after_s(error))
    return headers


def answer_error(error: ForebayError, *, extra: Mapping[str, str] | None = None) -> web.Response:
    """The whole response for ``error``."""
    body = json.dumps(describe(error)).encode() + b"\n"  # ASCII: surrogates of odd bytes in a URL come out as \\udcXX
    return web.Response(status=error.status, body=body, headers={**headers_of(error), **(extra or {})}, content_type=CONTENT_TYPE)


def _detail(error: ForebayError) -> str:
    """The message, with a shard's name shown as ``shown`` allows."""
    if isinstance(error, ShardError):
        return f"shard {shown(error.shard)}: {error.cause}"
    return str(error)


def _retry_after_s(error: ForebayError) -> int:
    wish = error.retry_after_s if isinstance(error, OriginUnavailable) else None
    return _RETRY_AFTER_S if wish is None else max(1, min(_RETRY_AFTER_MAX_S, math.ceil(wish)))


def _public_name(kind: type) -> str:
    """The name of the first class that others know: a module's own kinds of an error are not part of what is promised."""
    return next(known.__name__ for known in kind.__mro__ if not known.__name__.startswith("_"))


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
