"""The table of sources, line by line: which one a reader's next bytes come from."""

from __future__ import annotations

import pytest
from support.house import shard_of

from forebay_proxy.cache.readers.segment_source import SegmentSource, foreseen_outcome, source_in_flight, source_of_segment
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.events import RequestOutcome
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.transfer.flights import Flight

LENGTH = 4 * SEGMENT_BYTES


def entry_of(*, ranged: bool = True, stored: tuple[int, ...] = ()) -> Entry:
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), LENGTH), ranged=ranged)
    for index in stored:
        entry.segments.land(index, 1)
    return entry


def body(position: int = 0, *, once: bool = False, kept_from: int = 0) -> Flight:
    """A flight of the whole shard at ``position``, whose window begins at ``kept_from`` and that has written nothing."""
    flight = Flight(0, LENGTH, 0.0)
    flight.position, flight.once = position, once
    flight.window.start = kept_from
    return flight


def test_one_body_of_many_segments_is_gone_on_with() -> None:
    """It is not asked for anew at each of them."""
    assert source_in_flight(entry_of(ranged=False), SEGMENT_BYTES, body()) is SegmentSource.SAME_FLIGHT


def test_a_body_that_ended_beyond_the_position_is_read_to_there() -> None:
    """And one that ended before it is left."""
    entry, flight = entry_of(ranged=False), body(2 * SEGMENT_BYTES)
    flight.done = True
    assert source_in_flight(entry, SEGMENT_BYTES, flight) is SegmentSource.SAME_FLIGHT
    assert source_in_flight(entry, 2 * SEGMENT_BYTES, flight) is None


def test_a_flight_of_one_segment_is_left_at_its_end() -> None:
    """Where the origin gives parts, the next segment has a flight of its own."""
    assert source_in_flight(entry_of(), SEGMENT_BYTES, body()) is None


def test_a_failed_body_is_left() -> None:
    flight = body()
    flight.error = OSError("cut")
    assert source_in_flight(entry_of(ranged=False), SEGMENT_BYTES, flight) is None


def test_a_body_that_cannot_be_asked_for_twice_is_followed() -> None:
    """Also by a reader whose bytes are stored, so that it waits for this one."""
    entry = entry_of(ranged=False, stored=(0,))
    entry.in_use.stream = body(SEGMENT_BYTES, once=True)
    assert source_in_flight(entry, 0, None) is SegmentSource.ONE_BODY


def test_one_that_kept_nothing_of_the_start_is_asked_for_anew() -> None:
    """A body of its own, from the start on; from the middle on there is none."""
    entry = entry_of(ranged=False)
    entry.in_use.stream = body(SEGMENT_BYTES, once=True, kept_from=SEGMENT_BYTES)
    assert source_in_flight(entry, 0, None) is SegmentSource.PRIVATE
    assert source_in_flight(entry, 1, None) is None


@pytest.mark.parametrize("over", [True, False])
def test_another_body_binds_nobody(over: bool) -> None:
    """One that has ended, or that may be asked for again."""
    entry = entry_of(ranged=False)
    entry.in_use.stream = body(once=over)
    entry.in_use.stream.done = over
    assert source_in_flight(entry, 0, None) is None


def test_a_stored_segment_is_read_from_the_file() -> None:
    assert source_of_segment(entry_of(stored=(1,)), 1) is SegmentSource.STORE


def test_a_missing_one_is_shared() -> None:
    """With whoever asks for it too."""
    assert source_of_segment(entry_of(stored=(1,)), 0) is SegmentSource.SHARED


@pytest.mark.parametrize("stored", [(1,), ()])
def test_a_doubtful_one_is_not_read(stored: tuple[int, ...]) -> None:
    """Nor fetched into its place, which the disk does not let go of."""
    entry = entry_of(stored=stored)
    entry.segments.unverified.add(1)
    assert source_of_segment(entry, 1) is SegmentSource.PRIVATE


@pytest.mark.parametrize(
    ("stored", "joins", "outcome"),
    [
        ((0, 1), False, RequestOutcome.HIT),
        ((1,), True, RequestOutcome.PARTIAL),
        ((), True, RequestOutcome.COLLAPSED),
        ((), False, RequestOutcome.MISS),
        ((2, 3), False, RequestOutcome.MISS),
    ],
)
def test_what_is_foreseen(stored: tuple[int, ...], joins: bool, outcome: RequestOutcome) -> None:
    """Of the segments of the range alone."""
    assert foreseen_outcome(entry_of(stored=stored), 0, 2 * SEGMENT_BYTES, joins=joins) is outcome


def test_a_shard_without_a_known_end_is_no_hit() -> None:
    """Nothing says that what is stored is all of it."""
    assert foreseen_outcome(entry_of(stored=(0,)), 0, None, joins=False) is RequestOutcome.PARTIAL
