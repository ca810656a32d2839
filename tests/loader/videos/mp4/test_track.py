"""What must be read and decoded for the frames that are wanted."""

from __future__ import annotations

from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import HandTrack, film, reads_of

from forebay_loader.videos.mp4.index import read_index
from forebay_loader.videos.mp4.track import DecodeGroup, Track


def track_of(**how: object) -> Track:
    clip = film(HandTrack(**how))  # type: ignore[arg-type]
    return read_index(reads_of(clip)[0], len(clip), "a.mp4").video


def closed(frames: int = 30, gop: int = 10) -> Track:
    return track_of(sizes=[100] * frames, sync=range(1, frames + 1, gop))


# Shown: I0 b1 b2 P3 b4 b5 I6 b7 b8 P9; in the file I0 P3 b1 b2 I6 b4 b5 P9 b7 b8. b4 and b5 lead I6.
OPEN = {
    "sizes": [10] * 10,
    "shifts": [0, 20, -10, -10, 20, -10, -10, 20, -10, -10],
    "sync": (1, 5),
}


def test_decoding_begins_at_the_keyframe_before() -> None:
    """And ends with the last sample that is wanted; groups without a wanted frame are left out."""
    assert closed().needed([3, 7, 25]) == [DecodeGroup(0, 8, (3, 7)), DecodeGroup(20, 26, (25,))]


@pytest.mark.parametrize("frame", [-1, 30])
def test_a_frame_that_there_is_not(frame: int) -> None:
    """Is an error, never another frame."""
    with pytest.raises(IndexError, match="of 30"):
        closed().needed([3, frame])


def test_a_leading_picture_needs_the_keyframe_before_too() -> None:
    """It follows its keyframe in the file and is shown before it, so it may be made of pictures of both groups."""
    track = track_of(**OPEN)
    assert track.order.tolist() == [0, 2, 3, 1, 5, 6, 4, 8, 9, 7]
    assert list(track.leading) == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert track.needed([4]) == [DecodeGroup(0, 6, (4,))]
    assert track.needed([6, 7]) == [DecodeGroup(4, 9, (6, 7))]


def test_what_overlaps_is_decoded_once() -> None:
    """A leading picture's group, and one that begins inside it."""
    assert track_of(**OPEN).needed([5, 8, 1]) == [DecodeGroup(0, 10, (1, 5, 8))]


def test_without_a_keyframe_before_decoding_begins_at_the_first_sample() -> None:
    """As in a clip cut from a broadcast, and of leading pictures of the first keyframe."""
    assert track_of(sync=(3,)).needed([1]) == [DecodeGroup(0, 2, (1,))]
    assert track_of(sync=()).needed([1]) == [DecodeGroup(0, 2, (1,))]
    assert track_of(shifts=(20, -10, -5), sync=(1,)).needed([0]) == [DecodeGroup(0, 2, (0,))]


def test_bytes_of_neighbours_are_one_span() -> None:
    """Samples that lie one after the other; a gap that is worth less than a request of its own is read too."""
    track = closed()
    begin = int(track.offsets[0])
    groups = track.needed([3, 25])
    assert track.byte_spans(groups) == [(begin, begin + 400), (begin + 2000, begin + 2600)]
    assert track.byte_spans(groups, gap_bytes=1599) == track.byte_spans(groups)
    assert track.byte_spans(groups, gap_bytes=1600) == [(begin, begin + 2600)]


def test_bytes_of_another_track_are_left_out() -> None:
    """Where sound lies between the pictures."""
    clip = film(HandTrack(sizes=[100] * 4), HandTrack(sizes=[7] * 4, number=2, handler=b"text"))
    track = read_index(reads_of(clip)[0], len(clip), "a.mp4").video
    spans = track.byte_spans(track.needed(range(4)))
    assert [end - begin for begin, end in spans] == [100] * 4
    assert [after[0] - before[1] for before, after in pairwise(spans)] == [7] * 3


def test_a_sample_without_bytes_is_no_span() -> None:
    """There is nothing to read."""
    assert track_of(sizes=(0, 0)).byte_spans([DecodeGroup(0, 2, (0, 1))]) == []


@given(st.data())
def test_groups_cover_what_is_wanted_and_do_not_overlap(data: st.DataObject) -> None:
    """Each frame is in the one group that decodes its sample, from a keyframe that suffices; spans hold each of its bytes."""
    count = data.draw(st.integers(1, 24))
    sync = data.draw(st.lists(st.integers(1, count), unique=True))
    shifts = data.draw(st.lists(st.integers(-3, 3).map(lambda step: step * 10), min_size=count, max_size=count))
    track = track_of(sizes=[5] * count, sync=sorted(sync), shifts=shifts)
    wanted = data.draw(st.lists(st.integers(0, count - 1)))
    groups = track.needed(wanted)
    assert sorted(frame for group in groups for frame in group.frames) == sorted(set(wanted))
    assert all(before.end <= after.first for before, after in pairwise(groups))
    spans = track.byte_spans(groups)
    for group in groups:
        assert group.first == 0 or track.key[group.first]
        for frame in group.frames:
            sample = int(track.order[frame])
            assert group.first <= sample < group.end
            keys = [number for number in range(sample + 1) if track.key[number]]
            usual = keys[-1] if keys else 0
            if track.leading[sample]:
                assert group.first <= (keys[-2] if len(keys) > 1 else 0)
            assert group.first <= usual
        for sample in range(group.first, group.end):
            offset = int(track.offsets[sample])
            assert any(begin <= offset and offset + 5 <= end for begin, end in spans)


def test_times_begin_at_0_or_later() -> None:
    """A first frame that would be shown before that moves all; they end with the last frame, not the last sample."""
    assert track_of(shifts=(-5, -5, -5)).times_s.tolist() == [0.0, 0.01, 0.02]
    assert track_of(edits=[(5, -1, 1), (30, 0, 1)]).times_s.tolist() == [0.005, 0.015, 0.025]
    assert track_of(shifts=(-5, -5, -5)).end_s == pytest.approx(0.03)
    assert track_of(**OPEN).end_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "samples"),
    [(0, 0.03, (0, 3)), (0.005, 0.0101, (0, 2)), (0.01, 0.02, (1, 2)), (0.025, 9, (2, 3)), (5, 9, (3, 3)), (-1, 0, (0, 0))],
)
def test_sound_between_two_times(begin_s: float, end_s: float, samples: tuple[int, int]) -> None:
    """The samples that lie there, in part at the ends."""
    group = track_of().between(begin_s, end_s)
    assert (group.first, group.end) == samples


def test_many_samples_are_no_burden() -> None:
    """Of a film of hours, a thousand frames are found without a step for each sample."""
    track = track_of(sizes=[2] * 100_000, one_size=2, in_chunks=[100_000], sync=range(1, 100_001, 100))
    assert len(track.needed(numpy.arange(0, 100_000, 100).tolist())) == 1000


def test_the_keyframe_before_one() -> None:
    """Another place to begin, where the nearest brings no picture; the track's begin is the last."""
    track = closed()
    assert [track.key_before(sample) for sample in (25, 20, 10, 0)] == [20, 10, 0, None]


def test_what_leads_the_keyframe_that_decoding_begins_at() -> None:
    """Frames 4 and 5 lead I6, sample 4; decoded from there they lack what they are made of, and from sample 0 they do not."""
    track = track_of(**OPEN)
    assert [frame for frame in range(10) if track.leads(frame, 4)] == [4, 5]
    assert not any(track.leads(frame, 0) for frame in (-5, *range(10)))
