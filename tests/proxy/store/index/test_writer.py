"""Changes of the index: gathered, committed together, never lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from support.stores import make_row, text_of

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.store.facts import CommitFailed, IndexCommitted
from forebay_proxy.store.index import writer as module
from forebay_proxy.store.index.row import Row, decode
from forebay_proxy.store.index.writer import IndexWriter

FULL = DiskFailed("index commit", "ENOSPC", "test")


class Disk:
    """Commits into memory; holds each commit while the gate is closed, and fails while told to."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.commits: list[dict[str, Row | None]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.fail: DiskFailed | None = None

    async def commit(self, changes: Mapping[str, Row | None]) -> None:
        self.begun.set()
        await self.gate.wait()
        if self.fail:
            raise self.fail
        self.commits.append(dict(changes))
        for key, row in changes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = text_of(row)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def index_writer(disk: Disk, events: Events) -> AsyncIterator[IndexWriter]:
    index_writer = IndexWriter(disk.commit, events)
    index_writer.start()
    yield index_writer
    disk.gate.set()
    await index_writer.aclose()


def row(number: int, *sums: int) -> Row:
    return make_row(f"s3://b/{number}.tar", sums=list(sums) or None)


async def test_many_changes_make_one_commit(index_writer: IndexWriter, disk: Disk) -> None:
    """What is pending goes together, and everybody who waits is told at once."""

    async def change(number: int) -> None:
        index_writer.put(row(number))
        await index_writer.committed()

    await asyncio.gather(*(change(number) for number in range(50)))
    assert len(disk.commits) == 1
    assert len(disk.rows) == 50


async def test_the_newest_word_counts(index_writer: IndexWriter, disk: Disk) -> None:
    """Of several changes of one key the last is committed; drop() after put() leaves nothing, and does no harm where nothing is."""
    index_writer.put(row(1, 5, 5))
    index_writer.put(row(1, 5, 0))
    index_writer.put(row(2))
    index_writer.drop(row(2).key)
    index_writer.drop(row(3).key)
    await index_writer.committed()
    assert disk.rows.keys() == {row(1).key}
    assert list(decode(row(1).key, disk.rows[row(1).key], DEFAULT_LAYOUT).sums) == [0]


async def test_a_row_that_could_not_be_read_back_is_not_put(index_writer: IndexWriter, disk: Disk) -> None:
    """Who claims it hears of it, and the commit of the others is not spoilt."""
    index_writer.put(row(1))
    with pytest.raises(ValueError, match="key"):
        index_writer.put(replace(row(2), url="s3://b/other.tar"))
    await index_writer.committed()
    assert disk.rows.keys() == {row(1).key}


async def test_a_change_during_a_commit_waits_for_the_next(index_writer: IndexWriter, disk: Disk) -> None:
    """committed() covers what was put before it, even if another commit is under way."""
    disk.gate.clear()
    index_writer.put(row(1))
    first = asyncio.create_task(index_writer.committed())
    await disk.begun.wait()
    index_writer.put(row(2))
    second = asyncio.create_task(index_writer.committed())
    disk.gate.set()
    await first
    assert row(2).key not in disk.rows or second.done()
    await second
    assert row(2).key in disk.rows


async def test_a_failed_commit_is_told_and_kept(index_writer: IndexWriter, events: Events, disk: Disk) -> None:
    """The waiter and the listener hear of it, and the change goes with the next commit."""
    failures: list[DiskFailed] = []
    events.on(CommitFailed, lambda fact: failures.append(fact.error))
    disk.fail = FULL
    index_writer.put(row(1))
    with pytest.raises(DiskFailed, match="ENOSPC"):
        await index_writer.committed()
    assert failures == [FULL]
    disk.fail = None
    index_writer.put(row(2))
    await index_writer.committed()
    assert disk.rows.keys() == {row(1).key, row(2).key}


async def test_a_failed_change_does_not_undo_a_newer_one(index_writer: IndexWriter, disk: Disk) -> None:
    """What was put while the commit failed is newer than what failed."""
    disk.gate.clear()
    disk.fail = FULL
    index_writer.put(row(1, 7, 7))
    first = asyncio.create_task(index_writer.committed())
    await disk.begun.wait()
    index_writer.drop(row(1).key)
    disk.gate.set()
    with pytest.raises(DiskFailed):
        await first
    disk.fail = None
    await index_writer.committed()
    assert disk.rows == {}


async def test_a_failed_commit_is_tried_again_unasked(
    index_writer: IndexWriter, events: Events, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs to put anything for the retry."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    done = asyncio.Event()
    events.on(IndexCommitted, lambda _: done.set())
    events.on(CommitFailed, lambda _: setattr(disk, "fail", None))
    disk.fail = FULL
    index_writer.put(row(1))
    await asyncio.wait_for(done.wait(), 60)
    assert row(1).key in disk.rows


async def test_closing_commits_what_is_pending(disk: Disk, events: Events) -> None:
    """Also what came while a commit was under way; afterwards changes are refused."""
    index_writer = IndexWriter(disk.commit, events)
    index_writer.start()
    disk.gate.clear()
    index_writer.put(row(1))
    waiter = asyncio.create_task(index_writer.committed())
    await disk.begun.wait()
    index_writer.put(row(2))
    closing = asyncio.create_task(index_writer.aclose())
    await asyncio.sleep(0)
    disk.gate.set()
    await asyncio.gather(closing, waiter)
    assert disk.rows.keys() == {row(1).key, row(2).key}
    with pytest.raises(DiskFailed, match="closed"):
        index_writer.put(row(3))


async def test_closing_on_a_failing_disk_ends(disk: Disk, events: Events) -> None:
    """One try, one report, no hanging."""
    index_writer = IndexWriter(disk.commit, events)
    failures: list[DiskFailed] = []
    index_writer.start()
    events.on(CommitFailed, lambda fact: failures.append(fact.error))
    disk.fail = FULL
    index_writer.put(row(1))
    await asyncio.wait_for(index_writer.aclose(), 60)
    assert failures == [FULL]


async def test_a_broken_writer_leaves_nobody_waiting(disk: Disk) -> None:
    """An error nobody foresaw reaches those who wait, and who closes."""

    async def commit(changes: Mapping[str, str | None]) -> None:
        raise ZeroDivisionError

    index_writer = IndexWriter(commit, Events())
    index_writer.start()
    index_writer.put(row(1))
    with pytest.raises(DiskFailed, match="ZeroDivisionError"):
        await index_writer.committed()
    with pytest.raises(ZeroDivisionError):
        await index_writer.aclose()


async def test_a_change_is_unsettled_until_it_is_on_the_disk(index_writer: IndexWriter, disk: Disk) -> None:
    """Pending, and while it is being committed."""
    disk.gate.clear()
    index_writer.put(row(1, 5, 6))
    key = row(1).key
    assert index_writer.unsettled(key)
    waiting = asyncio.create_task(index_writer.committed())
    await disk.begun.wait()
    assert (index_writer.unsettled(key), index_writer.unsettled("another")) == (True, False)
    disk.gate.set()
    await waiting
    assert not index_writer.unsettled(key)
