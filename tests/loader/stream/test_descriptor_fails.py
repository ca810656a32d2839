"""A shard's file that cannot be read any further: no SIGBUS, nothing lost, nothing twice, and it is said."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.indexes import passed, samples_of
from support.seams import swapped
from support.tarmaking import written

from forebay_loader.base.counters import counters
from forebay_loader.samples.byte_window import Flowing
from forebay_loader.samples.index_samples import samples_in, starts_at
from forebay_loader.stream import shard_descriptor as module
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.transport.body import Progress, new_sum
from forebay_proxy.wire.tar.sample_index import IndexBuilder, SampleIndex
from forebay_proxy.wire.tar.scan import scan

COUNT = 300
TAR = written([(f"k{number:04d}.{suffix}", os.urandom(20_000)) for number in range(COUNT) for suffix in ("bin", "seg")])
KEPT = 64 * 4096  # where the file ends, or the first byte of its disk that cannot be read


class Rest(io.BytesIO):
    """Over HTTP: the shard from where ``progress`` stands."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(TAR[progress.position :])
        self.progress = progress

    def readinto1(self, room: Any) -> int:
        return self.readinto(room[:100_000])

    @property
    def whole(self) -> bool:
        return True


class Going:
    """Says how to go on, and remembers what it was told."""

    def __init__(self) -> None:
        self.rests: list[Rest] = []

    def __call__(self, progress: Progress) -> Rest:
        self.rests.append(Rest(progress))
        return self.rests[-1]


def shrink(opened: Descriptor) -> None:
    """As a file that somebody cuts off: a map's pages behind its end are SIGBUS."""
    os.truncate(f"/proc/self/fd/{opened._file}", KEPT)


def rot(opened: Descriptor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk that cannot read from a page on: EIO."""
    file, pread, preadv = opened._file, os.pread, os.preadv

    def bad(number: int, at: int, size: int) -> None:
        if number == file and at + size > KEPT and at >= KEPT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read(number: int, size: int, at: int) -> bytes:
        bad(number, at, size)
        return pread(number, min(size, KEPT - at) if number == file else size, at)

    def readv(number: int, rooms: list[memoryview], at: int) -> int:
        bad(number, at, len(rooms[0]))
        return preadv(number, [rooms[0][: KEPT - at]] if number == file else rooms, at)

    swapped(monkeypatch, module.os, pread=read, preadv=readv)


def index_of() -> SampleIndex:
    builder = IndexBuilder()
    for member in scan(lambda at, size: TAR[at : at + size], len(TAR)):
        builder.add(*member)
    return builder.finished(len(TAR))


def by_index(opened: Descriptor) -> Iterator[dict[str, Any]]:
    index = index_of()
    return samples_in(Flowing(opened.readinto1, opened.skip(starts_at(index, 0)), opened.skip, opened.lone), len(TAR), index, "u")


def one_by_one(opened: Descriptor) -> Iterator[dict[str, Any]]:
    """As large files are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay_loader.samples.index_samples.LARGE_BYTES", 1)
        yield from by_index(opened)


def by_walking(opened: Descriptor) -> Iterator[dict[str, Any]]:
    return samples_of([{"url": "u", "stream": opened}])


def expected() -> list[dict[str, Any]]:
    return list(samples_of([{"url": "u", "stream": io.BytesIO(TAR)}]))


@pytest.mark.parametrize(
    ("way", "after"),
    [(way, after) for way in (by_walking, by_index, one_by_one) for after in (0, 1, 7)],
)
def test_a_file_that_shrinks_under_its_reader(way: Callable[[Descriptor], Iterator[dict[str, Any]]], after: int) -> None:
    """Every sample once and right: those that are here, then the others over HTTP, of the same version. It is counted and said."""
    going = Going()
    opened = passed(TAR, going)
    samples = way(opened)
    found = [next(samples) for _ in range(after)]
    before = counters()["descriptor_failed"]
    shrink(opened)
    found += samples
    assert found == expected()
    (rest,) = going.rests
    at = rest.progress.position
    assert (rest.progress.length, rest.progress.etag) == (len(TAR), '"v1"')
    assert rest.progress.sum.intdigest() == (_sum(TAR[:at]) if at <= KEPT else -1)  # -1: it cannot be read any more, and is equal to none
    assert counters()["descriptor_failed"] == before + 1
    if way not in (by_index, one_by_one):
        assert opened.closed


@pytest.mark.parametrize("way", [by_walking, by_index], ids=["walked", "by index"])
def test_a_disk_that_rots(way: Callable[[Descriptor], Iterator[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO in the middle of a read: what lies before it is taken from the file."""
    going = Going()
    opened = passed(TAR, going)
    rot(opened, monkeypatch)
    assert list(way(opened)) == expected()
    assert [rest.progress.position for rest in going.rests] == [KEPT]


def test_who_reads_it_as_a_stream() -> None:
    """As webdataset's tarfile does, 10 KiB at a time."""
    going = Going()
    opened = passed(TAR, going)
    found = opened.read(10_240)
    shrink(opened)
    while part := opened.read(10_240):
        found += part
    assert found == TAR
    assert len(going.rests) == 1
    opened.close()


def test_nobody_says_how_to_go_on() -> None:
    """The kernel's error, the shard is let go of."""
    opened = passed(TAR)
    shrink(opened)
    with pytest.raises(OSError, match="the file ends at byte 262144"):
        opened.read()
    assert opened.closed


def test_what_was_read_before_cannot_be_summed() -> None:
    """Then no way that begins again at byte 0 can pass for the same bytes."""
    going = Going()
    opened = passed(TAR, going)
    opened.skip(KEPT + 4096)
    shrink(opened)
    assert opened.read(10) == TAR[KEPT + 4096 : KEPT + 4106]
    assert going.rests[0].progress.sum.intdigest() == -1


def _sum(data: bytes) -> int:
    found = new_sum()
    found.update(data)
    return int(found.intdigest())
