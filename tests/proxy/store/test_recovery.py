"""At a start rows and files are compared: what holds, what must leave, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import make_row

from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES, allocated
from forebay_proxy.store.directory import Scan, StoredFile
from forebay_proxy.store.index.row import Row
from forebay_proxy.store.recovery import recover

WHOLE = StoredFile(2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES)


def found(row: Row, file: StoredFile) -> Scan:
    return Scan({row.key: file})


@pytest.mark.parametrize("size", [2 * SEGMENT_BYTES - 1, 2 * SEGMENT_BYTES + 1, 0])
def test_a_file_of_another_length_is_not_trusted(size: int) -> None:
    """Row and file go together: somebody cut or lengthened it."""
    row = make_row(sums=[1, 0])
    result = recover([row], found(row, StoredFile(size, 0)), {}, DEFAULT_LAYOUT)
    assert (result.rows, result.dropped, result.garbage) == ([], [row.key], {row.key: 0})


def test_a_file_with_a_second_name_is_not_trusted() -> None:
    """Whoever gave it that may write to it."""
    row = make_row(sums=[1, 1])
    result = recover([row], found(row, StoredFile(WHOLE.size, WHOLE.allocated, names=2)), {}, DEFAULT_LAYOUT)
    assert (result.rows, result.dropped, list(result.garbage)) == ([], [row.key], [row.key])


@pytest.mark.parametrize(("size", "kept"), [(SEGMENT_BYTES + 1, True), (SEGMENT_BYTES, False)])
def test_claims_of_unknown_length_lie_inside_the_file(size: int, kept: bool) -> None:
    """A claim needs at least its first byte in the file."""
    row = make_row(length=None, sums=[0, 1])
    assert bool(recover([row], found(row, StoredFile(size, 0)), {}, DEFAULT_LAYOUT).rows) is kept


@given(st.data())
def test_exactly_the_unclaimed_bytes_are_unclaimed(data: st.DataObject) -> None:
    """The ranges cover all of the file that no claim covers, and nothing of what one does; they come in order."""
    length = data.draw(st.integers(1, 6 * SEGMENT_BYTES))
    count = DEFAULT_LAYOUT.count(length)
    claimed = data.draw(st.sets(st.integers(0, count - 1)))
    row = make_row(length=length, sums=[int(index in claimed) for index in range(count)])
    held = sum(allocated(DEFAULT_LAYOUT.span(index, length)[1]) for index in claimed)
    result = recover([row], found(row, StoredFile(length, held + 4096)), {}, DEFAULT_LAYOUT)
    assert result.unclaimed_bytes == 4096
    ranges = result.unclaimed[row.key]
    assert ranges == sorted(ranges)
    for index in range(count):
        first, size = DEFAULT_LAYOUT.span(index, length)
        covered = sum(max(0, min(first + size, begin + many) - max(first, begin)) for begin, many in ranges)
        assert covered == (0 if index in claimed else size)


def test_a_file_that_holds_no_more_than_is_claimed_is_left_alone() -> None:
    """Every start after a clean end looks at names and sizes only."""
    row = make_row(sums=[1, 0])
    assert recover([row], found(row, StoredFile(2 * SEGMENT_BYTES, SEGMENT_BYTES)), {}, DEFAULT_LAYOUT).unclaimed == {}


@pytest.mark.parametrize(("file", "trusted"), [
    (StoredFile(WHOLE.size, WHOLE.allocated, changed_at=1001.0), True),
    (StoredFile(WHOLE.size, WHOLE.allocated, changed_at=1003.0), False),
    (StoredFile(WHOLE.size, WHOLE.allocated, changed_at=500.0, retouched=True), False),
])  # fmt: skip
def test_a_file_that_something_else_changed_is_verified(file: StoredFile, *, trusted: bool) -> None:
    """Put back with its times, or seconds after its row was committed: kept, and no boot vouches for it."""
    row = make_row(sums=[1, 1])
    result = recover([row], found(row, file), {row.key: 1000.0}, DEFAULT_LAYOUT)
    assert result.rows == [row if trusted else replace(row, boot="")]
    assert result.doubted == ([] if trusted else [row.key])
