"""A segment that comes again and is read before it has landed: its sum is compared, or its landing is waited for."""

from __future__ import annotations

from typing import Any

import xxhash
from support.house import shard_of

from forebay_proxy.cache.readers.repeat_check import RepeatCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.transfer.flights import Flight

LENGTH = SEGMENT_BYTES + 10  # the last segment is ten bytes long
LAST = bytes(range(10))


class Gate:
    """Knows all segments from before, and hears what is compared."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.awaited: list[int] = []

    def knows(self, entry: Entry, index: int) -> bool:
        return True

    def came_again(self, entry: Entry, index: int, value: int) -> None:
        self.heard.append((index, value))

    async def compared(self, entry: Entry, index: int, flight: Flight) -> None:
        self.awaited.append(index)


def made() -> tuple[Any, RepeatCheck]:
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), LENGTH), ranged=True)
    gate: Any = Gate()
    return gate, RepeatCheck(gate, entry)


def flight(*landed: int) -> Flight:
    flying = Flight(0, LENGTH, 0.0)
    flying.stored.update(landed)
    return flying


def test_the_sum_of_a_whole_segment_is_compared() -> None:
    """However it was cut into chunks."""
    gate, check = made()
    check.expect(1, flight())
    assert [check.add(1, SEGMENT_BYTES, LAST[:4]), check.add(1, SEGMENT_BYTES + 4, LAST[4:])] == [False, True]
    assert gate.heard == [(1, xxhash.xxh3_64_intdigest(LAST))]
    assert not check


async def test_one_read_from_its_middle_is_waited_for() -> None:
    """Nobody has its sum before it has landed."""
    gate, check = made()
    check.expect(1, flight())
    assert not check.add(1, SEGMENT_BYTES + 4, LAST[4:])
    assert (bool(check), gate.heard) == (True, [])
    await check.finish()
    assert (bool(check), gate.awaited) == (False, [1])


def test_what_has_landed_was_compared() -> None:
    """And so was what is read from the disk."""
    gate, check = made()
    check.expect(1, flight(1))
    check.expect(1, None)
    assert not check
    assert not check.add(1, SEGMENT_BYTES, LAST)
    assert gate.heard == []


def test_what_was_never_here_is_not_compared(monkeypatch: Any) -> None:
    gate, check = made()
    monkeypatch.setattr(gate, "knows", lambda entry, index: False)
    check.expect(1, flight())
    assert not check
