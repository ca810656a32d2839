"""Leases of segments: counted once a segment, and what they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, small_segments

from forebay_proxy.cache.resident.facts import CacheChanged, EntryLeft

A = "s3://b/a.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def test_a_segment_counts_once_however_many_hold_it(tmp_path: Path) -> None:
    """And until the last of them has given it back."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        await world.get(A)
        await world.quiet()
        leases, entry = world.cache.leases, world.entry(A)
        counts = []
        for index, change in ((0, leases.lease), (0, leases.lease), (1, leases.lease), (0, leases.release), (0, leases.release)):
            change(entry, index)
            counts.append(leases.count)
        assert counts == [1, 1, 2, 2, 1]
        leases.release(entry, 1)


async def test_what_is_held_does_not_leave(tmp_path: Path) -> None:
    """For the length of the ``with``; then whoever waits for room, or for the end of the version, is told."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        await world.get(A)
        await world.quiet()
        entry = world.entry(A)
        with world.cache.leases.holding(entry, 1):
            assert list(entry.segments.may_leave()) == [0]
            world.facts.clear()
        assert list(entry.segments.may_leave()) == [1, 0]
        assert world.of(EntryLeft) == [EntryLeft(entry)]
        assert world.of(CacheChanged)
