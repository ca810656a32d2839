"""Which requests are an S3 client's, what they ask for, and how it is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from forebay_proxy.core.errors import (
    ConfigError,
    ForebayError,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.server.http.problem import MethodNotAllowed, PreconditionFailed
from forebay_proxy.server.http.s3_requests import NotOffered, answer_in_xml, object_target, speaks_s3

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20261122/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"}


@pytest.mark.parametrize(("target", "headers", "speaks"), [
    ("/s3/b/k.tar", SIGNED, True), ("/s3/b/k.tar", {"authorization": "AWS AKIA:sig"}, True),
    ("/s3/b/k.tar", {"X-Amz-Date": "20261122T000000Z"}, True), ("/s3/b/k.tar", {"amz-sdk-invocation-id": "1"}, True),
    ("/s3/b/k.tar?X-Amz-Signature=00", {}, True), ("/s3/b?list-type=2", {}, True), ("/s3", SIGNED, True), ("/s3/b/k.tar", {}, False),
    ("/s3/b/k.tar?region=eu-west-1", {"Authorization": "Bearer x"}, False), ("/https/h/k.tar", SIGNED, False),
    ("/http/s3/k.tar?X-Amz-Signature=00", SIGNED, False), ("/", SIGNED, False),
])  # fmt: skip
def test_who_speaks_s3(target: str, headers: dict[str, str], speaks: bool) -> None:
    """A signature or a header of AWS's, for a path below /s3; curl and the loader do not."""
    assert speaks_s3(target, CIMultiDict(headers)) is speaks


@pytest.mark.parametrize(
    ("target", "headers", "asked"),
    [
        ("/s3/b/a%20b//c%2F", {}, "/s3/b/a%20b//c%2F"),
        ("/s3/b/k?x-id=GetObject", {}, "/s3/b/k"),
        ("/s3/b/k?versionId=v7&X-Amz-Signature=00&X-Amz-Security-Token=t", {}, "/s3/b/k?versionId=v7"),
        ("/s3/b/k?AWSAccessKeyId=A&Signature=s&Expires=1", {}, "/s3/b/k"),
        ("/s3/b/k", {"x-amz-request-payer": "requester"}, "/s3/b/k?requester_pays=1"),
    ],
)
def test_what_an_sdk_adds_is_no_part_of_the_name(target: str, headers: dict[str, str], asked: str) -> None:
    """The same shard for every client, whoever signed."""
    assert object_target(target, headers) == asked


@pytest.mark.parametrize(
    "target",
    [
        "/s3", "/s3/", "/s3/b", "/s3/b/", "/s3/b?list-type=2&prefix=a", "/s3/b/k?tagging", "/s3/b/k?partNumber=1",
        "/s3/b/k?response-expires=x",
    ],
)  # fmt: skip
def test_other_operations_are_not_offered(target: str) -> None:
    """Nothing but the bytes of an object, whole or in ranges."""
    with pytest.raises(NotOffered):
        object_target(target, {})


@pytest.mark.parametrize(("error", "code", "status"), [
    (NotOffered("no listing"), "NotImplemented", 501), (MethodNotAllowed("PUT", allow=("GET",)), "MethodNotAllowed", 405),
    (ShardNotFound("s3://b/k", "gone"), "NoSuchKey", 404), (ShardForbidden("s3://b/k", "no"), "AccessDenied", 403),
    (RangeNotSatisfiable("s3://b/k", "beyond", length=7), "InvalidRange", 416),
    (PreconditionFailed("s3://b/k", "other", etag='"a"'), "PreconditionFailed", 412),
    (OriginUnavailable("s3://b/k", "down"), "ServiceUnavailable", 503), (ConfigError("ours"), "InternalError", 500),
])  # fmt: skip
def test_a_refusal_is_s3s(error: ForebayError, code: str, status: int) -> None:
    """Status, code and a message with what to do next; the header fields are those of any refusal."""
    answer = answer_in_xml(error)
    assert (answer.status, answer.content_type) == (status, "application/xml")
    assert isinstance(answer.body, bytes)
    found = ElementTree.fromstring(answer.body)
    assert (found.tag, found.findtext("Code")) == ("Error", code)
    assert found.findtext("Message")
    assert found.findtext("ActualObjectSize") == ("7" if status == 416 else None)
    assert ("Retry-After" in answer.headers) is (status == 503)


@given(st.text())
def test_any_text_is_wellformed(text: str) -> None:
    """A key's name, or an origin's words, break no document."""
    answer = answer_in_xml(ShardNotFound(f"s3://b/{text}", text + "\ud800\x00<&>"))
    assert isinstance(answer.body, bytes)
    assert ElementTree.fromstring(answer.body).findtext("Code") == "NoSuchKey"
