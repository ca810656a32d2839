"""Origins whose backends name the same shard differently."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from support.house import LAYOUT, SEGMENT, FakeClock, building, data_of, reader, shard_of

from forebay_proxy.cache.integrity import version_flips as module
from forebay_proxy.cache.integrity.version_flips import KNOWN_TRIES, REMEMBERED_S, TRIES, VersionFlips
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import ShardChanged
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginOddity
from forebay_proxy.core.shard import Pin, PinKind, Version

A = "https://o/set/a.tar"
DATA = data_of(6 * SEGMENT)


def entry(name: str = A, etag: str = '"a"', length: int = 9) -> Entry:
    return Entry(name + etag, shard_of(name), Version(f"etag:{etag}", Pin(PinKind.ETAG, etag), length), LAYOUT, ranged=True)


def returns(version_flips: VersionFlips, times: int, name: str = A) -> None:
    for _ in range(times):
        one = entry(name)
        version_flips.denied(one)
        version_flips.shown(one)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def facts() -> list[object]:
    return []


@pytest.fixture
def version_flips(clock: FakeClock, facts: list[object]) -> VersionFlips:
    events = Events()
    events.listen(facts.append)
    return VersionFlips(clock, events)


def asked_until_believed(version_flips: VersionFlips, one: Entry) -> int:
    return next(count for count in range(1000) if version_flips.denied(one) is None)


def test_a_denied_version_is_asked_for_a_few_times(version_flips: VersionFlips) -> None:
    """More often where it has been seen to come back; not at all once it is known to be replaced."""
    assert asked_until_believed(version_flips, entry()) == TRIES
    returns(version_flips, 3)
    assert asked_until_believed(version_flips, entry()) == KNOWN_TRIES
    gone = entry()
    gone.in_use.stale = True
    assert version_flips.denied(gone) is None


def test_a_return_now_and_then_is_no_flapping(version_flips: VersionFlips, clock: FakeClock, facts: list[object]) -> None:
    """A mistake on the way, one in a hundred answers; two in a row are."""
    for _ in range(20):
        returns(version_flips, 1)
        for _ in range(100):
            version_flips.shown(entry())
        assert not version_flips.known("https://o")
        assert not version_flips.suspected("https://o")
    returns(version_flips, 2)
    assert version_flips.known("https://o")
    assert not version_flips.known("https://other")
    assert facts == [OriginOddity("https://o", "version-returned")] * 22
    clock.advance(REMEMBERED_S)
    assert not version_flips.known("https://o")


def test_a_version_that_is_back_after_it_was_replaced(version_flips: VersionFlips, facts: list[object]) -> None:
    """Of the same length, or it is not the same bytes."""
    version_flips.gone(entry(etag='"a"'))
    version_flips.opened(entry(etag='"a"'))  # what was given up and opened again, with no other between
    version_flips.gone(entry(etag='"a"'))
    version_flips.opened(entry(etag='"b"'))
    version_flips.gone(entry(etag='"b"'))
    version_flips.opened(entry(etag='"a"', length=10))
    assert not facts
    version_flips.opened(entry(etag='"a"'))
    version_flips.opened(entry(etag='"a"'))
    assert len(facts) == 1


def test_what_is_remembered_is_bounded(version_flips: VersionFlips, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, versions of each, origins."""
    for name in ("MOST_NAMES", "MOST_FORMER", "MOST_ORIGINS"):
        monkeypatch.setattr(module, name, 4)
    for number in range(100):
        version_flips.gone(entry(f"https://o/{number}.tar"))
        version_flips.gone(entry(A, f'"{number}"'))
        returns(version_flips, 3, f"https://o{number}/a.tar")
    assert len(version_flips.former) == len(version_flips.scores) == len(version_flips._advised) == 4
    assert max(map(len, version_flips.former.values())) == 4


@pytest.mark.parametrize("count", [2, 3])
async def test_a_shard_of_several_backends_is_read_whole(tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every one, from the first on; said once."""
    caplog.set_level(logging.WARNING, "forebay")
    async with building(tmp_path / "c") as world:
        etags = tuple(f'"b{number}"' for number in range(count))
        for number in range(12):
            name = f"https://o/set/{number}.tar"
            world.origin.put(name, data_of(6 * SEGMENT, number), backends=etags, chance=random.Random(number))
            assert await world.get(name, reader()) == data_of(6 * SEGMENT, number)
        assert all(world.origin.sent_twice(f"https://o/set/{number}.tar") == 0 for number in range(12))
    told = [record.getMessage()[:16] for record in caplog.records if "not a tar" not in record.getMessage()]  # which the shards are not
    assert told == ["origin https://o"]


async def test_eight_backends_once_they_are_known(tmp_path: Path) -> None:
    """Each denies what seven others say."""
    async with building(tmp_path / "c") as world:
        returns(world.fetcher.version_flips, 3)
        world.origin.put(A, DATA, backends=tuple(f'"b{number}"' for number in range(8)))
        assert await world.get(A, reader()) == DATA


async def test_a_replaced_shard_is_told_after_a_few_questions(tmp_path: Path) -> None:
    """The first reader's is over; the next reads the new one."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, DATA)
        gate = remote.hold(SEGMENT // 2)
        async with world.opened(A, reader()) as reading:
            await gate.reached.wait()
            world.origin.put(A, data_of(5 * SEGMENT, 1), etag='"v2"')
            gate.open()
            with pytest.raises(ShardChanged):
                _ = [bytes(chunk) async for chunk in reading.chunks()]
        await world.quiet()
        assert TRIES < sum(asked.pin == '"v1"' for asked in world.origin.log) <= TRIES + 8
        assert await world.get(A, reader()) == data_of(5 * SEGMENT, 1)
