"""A reader's name survives headers and paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.protocol.plan import InvalidReader, ReaderName

parts = (
    st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="/"), min_size=1, max_size=128)
    .filter(str.isprintable)
    .filter(lambda part: part not in (".", ".."))
)


@given(parts, parts, parts, parts)
def test_round_trip(job: str, rank: str, worker: str, opener: str) -> None:
    """Parse what ``str`` wrote; it is ASCII without blanks, fit for a header."""
    reader = ReaderName(job, rank, worker, opener)
    assert ReaderName.parse(str(reader)) == reader
    assert str(reader).isascii()
    assert " " not in str(reader)


def test_ordinary_names_are_written_as_they_are() -> None:
    """No escapes where none are needed."""
    assert str(ReaderName("4711.0", "3", "1", "812.2")) == "4711.0/3/1/812.2"
    assert ReaderName.parse("job%20x/0/0/1.1").job == "job x"


@pytest.mark.parametrize(
    "text",
    ["", "a/b/c", "a/b/c/d/e", "a//c/d", "a/b/c/", "a/b/c/d\n", "a%2Fb/b/c/d", "a%00/b/c/d", "../b/c/d", "a/b/c/%2e", "x" * 129 + "/b/c/d"],
)
def test_bad_names(text: str) -> None:
    """Wrong count, empty, too long, slash, dots or unprintable: told, not bent."""
    with pytest.raises(InvalidReader):
        ReaderName.parse(text)
