"""Which slices are here, held, or missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.segments import BLOCK_BYTES, DEFAULT_LAYOUT, SEGMENT_BYTES, SegmentLayout, Segments, allocated


@given(st.builds(SegmentLayout, st.integers(1, 2 * SEGMENT_BYTES)), st.integers(0, 40), st.floats(0, 1))
def test_the_segments_of_a_shard_fill_it(layout: SegmentLayout, whole: int, rest: float) -> None:
    """One behind the other, without gap or overlap, none of them empty, however the shard is cut."""
    length = whole * layout.segment_bytes + int(rest * layout.segment_bytes)
    position = 0
    for index in range(layout.count(length)):
        first, size = layout.span(index, length)
        assert (first, layout.index_of(first), layout.index_of(first + size - 1)) == (position, index, index)
        assert 0 < size <= layout.segment_bytes
        position += size
    assert position == length


@given(st.integers(0, 10**9))
def test_a_disk_allocates_whole_blocks(size: int) -> None:
    """Never less than asked, never a whole block more."""
    assert size <= allocated(size) < size + BLOCK_BYTES
    assert allocated(size) % BLOCK_BYTES == 0


@given(st.lists(st.tuples(st.sampled_from(["land", "leave", "lease", "release"]), st.integers(0, 5))))
def test_segments_agree_with_two_sets(steps: list[tuple[str, int]]) -> None:
    """Landing, leaving and leases against a set and a list; who may leave goes from the tail."""
    segments, here, held = Segments(DEFAULT_LAYOUT, 6 * SEGMENT_BYTES), set[int](), list[int]()
    for step, index in steps:
        if step == "land":
            segments.land(index, index * 7)
            here.add(index)
        elif step == "leave":
            segments.leave(index)
            here.discard(index)
        elif step == "lease":
            segments.lease(index)
            held.append(index)
        elif index in held:
            segments.release(index)
            held.remove(index)
        assert set(segments.stored()) == here
        assert segments.stored_count == len(here)
        assert segments.complete == (len(here) == 6)
        assert list(segments.may_leave()) == sorted(here - set(held), reverse=True)


def test_a_sum_of_zero_is_still_here() -> None:
    """0 means absent, so it is written as 1."""
    segments = Segments(DEFAULT_LAYOUT, SEGMENT_BYTES)
    segments.land(0, 0)
    assert (segments.has(0), segments.sums[0]) == (True, 1)


def test_a_shard_of_unknown_length_grows_and_settles() -> None:
    """It is complete only once its end is known."""
    segments = Segments(DEFAULT_LAYOUT, None)
    segments.land(0, 5)
    segments.land(1, 6)
    assert not segments.complete
    segments.set_length(SEGMENT_BYTES + 1)
    assert segments.complete
    assert segments.bytes_of(1) == BLOCK_BYTES


def test_a_leased_segment_that_leaves_is_noticed() -> None:
    """Readers look again when a departure was counted; of unleased ones nobody needs to know."""
    segments = Segments(DEFAULT_LAYOUT, 2 * SEGMENT_BYTES)
    segments.land(0, 1)
    segments.land(1, 1)
    segments.lease(0)
    segments.leave(1)
    assert segments.departures == 0
    segments.leave(0)
    assert segments.departures == 1


@given(st.integers(1, 6 * SEGMENT_BYTES), st.data())
def test_stored_bytes_are_those_of_each_segment(length: int, data: st.DataObject) -> None:
    """Counted at once as counted one by one; the last segment may be shorter than the others."""
    count = DEFAULT_LAYOUT.count(length)
    sums = Checksums(data.draw(st.lists(st.sampled_from([0, 7]), min_size=count, max_size=count)))
    segments = Segments(DEFAULT_LAYOUT, length, sums)
    assert DEFAULT_LAYOUT.stored_bytes(sums, length) == sum(segments.bytes_of(index) for index in segments.stored())
    assert segments.stored_count == len(list(segments.stored()))


def test_a_lease_on_the_whole_keeps_everything() -> None:
    """Nothing of it may leave, whether readers have passed it or not; what leaves all the same is noticed."""
    segments = Segments(DEFAULT_LAYOUT, 3 * SEGMENT_BYTES, Checksums([1, 2, 3]))
    segments.lease(2)
    assert (list(segments.passed()), list(segments.may_leave())) == ([1, 0], [1, 0])
    segments.whole_leases += 1
    assert (list(segments.passed()), list(segments.may_leave()), list(segments.before_readers())) == ([], [], [])
    assert (segments.is_held, segments.is_leased(0), segments.has_passed) == (True, True, False)
    segments.leave(0)
    assert segments.departures == 1
