"""At a start files and rows are made to agree, and nothing else is touched."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stores import held_by_a_child, make_row, ramp, sum_of

from forebay_proxy import fallocate, fileio
from forebay_proxy.directory import Directory
from forebay_proxy.fallocate import Abilities
from forebay_proxy.recovery import Recovered, recover
from forebay_proxy.row import Row
from forebay_proxy.segments import SEGMENT_BYTES, segment_count, segment_span

BOTH = Abilities(allocate=True, punch=True)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    directory = Directory.open(tmp_path, "serve")
    if fallocate.probe(directory.shards) != BOTH:
        pytest.skip("the file system of the temporary directory has no fallocate")
    yield directory
    directory.close()


def put(directory: Directory, row: Row, present: set[int], size: int | None = None) -> Path:
    """A file with these segments written."""
    path = directory.path / "shards" / row.key
    length = row.length or 0
    with path.open("wb") as file:
        file.truncate(length if size is None else size)
        for index in present:
            file.seek(index * SEGMENT_BYTES)
            file.write(ramp(row.key, index, length))
    return path


def start(directory: Directory, *rows: Row, abilities: Abilities = BOTH) -> Recovered:
    return recover(rows, directory.scan(), directory.shards, abilities)


def test_a_claimed_shard_is_kept(directory: Directory) -> None:
    """Its row, and what its file allocates."""
    row = make_row(sums=[1, 1])
    path = put(directory, row, {0, 1})
    result = start(directory, row)
    assert result.rows == [row]
    assert result.allocated == {row.key: path.stat().st_blocks * 512}
    assert (result.dropped, result.removed, result.stuck) == ([], 0, {})


def test_a_row_without_file_is_dropped(directory: Directory) -> None:
    """There is nothing to claim."""
    row = make_row()
    assert start(directory, row).dropped == [row.key]


def test_a_file_without_row_is_removed(directory: Directory) -> None:
    """It was never claimed: killed before its first commit."""
    path = put(directory, make_row(), {0})
    assert start(directory).removed == 1
    assert not path.exists()


def test_what_is_not_ours_stays(directory: Directory) -> None:
    """Only files that we could have made are removed."""
    strange = directory.path / "shards" / "notes"
    strange.touch()
    start(directory)
    assert strange.exists()


@pytest.mark.parametrize("size", [2 * SEGMENT_BYTES - 1, 2 * SEGMENT_BYTES + 1, 0])
def test_a_file_of_another_length_is_not_trusted(directory: Directory, size: int) -> None:
    """Row and file go together: somebody cut or lengthened it."""
    row = make_row(sums=[1, 0])
    path = put(directory, row, set(), size=size)
    result = start(directory, row)
    assert (result.rows, result.dropped, result.removed) == ([], [row.key], 1)
    assert not path.exists()


@pytest.mark.parametrize(("size", "kept"), [(SEGMENT_BYTES + 1, True), (SEGMENT_BYTES, False)])
def test_claims_of_unknown_length_lie_inside_the_file(directory: Directory, size: int, kept: bool) -> None:
    """A claim needs at least its first byte in the file."""
    row = make_row(length=None, sums=[0, 1])
    put(directory, row, set(), size=size)
    assert bool(start(directory, row).rows) is kept


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_only_claimed_bytes_stay_allocated(directory: Directory, data: st.DataObject) -> None:
    """Whatever was written without a claim is freed, whatever is claimed reads back."""
    length = data.draw(st.integers(1, 4 * SEGMENT_BYTES))
    count = segment_count(length)
    claimed = data.draw(st.sets(st.integers(0, count - 1)))
    written = claimed | data.draw(st.sets(st.integers(0, count - 1)))
    row = make_row(length=length, sums=[int(index in claimed) for index in range(count)])
    path = put(directory, row, written)
    result = start(directory, row)
    assert result.allocated[row.key] <= sum(segment_span(index, length)[1] + 4096 for index in claimed) + 4096
    content = path.read_bytes()
    for index in claimed:
        first, size = segment_span(index, length)
        assert sum_of(content[first : first + size]) == sum_of(ramp(row.key, index, length))


def test_a_held_file_is_left_and_counted(directory: Directory) -> None:
    """A client that outlived us still maps it: neither punched nor unlinked."""
    claimed, unclaimed = make_row("s3://b/0", sums=[1, 0]), make_row("s3://b/1")
    first, second = put(directory, claimed, {0, 1}), put(directory, unclaimed, {0})
    with held_by_a_child(first), held_by_a_child(second):
        result = start(directory, claimed)
    assert result.allocated[claimed.key] == first.stat().st_blocks * 512
    assert result.allocated[claimed.key] >= 2 * SEGMENT_BYTES
    assert result.stuck == {unclaimed.key: second.stat().st_blocks * 512}
    assert result.removed == 0


def test_without_punching_ranges_stay(directory: Directory) -> None:
    """What cannot be freed in part is counted as it is."""
    row = make_row(sums=[1, 0])
    path = put(directory, row, {0, 1})
    result = start(directory, row, abilities=Abilities(allocate=True, punch=False))
    assert result.allocated[row.key] == path.stat().st_blocks * 512 >= 2 * SEGMENT_BYTES


def test_a_failing_disk_does_not_stop_the_start(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be removed or punched is counted."""

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "")

    row, unclaimed = make_row("s3://b/0", sums=[1, 0]), make_row("s3://b/1")
    put(directory, row, {0, 1})
    put(directory, unclaimed, {0})
    monkeypatch.setattr(fileio, "unlink", fail)
    monkeypatch.setattr(fileio, "punch", fail)
    result = start(directory, row)
    assert result.stuck.keys() == {unclaimed.key}
    assert result.allocated[row.key] >= 2 * SEGMENT_BYTES
