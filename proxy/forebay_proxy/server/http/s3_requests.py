"""Translates requests of S3 clients (``endpoint_url=http://127.0.0.1:7070/s3``) into shard requests, and errors into S3's XML.

The path is the same: bucket and key. A query parameter or header that an SDK adds for S3 itself (a signature for our host, a call id)
does not change the bytes and is dropped. Forebay offers GetObject and HeadObject; it refuses all other operations in XML, which is
all that an SDK understands.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from aiohttp import web

from forebay_proxy.core.errors import ForebayError, OriginUnavailable, RangeNotSatisfiable, ShardNotFound
from forebay_proxy.server.http.problem import MethodNotAllowed, PreconditionFailed, describe, headers_of
from forebay_proxy.wire.urls.shard_url import S3_OPTIONS

__all__ = ["NotOffered", "answer_in_xml", "object_target", "speaks_s3"]

_HEADERS = ("x-amz-", "amz-sdk-")  # every AWS SDK sends one of these, signed or not
_SCHEMES = ("aws4-", "aws ")  # of Authorization: signature versions 4 and 2
_SIGNATURES = frozenset({"awsaccesskeyid", "signature", "expires"})  # version 2 in a query; the names of version 4 begin with x-amz-
_CALLS = frozenset({"x-id"})  # the operation's name, which newer SDKs repeat
_LISTING = frozenset({"list-type", "location", "versions", "uploads", "delete", "prefix", "delimiter"})
_PAYER = "x-amz-request-payer"
_READS = "Forebay reads objects and does nothing else: GetObject and HeadObject"


class NotOffered(ForebayError):
    """An S3 operation that a read-only cache does not offer."""

    status = 501
    title = "Not implemented"


def speaks_s3(raw_target: str, headers: Mapping[str, str]) -> bool:
    """Whether a program that expects S3's answers sent this request for ``/s3``."""
    path, _, query = raw_target.partition("?")
    if path[1:].partition("/")[0].lower() != "s3":
        return False
    if headers.get("Authorization", "").lower().startswith(_SCHEMES) or any(name.lower().startswith(_HEADERS) for name in headers):
        return True
    return any(_is_the_sdks(name) or name in _LISTING for name in _names(query))


def object_target(raw_target: str, headers: Mapping[str, str]) -> str:
    """The shard target for an S3 client's request. Raises ``NotOffered`` unless it asks for an object's bytes."""
    path, _, query = raw_target.partition("?")
    bucket, _, key = path[1:].partition("/")[2].partition("/")
    if not key:
        what = f"the bucket {bucket}" if bucket else "buckets"
        step = "name every object; list them at the store itself"
        raise NotOffered(f"an operation on {what}, such as a listing: {_READS}", next_step=step)
    kept = [part for part in query.split("&") if part and not _is_the_sdks(part.partition("=")[0])]
    for part in kept:
        name = part.partition("=")[0]
        if name not in S3_OPTIONS:
            raise NotOffered(f"the parameter {name[:40]!r} of an object: {_READS}", next_step="ask the store itself for that")
    if headers.get(_PAYER, "").lower() == "requester" and "requester_pays" not in _names(query):
        kept.append("requester_pays=1")
    return path + ("?" + "&".join(kept) if kept else "")


def answer_in_xml(error: ForebayError) -> web.Response:
    """The whole response for ``error``."""
    said = describe(error)
    message = ". ".join(str(said[part]) for part in ("detail", "next_step") if part in said)
    length = error.length if isinstance(error, RangeNotSatisfiable) else None
    size = "" if length is None else f"<ActualObjectSize>{length}</ActualObjectSize>"
    error_text = f"<Error><Code>{_code(error)}</Code><Message>{_text(message)}</Message>{size}</Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{error_text}'.encode("ascii", "xmlcharrefreplace")
    return web.Response(status=error.status, body=body, headers=headers_of(error), content_type="application/xml")


def _code(error: ForebayError) -> str:
    """S3's code for ``error``. An SDK chooses its exception by it, and whether to retry."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return _BY_STATUS.get(error.status, "InternalError")


_CODES: dict[type[ForebayError], str] = {
    NotOffered: "NotImplemented",
    MethodNotAllowed: "MethodNotAllowed",
    PreconditionFailed: "PreconditionFailed",
    RangeNotSatisfiable: "InvalidRange",
    ShardNotFound: "NoSuchKey",
    OriginUnavailable: "ServiceUnavailable",
}
_BY_STATUS = {400: "InvalidRequest", 401: "AccessDenied", 403: "AccessDenied", 404: "NoSuchKey", 429: "SlowDown", 503: "ServiceUnavailable"}


def _names(query: str) -> list[str]:
    return [part.partition("=")[0] for part in query.split("&") if part]


def _is_the_sdks(name: str) -> bool:
    name = name.lower()
    return name.startswith("x-amz-") or name in _SIGNATURES or name in _CALLS


def _text(value: str) -> str:
    """``value`` as XML text. Characters that XML cannot hold (controls, lone surrogates) become question marks."""
    return escape("".join(letter if letter >= " " and not "\ud800" <= letter <= "\udfff" else "?" for letter in value))
