"""What may be shown of shards and messages."""

from __future__ import annotations

import pytest

from forebay_loader.base.shown_text import shown_message, shown_source

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"s3://bucket/a.tar?profile={SECRET}", "s3://bucket/a.tar"),
        (f"https://me:{SECRET}@h/a.tar?X-Amz-Signature={SECRET}#x", "https://h/a.tar"),
        ("hf://datasets/org/name@main/a.tar", "hf://datasets/org/name@main/a.tar"),
        (f"pipe:curl -s -H 'Authorization: Bearer {SECRET}' https://h/a.tar?t={SECRET}", "https://h/a.tar"),
        (f"pipe:mytool --key {SECRET} a.tar | cat", "a pipe: command"),
        ("/data/a b.tar", "/data/a b.tar"),
        (f"ftp://me:{SECRET}@h/a.tar?k={SECRET}", "ftp://h/a.tar"),
    ],
)
def test_a_shard_is_named_without_what_proves_who_asks(url: str, shown: str) -> None:
    """Enough to find it, nothing to open it with."""
    assert shown_source(url) == shown


@pytest.mark.parametrize(
    "message",
    [
        f"cannot open https://me:{SECRET}@h/a.tar?X-Amz-Signature={SECRET}&b=1: gone",
        f"(1, 'pipe:curl -H Authorization:{SECRET}')",
        f"header Authorization: Bearer {SECRET} refused",
        f"{{'X-Amz-Security-Token': '{SECRET}', 'password': '{SECRET}'}}",
        f"GET /a.tar?sig={SECRET} failed",
        f"hf_token={SECRET}",
    ],
)
def test_a_message_loses_what_proves_who_asks(message: str) -> None:
    """Wherever it stands."""
    assert SECRET not in shown_message(message)


def test_a_message_keeps_the_rest() -> None:
    """Most hold nothing of that kind."""
    text = "cannot identify image file <_io.BytesIO object>: 3 of 4 bytes at https://h/a.tar"
    assert shown_message(text) == text
