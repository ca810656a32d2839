"""A shard's first bytes, judged as the loader judges them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.indexes import samples_of
from support.tarmaking import archives, written

from forebay_loader.samples.tar import TarFault
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, compression_of, is_named_tar, why_no_tar

JUNK = [b"", b"<html>log in</html>", b'{"error": "no"}' * 99, b"PK\x03\x04" + bytes(600), b"PAR1" + bytes(9), b"\0" * 100, b"x" * 4096]


def refusal(content: bytes) -> str:
    """What the loader says of ``content``; "" where it reads it, or finds another fault than that it is no tar."""
    try:
        list(samples_of([{"url": "u", "stream": io.BytesIO(content)}]))
    except TarFault as fault:
        return str(fault).partition("shard u: ")[2] if "not a tar" in str(fault) else ""
    except Exception:
        return ""  # it begins like a tar, and goes on like none
    return ""


@pytest.mark.parametrize("content", JUNK)
def test_the_words_are_the_loaders(content: bytes) -> None:
    """Both sides say the same of what is no tar."""
    assert why_no_tar(content[:LOOK_BYTES]) == refusal(content) != ""


@given(st.one_of(archives(), st.binary(max_size=1200)))
def test_what_the_loader_reads_is_never_refused(content: bytes) -> None:
    """And what begins like no tar is refused by both."""
    if compression_of(content) is None:
        assert why_no_tar(content[:LOOK_BYTES]) == refusal(content)


def test_names() -> None:
    """The ending decides, in any case, whatever the query says."""
    assert all(map(is_named_tar, ("s3://b/a.tar", "https://h/a.TAR?x=1.parquet", "a.tgz", "a.tar.gz", "a.tar.zst", "a.tar.xz")))
    assert not any(map(is_named_tar, ("a.parquet", "https://h/get?file=a.tar", "a.gz", "tar", "a.tar/b")))


def test_a_tar_may_begin_with_anything_a_header_may_say() -> None:
    """A name that looks like a page is a name."""
    assert why_no_tar(written([("<html>.txt", b"x")])[:LOOK_BYTES]) == ""
