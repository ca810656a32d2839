"""response.py: what an origin's answer says."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from forebay_proxy.core.errors import (
    OriginError,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.segments import MOST_BYTES
from forebay_proxy.core.shard import ByteRange, Pin, PinKind
from forebay_proxy.origins.response import OriginResponse, check_pin, error_of, placement, version_of

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
NAME = "https://h/x.tar"


def partial(said: str, status: int = 206, **headers: str) -> OriginResponse:
    return OriginResponse(status, {"content-range": said, **{name.replace("_", "-"): value for name, value in headers.items()}})


BY_ETAG, BY_DATE = Pin(PinKind.ETAG, '"a"'), Pin(PinKind.MODIFIED, DATE)


@pytest.mark.parametrize(
    ("headers", "identity", "pin"),
    [
        ({"etag": '"a"', "last-modified": DATE}, 'etag:"a"', BY_ETAG),
        # If-Match compares strongly (RFC 9110), so a weak validator is no pin, and needs the length; the date is one.
        ({"etag": 'W/"a"', "last-modified": DATE}, 'weak:W/"a":10', BY_DATE),
        ({"etag": 'W/"a"'}, 'weak:W/"a":10', Pin()),
        ({"last-modified": DATE}, f"modified:{DATE}:10", BY_DATE),
        *(({"etag": etag, "last-modified": DATE}, f"modified:{DATE}:10", BY_DATE) for etag in ('""', 'W/""')),  # the same for all versions
        ({"etag": '"a"', "x-amz-version-id": "v7"}, "s3:v7", BY_ETAG),
        ({"etag": '"a"', "x-goog-generation": "17"}, "gs:17", BY_ETAG),
        *(({"etag": '"a"', "x-amz-version-id": said}, 'etag:"a"', BY_ETAG) for said in ("", " ", "null", " null ")),
        *(({"etag": '"a"', "x-goog-generation": said}, 'etag:"a"', BY_ETAG) for said in ("", " ")),
    ],
)
def test_identity_and_pin(headers: dict[str, str], identity: str, pin: Pin) -> None:
    """Version ids and generations name the bytes, else the ETag, else date and length; what can be compared is the pin."""
    version = version_of(headers, 10)
    assert (version.identity, version.pin, version.length) == (identity, pin, 10)


@pytest.mark.parametrize(
    ("headers", "length"),
    [({}, 10), ({"last-modified": DATE}, None), ({"last-modified": "yesterday"}, 10), ({"etag": '""'}, 10), ({"etag": 'W/""'}, 10)],
)
def test_nothing_said_is_no_identity(headers: dict[str, str], length: int | None) -> None:
    """An origin without validators has versions that cannot be told apart."""
    version = version_of(headers, length)
    assert version.identity == ""
    assert headers.get("last-modified") == DATE or not version.pin


@pytest.mark.parametrize(
    ("date", "second_over"),
    [(None, False), ("never", False), (DATE, False), ("Wed, 21 Oct 2026 07:28:01 GMT", True), ("Wed, 21 Oct 2026 07:27:59 GMT", False)],
)
def test_a_date_counts_once_its_second_is_over(date: str | None, second_over: bool) -> None:
    """By the origin's own clock: until then another version may get the same."""
    headers = {"etag": '"abc"', "last-modified": DATE, **({"date": date} if date else {})}
    version = version_of(headers, 10)
    assert (version.modified, version.second_over) == (DATE, second_over)


@pytest.mark.parametrize("etag", ['"', "abc", '"a"b"', "W/abc", ""])
def test_a_malformed_etag_is_no_pin(etag: str) -> None:
    """What cannot be compared is not sent back."""
    assert not version_of({"etag": etag}, 1).pin


def test_an_encoding_is_recorded() -> None:
    """gzip nobody asked for is part of the version; identity is not an encoding."""
    assert version_of({"content-encoding": "GZIP"}, 1).encoding == "gzip"
    assert version_of({"content-encoding": "identity"}, 1).encoding == ""


@pytest.mark.parametrize(
    "said",
    ["bytes 1-9/100", "bytes 0-10/100", "bytes 0-9/5", "bytes */100", "items 0-9/100", "bytes 9-0/100", "", "bytes 0-9", "bytes -1-9/100"],
)
def test_another_range_than_asked_is_an_error(said: str) -> None:
    """Wrong bytes would be stored under the right name."""
    with pytest.raises(OriginError):
        placement(NAME, partial(said), ByteRange(0, 9))


def test_a_pin_is_checked_even_where_the_origin_ignored_it() -> None:
    """Another ETag than the pin is another version; an answer without one says nothing."""
    pin = Pin(PinKind.ETAG, '"a"')
    check_pin(NAME, {"etag": '"a"'}, pin)
    check_pin(NAME, {}, pin)
    check_pin(NAME, {"etag": '"b"'}, Pin())
    with pytest.raises(ShardChanged):
        check_pin(NAME, {"etag": '"b"'}, pin)
    with pytest.raises(ShardChanged):
        check_pin(NAME, {"last-modified": DATE}, Pin(PinKind.MODIFIED, "Tue, 20 Oct 2026 07:28:00 GMT"))


@pytest.mark.parametrize(
    ("status", "kind", "shown"),
    [
        (400, OriginError, 502), (401, ShardForbidden, 401), (403, ShardForbidden, 403), (404, ShardNotFound, 404),
        (410, ShardNotFound, 404), (408, OriginUnavailable, 503), (412, ShardChanged, 502), (416, RangeNotSatisfiable, 416),
        (429, OriginUnavailable, 503), (500, OriginUnavailable, 503), (503, OriginUnavailable, 503), (599, OriginUnavailable, 503),
        (304, OriginError, 502), (302, OriginError, 502), (418, OriginError, 502), (204, OriginError, 502),
    ],
)  # fmt: skip
def test_each_status_has_its_error(status: int, kind: type[ShardError], shown: int) -> None:
    """The class decides who retries; the status is what a client sees. A condition that nobody sent cannot fail (412)."""
    error = error_of(NAME, OriginResponse(status, {}), pinned=True)
    assert type(error) is kind
    assert error.status == shown
    assert str(status) in str(error)
    if status == 412:
        assert type(error_of(NAME, OriginResponse(status, {}), pinned=False)) is OriginError


@pytest.mark.parametrize(
    ("status", "body", "throttled"),
    [
        (429, b"", True),
        (503, b"", True),
        (500, b"", False),
        (502, b"", False),
        (408, b"", False),
        (400, b"<Error><Code>SlowDown</Code></Error>", True),  # as some S3 servers say it
    ],
)
def test_throttling_is_told_from_trouble(status: int, body: bytes, throttled: bool) -> None:
    """The limiter halves on one and waits on the other."""
    error = error_of(NAME, OriginResponse(status, {}, body), pinned=False)
    assert isinstance(error, OriginUnavailable)
    assert error.throttled is throttled


def test_retry_after_is_seconds_or_a_date() -> None:
    """Both forms of RFC 9110; nonsense and the past are no wish."""
    then = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

    def wish(text: str) -> float | None:
        error = error_of(NAME, OriginResponse(503, {"retry-after": text}), pinned=False, now=lambda: then.timestamp() - 60)
        assert isinstance(error, OriginUnavailable)
        return error.retry_after_s

    assert wish("7") == 7.0
    assert wish(format_datetime(then, usegmt=True)) == 60.0
    assert wish("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0
    assert wish("soon") is None
    assert wish("-5") is None
    assert wish("") is None


@pytest.mark.parametrize(
    ("headers", "body", "asked", "length"),
    [
        ({"content-range": "bytes */1234"}, b"", ByteRange(7), 1234),
        ({}, b"<ActualObjectSize>12</ActualObjectSize>", ByteRange(12), 12),  # S3 writes it into the body
        ({}, b"", ByteRange(0, 0), 0),  # what lacks its first byte is empty
        ({}, b"", ByteRange(7), None),
    ],
)
def test_416_tells_the_length(headers: dict[str, str], body: bytes, asked: ByteRange, length: int | None) -> None:
    """Where the shard ends, as far as it can be known."""
    error = error_of(NAME, OriginResponse(416, headers, body), asked=asked)
    assert isinstance(error, RangeNotSatisfiable)
    assert error.length == length


def test_an_s3_body_explains_and_repeats_no_secret() -> None:
    """Code and a message in plain words reach the person; a message that repeats what we sent does not."""
    plain = b"<Error><Code>AccessDenied</Code><Message>Request has expired.</Message></Error>"
    assert "AccessDenied (Request has expired.)" in str(error_of(NAME, OriginResponse(403, {}, plain), pinned=False))
    for loop_guard in (b"No &amp; never: https://h/k?X-Amz-Signature=secret done", b"wrong: Bearer s3cr3tT0ken", b"{'Cookie': 'secret'}"):
        text = str(error_of(NAME, OriginResponse(403, {}, b"<Code>AccessDenied</Code><Message>%s</Message>" % loop_guard), pinned=False))
        assert "AccessDenied" in text
        assert "secret" not in text
        assert "s3cr3t" not in text


@pytest.mark.parametrize(
    ("raw", "pinned"),
    [(b'"\xe9t\xe9"', False), (b'"a\x80"', False), (b'"\xff\xfe"', False), ('"été"'.encode(), True), ('"シ"'.encode(), True)],
)
def test_an_etag_that_cannot_be_sent_back_is_no_pin(raw: bytes, *, pinned: bool) -> None:
    """Bytes that are no UTF-8 would go out as others, and match nothing; they still tell versions apart."""
    etag = raw.decode("utf-8", "surrogateescape")
    version = version_of({"etag": etag, "last-modified": DATE}, 10)
    assert version.identity == f"etag:{etag}"
    assert version.pin == (Pin(PinKind.ETAG, etag) if pinned else Pin(PinKind.MODIFIED, DATE))


@pytest.mark.parametrize("length", [MOST_BYTES + 1, 2**48, 2**62, 10**18])
def test_a_length_beyond_the_bound_is_refused_in_words(length: int) -> None:
    """By Content-Length, by the total of a Content-Range, and by the place of the bytes where there is no total."""
    asked = ByteRange(length - 1, length - 1)
    for answer, wanted in (
        (OriginResponse(200, {"content-length": str(length)}), None),
        (partial(f"bytes 0-0/{length}"), ByteRange(0, 0)),
        (partial(f"bytes {length - 1}-{length - 1}/*"), asked),
        (partial(f"bytes 0-0/{length}", status=200), ByteRange(0, 0)),
    ):
        with pytest.raises(OriginError) as caught:
            placement(NAME, answer, wanted)
        assert not caught.value.retryable
        for word in (NAME, str(length), str(MOST_BYTES)):
            assert word in str(caught.value)
    with pytest.raises(OriginError):
        placement(NAME, OriginResponse(200, {"content-length": "9" * 5000}), None)
    assert placement(NAME, partial(f"bytes 0-0/{MOST_BYTES}"), ByteRange(0, 0)).total == MOST_BYTES
