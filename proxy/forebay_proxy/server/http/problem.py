"""Answers in JSON. An error becomes ``application/problem+json`` (RFC 9457): what is wrong, with which shard, and what to do next."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

from aiohttp import web

from forebay_proxy.core.errors import ForebayError, OriginUnavailable, RangeNotSatisfiable, ShardError
from forebay_proxy.core.shard import shown

__all__ = [
    "JSON_HEADERS", "SERVER", "Draining", "InternalFault", "MethodNotAllowed", "NoSuchPath", "PreconditionFailed", "answer_error",
    "answer_json", "describe", "headers_of", "in_words", "json_line",
]  # fmt: skip

SERVER = "forebay"  # in every answer; the version is only for clients that may read /v1/status
CONTENT_TYPE = "application/problem+json"
JSON_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# Before a 502, 503 or 504 the fetch has been repeated for minutes. 2 s keeps sixty-four workers from asking again at once. curl takes the
# longer of this and its own delay.
_RETRY_AFTER_S = 2
_RETRY_AFTER_MAX_S = 3600
_RETRY_STATUSES = frozenset({429, 502, 503, 504})


class InternalFault(ForebayError):
    """A fault in Forebay itself. The log has the details, the answer has not."""


class NoSuchPath(ForebayError):
    """The path is neither a shard nor a route."""

    status = 404
    title = "No such path"


class MethodNotAllowed(ForebayError):
    """The path exists, but not for this method. ``allow`` names the methods it takes."""

    status = 405
    title = "Method not allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...], next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.allow = allow

    @classmethod
    def of(cls, path: str, method: str, taken: Iterable[str]) -> MethodNotAllowed:
        """The error for ``path``, which takes the methods ``taken``."""
        taken = tuple(taken)
        allow = (*taken, "HEAD") if "GET" in taken else taken
        return cls(f"{path[:200]} does not take {method}", allow=allow, next_step=f"use {' or '.join(taken)}")


class Draining(ForebayError):
    """The sidecar is shutting down: running answers may end, no new one begins."""

    status = 503
    retryable = True
    title = "Shutting down"


class PreconditionFailed(ShardError):
    """If-Match names another version than the present one. ``etag`` is the present one."""

    status = 412
    title = "Precondition failed"

    def __init__(self, shard: str, cause: str, *, etag: str, next_step: str = "") -> None:
        super().__init__(shard, cause, next_step=next_step)
        self.etag = etag


def describe(error: ForebayError) -> dict[str, object]:
    """The members of the problem document. ``type`` is a stable name made from the class."""
    # The first public class: a module's private subclasses are not part of the promised names.
    public = next(known.__name__ for known in type(error).__mro__ if not known.__name__.startswith("_"))
    document: dict[str, object] = {
        "type": f"urn:forebay:problem:{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', public).lower()}",
        "title": error.title,
        "status": error.status,
        "detail": in_words(error),
        "retryable": error.retryable and not (isinstance(error, OriginUnavailable) and error.hopeless),
    }
    if error.step:
        document["next_step"] = error.step
    if isinstance(error, ShardError):
        document["shard"] = shown(error.shard)
    if isinstance(error, RangeNotSatisfiable) and error.length is not None:
        document["length_bytes"] = error.length
    if isinstance(error, PreconditionFailed):
        document["etag"] = error.etag
    return document


def headers_of(error: ForebayError) -> dict[str, str]:
    """The header fields that go with the status: Allow, Content-Range, Retry-After."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.allow)
    if isinstance(error, RangeNotSatisfiable) and error.length is not None:
        headers["Content-Range"] = f"bytes */{error.length}"
    if error.status in _RETRY_STATUSES:
        wish = error.retry_after_s if isinstance(error, OriginUnavailable) else None
        headers["Retry-After"] = str(_RETRY_AFTER_S if wish is None else max(1, min(_RETRY_AFTER_MAX_S, math.ceil(wish))))
    return headers


def answer_error(error: ForebayError, *, extra: Mapping[str, str] | None = None) -> web.Response:
    """The whole response for ``error``."""
    body = json.dumps(describe(error)).encode() + b"\n"  # ASCII: surrogates of odd bytes in a URL come out as \\udcXX
    return web.Response(status=error.status, body=body, headers={**headers_of(error), **(extra or {})}, content_type=CONTENT_TYPE)


def answer_json(value: object) -> web.Response:
    """``value`` as a line of JSON that must not be cached."""
    return web.Response(body=json_line(value), headers=JSON_HEADERS)


def json_line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def in_words(error: ForebayError) -> str:
    """The error's message, with the shard's name as ``shown`` gives it (without secrets)."""
    if isinstance(error, ShardError):
        return f"shard {shown(error.shard)}: {error.cause}"
    return str(error)
