"""What must hold of whatever bytes are read as an MP4: an index that keeps to the file, or a ``VideoError`` that names the clip."""

# ruff: noqa: PT017 -- no test: what it expects of an error it says where it catches it

from __future__ import annotations

import struct
from contextlib import suppress

import numpy
from support.mp4_boxes import SOUND_ENTRY, HandTrack, box, film, full, reads_of, table

from forebay_loader.videos.errors import VideoError
from forebay_loader.videos.mp4.index import Mp4Index, check_boxes, read_index
from forebay_loader.videos.mp4.track import Track

__all__ = ["fuzz_mp4", "mp4_seeds", "read_or_refused"]


def fuzz_mp4(data: bytes) -> None:
    """A target of ``support.fuzzing``."""
    read_or_refused(data)
    with suppress(VideoError):
        check_boxes(reads_of(data)[0], len(data))


def read_or_refused(data: bytes) -> Mp4Index | None:
    """The index, checked; None where the bytes were refused. Anything else is a fault, and so is a read outside of them."""
    read, spans = reads_of(data)
    try:
        index = read_index(read, len(data), "clip.mp4")
    except VideoError as error:
        assert str(error).startswith("clip.mp4: "), error
        assert len(str(error)) < 300, error
        return None
    finally:
        assert all(0 <= begin < end <= len(data) for begin, end in spans), spans
        assert sum(end - begin for begin, end in spans) <= 3 * len(data)
    for track in (index.video, index.audio):
        if track:
            check_track(track, len(data))
    info = index.to_info()
    assert list(info.times_s) == sorted(info.times_s)
    assert info.times_s[0] >= 0
    assert info.duration_s >= info.times_s[-1]
    return index


def check_track(track: Track, length: int) -> None:
    """Samples lie in the file, frames are samples, and what they need is there."""
    samples = len(track.offsets)
    columns = (track.sizes, track.dts, track.pts, track.durations, track.key, track.leading)
    assert {len(column) for column in columns} == {samples}
    assert (track.offsets >= 0).all()
    assert (track.offsets + track.sizes <= length).all()
    assert 0 < track.frames <= samples
    assert len(numpy.unique(track.order)) == track.frames
    assert (numpy.diff(track.pts[track.order]) >= 0).all()
    assert track.rotation_deg in (0, 90, 180, 270)
    wanted = {0, track.frames // 2, track.frames - 1}
    groups = track.needed(wanted)
    assert {frame for group in groups for frame in group.frames} == wanted
    for group in groups:
        assert all(group.first <= track.order[frame] < group.end <= samples for frame in group.frames)
    assert all(0 <= begin < end <= length for begin, end in track.byte_spans(groups, 100))
    whole = track.between(0, 1e12)
    assert 0 <= whole.first <= whole.end <= samples


def mp4_seeds() -> tuple[bytes, ...]:
    """Small films with each box that is read, in each of its versions."""
    pictures = HandTrack(
        sizes=(10, 20, 30, 5), shifts=(0, 20, -10, -10), sync=(1, 2), in_chunks=(2, 2), edits=[(5, -1, 1), (40, 0, 1)],
        more=table(b"stps", ">I", [(3,)]) + full(b"sbgp", b"rap ", struct.pack(">3I", 1, 4, 1)),
    )  # fmt: skip
    sound = HandTrack(sizes=[0] * 5, one_size=9, in_chunks=(3, 2), deltas=[1] * 5, handler=b"soun", entries=SOUND_ENTRY, number=2)
    esds = full(b"esds", b"\3\x19\0\1\0\4\x11\x40\x15", bytes(11), b"\5\2\x11\x90\6\1\2")
    aac = box(b"mp4a", bytes(6), b"\0\1", bytes(8), struct.pack(">HH4xI", 2, 16, 48000 << 16), esds)
    long = HandTrack(long=True, edits=[(10, 20, 1)])
    empty = HandTrack(sizes=())
    sidx = full(b"sidx", struct.pack(">6I", 1, 1000, 0, 0, 1, 8), bytes(8))
    return (
        film(pictures, sound),
        film(pictures, HandTrack(sizes=(5, 5), handler=b"soun", entries=aac, number=2), moov_first=False, mdat="long"),
        film(long, mdat="rest"),
        film(HandTrack(sizes=(3, 4, 5), size_bits=4)),
        film(empty, HandTrack(sizes=(), handler=b"soun", entries=SOUND_ENTRY, number=2), more=box(b"mvex"), after=sidx + box(b"moof")),
    )
