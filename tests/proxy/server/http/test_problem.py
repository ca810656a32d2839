"""Errors as problem documents."""

from __future__ import annotations

import json

import pytest

from forebay_proxy.core import errors
from forebay_proxy.core.errors import (
    ForebayError,
    InvalidRequest,
    OriginError,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardError,
    ShardNotFound,
)
from forebay_proxy.core.shard import shown
from forebay_proxy.server.http.problem import MethodNotAllowed, PreconditionFailed, answer_error, describe, headers_of

SHARD = "s3://b/0.tar"


def test_the_document_names_shard_cause_and_next_step() -> None:
    """The members of RFC 9457, and ours; a reader can tell a change from its own mistake."""
    assert describe(ShardNotFound(SHARD, "the origin answered 404", next_step="look again")) == {
        "type": "urn:forebay:problem:shard-not-found", "title": "Shard not found", "status": 404,
        "detail": "shard s3://b/0.tar: the origin answered 404", "retryable": False, "next_step": "look again", "shard": SHARD,
    }  # fmt: skip
    assert describe(PreconditionFailed(SHARD, "another", etag='"v2"'))["etag"] == '"v2"'
    assert describe(ForebayError("x"))["status"] == 500


def test_a_kind_that_only_one_module_knows_goes_by_the_public_one() -> None:
    """``type`` is a promise; the classes by which origins are told apart inside are none."""

    class _NoConnection(OriginUnavailable):
        """As ``origins.failures`` has it."""

    assert describe(_NoConnection(SHARD, "no such host"))["type"] == "urn:forebay:problem:origin-unavailable"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, ShardError) and name != "ShardError"
    ],
)
def test_every_shard_error_that_reaches_a_client_can_say_what_to_do(name: str) -> None:
    """Whoever raises it says so, or there is a general word; those of the client's own making always carry their own."""
    extra = {"RangeNotSatisfiable": {"length": 5}, "DigestDiffers": {"again": True}}.get(name, {})
    document = describe(getattr(errors, name)(SHARD, "cause", **extra))
    assert document["status"] in {400, 403, 404, 409, 416, 502, 503, 504, 508}
    assert "next_step" in document or name in {"InvalidShard", "OriginRefused", "RangeNotSatisfiable"}


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        *(
            (OriginUnavailable(SHARD, "503", retry_after_s=wish), "Retry-After", seconds)
            for wish, seconds in ((None, "2"), (0.0, "1"), (2.1, "3"), (1e9, "3600"))  # the origin's own wish, within reason
        ),
        (OriginError(SHARD, "nonsense"), "Retry-After", "2"),
        (ShardNotFound(SHARD, "404"), "Retry-After", None),
        (RangeNotSatisfiable(SHARD, "beyond", length=7), "Content-Range", "bytes */7"),
        (RangeNotSatisfiable(SHARD, "beyond", length=None), "Content-Range", None),
        (MethodNotAllowed("no", allow=("GET", "HEAD")), "Allow", "GET, HEAD"),
    ],
)
def test_headers_say_what_the_status_wants(error: ForebayError, name: str, value: str | None) -> None:
    """RFC 9110: when to come again, how long the shard is, which methods there are."""
    assert headers_of(error).get(name) == value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("https://h/p.tar?token=secret", "https://h/p.tar"),
        ("http://h/p.tar?token=secret", "http://h/p.tar"),
        ("s3://b/0.tar?endpoint=http%3A%2F%2Fceph", "s3://b/0.tar?endpoint=http%3A%2F%2Fceph"),
    ],
)
def test_a_query_of_http_is_not_shown(name: str, expected: str) -> None:
    """It may be a secret nobody recognises; the options of s3 are ours and help."""
    assert shown(name) == expected
    assert "secret" not in json.dumps(describe(ShardNotFound(name, "404")))


def test_odd_bytes_of_a_request_survive_into_the_answer() -> None:
    """A surrogate from a byte that is no UTF-8 must not break the answer about it."""
    response = answer_error(InvalidRequest("bad \udcff byte"))
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["detail"] == "bad \udcff byte"
    assert response.content_type == "application/problem+json"
