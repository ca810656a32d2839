"""What a start found and nothing claims leaves while we serve: counted until it is gone, and never from under anybody."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.seams import disk_does, held_in_thread
from support.stores import held_by_a_child, make_row, ramp, sum_of

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.store.directory import Directory
from forebay_proxy.store.facts import FileTidied, GarbageRemoved
from forebay_proxy.store.files import fallocate, file_io
from forebay_proxy.store.files.fallocate import Abilities
from forebay_proxy.store.files.thread_pools import Pool
from forebay_proxy.store.garbage import GarbageSweep
from forebay_proxy.store.index.row import Row
from forebay_proxy.store.recovery import recover

BOTH = Abilities(allocate=True, punch=True)


class Place:
    """A cache directory with a sweep over it."""

    def __init__(self, path: Path) -> None:
        self.directory = Directory.open(path, "serve")
        self.pool = Pool("write", 2)
        events = Events()
        self.sweep = GarbageSweep(self.pool, self.directory.shards, BOTH, events)
        self.told: list[tuple[str, int]] = []
        self.freed = 0
        events.on(FileTidied, lambda fact: self.told.append((fact.key, fact.allocated_bytes)))
        events.on(GarbageRemoved, self._count)

    def _count(self, _: GarbageRemoved) -> None:
        self.freed += 1

    def put(self, row: Row, present: set[int]) -> Path:
        """A file with these segments written."""
        path = self.directory.path / "shards" / row.key
        length = row.version.length or 0
        with path.open("wb") as file:
            file.truncate(length)
            for index in present:
                file.seek(index * SEGMENT_BYTES)
                file.write(ramp(row.key, index, length))
        return path

    def found(self, *rows: Row) -> None:
        """A start with these rows."""
        result = recover(rows, self.directory.scan(), {}, DEFAULT_LAYOUT)
        self.sweep.add(result.garbage, result.unclaimed)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    if fallocate.probe(place.directory.shards) != BOTH:
        pytest.skip("the file system of the temporary directory has no fallocate")
    yield place
    await place.pool.aclose()
    place.directory.close()


async def test_a_second_name_keeps_its_bytes(place: Place, tmp_path: Path) -> None:
    """Somebody's file linked into our folder loses that name, not a byte."""
    thesis = tmp_path / "thesis"
    thesis.write_bytes(b"precious" * 1000)
    named = place.directory.path / "shards" / make_row().key
    named.hardlink_to(thesis)
    place.found()
    assert await place.sweep.run() == 0
    assert not named.exists()
    assert thesis.read_bytes() == b"precious" * 1000


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_only_claimed_bytes_stay_allocated(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever was written without a claim is freed, whatever is claimed reads back."""
    length = data.draw(st.integers(1, 4 * SEGMENT_BYTES))
    count = DEFAULT_LAYOUT.count(length)
    claimed = data.draw(st.sets(st.integers(0, count - 1)))
    written = claimed | data.draw(st.sets(st.integers(0, count - 1)))
    row = make_row(length=length, sums=[int(index in claimed) for index in range(count)])

    async def scenario() -> None:
        place = Place(tmp_path_factory.mktemp("swept"))
        path = place.put(row, written)
        place.found(row)
        assert await place.sweep.run() == 0
        assert path.stat().st_blocks * 512 <= sum(DEFAULT_LAYOUT.span(index, length)[1] + 4096 for index in claimed) + 4096
        assert all(told == (row.key, path.stat().st_blocks * 512) for told in place.told)
        content = path.read_bytes()
        for index in claimed:
            first, size = DEFAULT_LAYOUT.span(index, length)
            assert sum_of(content[first : first + size]) == sum_of(ramp(row.key, index, length))
        path.unlink()
        await place.pool.aclose()
        place.directory.close()

    asyncio.run(scenario())


async def test_held_files_are_left_and_counted(place: Place) -> None:
    """A client that outlived us still maps them: neither punched nor unlinked, until it lets go."""
    claimed, unclaimed = make_row("s3://b/0", sums=[1, 0]), make_row("s3://b/1")
    first, second = place.put(claimed, {0, 1}), place.put(unclaimed, {0})
    place.found(claimed)
    with held_by_a_child(first), held_by_a_child(second):
        assert await place.sweep.run() == 2
        assert first.stat().st_blocks * 512 >= 2 * SEGMENT_BYTES
        assert place.sweep.garbage_bytes == second.stat().st_blocks * 512
    assert await place.sweep.run() == 0
    assert first.stat().st_blocks * 512 < 2 * SEGMENT_BYTES
    assert not second.exists()


async def test_a_file_that_is_opened_is_tidied_before(place: Place) -> None:
    """Nobody writes into a range that is about to be punched."""
    row = make_row(sums=[1, 0])
    path = place.put(row, {0, 1})
    place.found(row)
    async with place.sweep.apart(row.key):
        assert path.stat().st_blocks * 512 < 2 * SEGMENT_BYTES
        assert place.told == [(row.key, path.stat().st_blocks * 512)]
    assert len(place.sweep) == 0


async def test_what_could_not_be_punched_before_it_was_opened_is_never_punched(place: Place) -> None:
    """Somebody may have written there since: its bytes stay, counted, for this life."""
    row = make_row(sums=[1, 0])
    path = place.put(row, {0, 1})
    place.found(row)
    with held_by_a_child(path):
        async with place.sweep.apart(row.key):
            pass
    assert await place.sweep.run() == 0
    assert path.stat().st_blocks * 512 >= 2 * SEGMENT_BYTES


async def test_whoever_makes_a_file_waits_for_its_removal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the sweep would unlink the new file by its name; another key is not kept waiting."""
    row, other = make_row("s3://b/0"), make_row("s3://b/1")
    place.put(row, {0})
    place.found()
    gate = held_in_thread(monkeypatch, file_io, "unlink")
    sweeping = asyncio.create_task(place.sweep.run())
    while not gate.reached.is_set():
        await asyncio.sleep(0)
    async with place.sweep.apart(other.key):
        pass

    async def make() -> None:
        async with place.sweep.apart(row.key):
            assert not (place.directory.path / "shards" / row.key).exists()

    making = asyncio.create_task(make())
    await asyncio.sleep(0)
    assert await place.sweep.run() == 1, "a second pass does not wait for the first"
    assert not making.done()
    gate.open()
    await making
    assert await sweeping == 0


async def test_a_failing_disk_stops_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be removed or punched is counted, and tried again."""

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "")

    row, unclaimed = make_row("s3://b/0", sums=[1, 0]), make_row("s3://b/1")
    place.put(row, {0, 1})
    place.put(unclaimed, {0})
    place.found(row)
    with monkeypatch.context() as patch:
        disk_does(patch, unlink=fail, punch=fail)
        assert await place.sweep.run() == 2
    assert place.sweep.garbage_bytes >= SEGMENT_BYTES
    assert await place.sweep.run() == 0
