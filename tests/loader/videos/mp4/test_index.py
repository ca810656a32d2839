"""The index as a whole: which tracks, which files, and what is said of those that cannot be read."""

from __future__ import annotations

import struct
import time

import pytest
from support.lengths import ordinarily
from support.mp4_boxes import FTYP, SOUND_ENTRY, HandTrack, box, film, full, reads_of

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo, VideoError
from forebay_loader.videos.mp4.index import Mp4Index, check_boxes, read_index

SOUND = HandTrack(sizes=(5, 5), handler=b"soun", entries=SOUND_ENTRY, number=2, timescale=48000, deltas=(1024, 1024))


def index_of(clip: bytes) -> Mp4Index:
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


def test_the_first_of_each_sort() -> None:
    """Other tracks are passed over, and so are others of the same sort."""
    text = HandTrack(handler=b"text", number=3)
    index = index_of(film(text, SOUND, HandTrack(number=4), HandTrack(sizes=(1,), number=5)))
    assert (index.video.frames, index.audio and index.audio.codec, index.audio_fault) == (3, ".mp3", "")


def test_what_is_neither_is_not_looked_at() -> None:
    """However it is made."""
    other = HandTrack(handler=b"tmcd", entries=box(b"encv", bytes(100)), edits=[(1, 0, 7)], timescale=0, number=9)
    assert index_of(film(other, HandTrack())).video.frames == 3


def test_no_sound_is_none() -> None:
    """Nor is a track of it without samples."""
    assert index_of(film()).audio is None
    assert index_of(film(HandTrack(), HandTrack(sizes=(), handler=b"soun", entries=SOUND_ENTRY, number=2))).audio is None


def test_what_samplers_choose_by() -> None:
    """Times in seconds from 0, keyframes as frames, the rate of the sound."""
    track = HandTrack(sizes=[1] * 4, shifts=(0, 20, -10, -10), sync=(1, 2), edits=[(1000, -1, 1), (40, 0, 1)])
    info = index_of(film(track, SOUND)).to_info()
    assert list(info.times_s) == [1.0, 1.01, 1.02, 1.03]
    assert (info.frames, info.duration_s, info.keyframes, info.audio_rate_hz) == (4, 1.04, (0, 3), 48000)
    assert (info.width, info.height, info.rotation_deg, info.motion) == (64, 48, 0, None)


def test_only_sound_is_no_video() -> None:
    """A typed error that names the clip."""
    with pytest.raises(UnsupportedVideo, match=r"^a\.mp4: no video track$"):
        index_of(film(SOUND))


@pytest.mark.parametrize(
    "data", [b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81" * 4, b"RIFF\0\0\0\0AVI LIST....", b"\xff\xd8\xff\xe0" * 8, bytes(99), b"a" * 99]
)
def test_another_kind_of_file_is_not_read(data: bytes) -> None:
    """Whatever its name ends with; the begin is shown."""
    with pytest.raises(UnsupportedVideo, match="no MP4: it begins with"):
        index_of(data)


@pytest.mark.parametrize("clip", [b"", b"abc", FTYP[:12]])
def test_next_to_nothing_is_corrupt(clip: bytes) -> None:
    """A member of zero bytes, and of a few."""
    with pytest.raises(CorruptVideo, match=f"it has {len(clip)} bytes"):
        index_of(clip)


def test_no_moov_is_corrupt() -> None:
    """A recording that was never ended: its length is in the text."""
    with pytest.raises(CorruptVideo, match="no box moov in its 132 bytes"):
        index_of(FTYP + box(b"mdat", bytes(100)))


@pytest.mark.parametrize(
    ("clip", "why"),
    [
        (FTYP + box(b"moov", box(b"cmov")), "compressed"),
        (film(HandTrack(sizes=()), more=box(b"mvex")), "fragmented"),
        (film(HandTrack(edits=[(10, 0, 1), (10, 20, 1)])), "cut into pieces by an edit list of 2 edits"),
    ],
)
def test_what_is_left_to_the_demuxer(clip: bytes, why: str) -> None:
    """With the reason."""
    with pytest.raises(LeftToDemuxer, match=why):
        index_of(clip)


def test_segments_that_an_index_names_are_there() -> None:
    """A fragmented file that was cut between two of them looks whole else."""
    for version, more in ((0, struct.pack(">II", 0, 0)), (1, bytes(16))):
        sidx = full(
            b"sidx", struct.pack(">II", 1, 1000), more, struct.pack(">HH", 0, 2), struct.pack(">6I", 8, 1, 0, 8, 1, 0), version=version
        )
        clip = FTYP + sidx + box(b"moof") + box(b"mdat")
        check_boxes(reads_of(clip)[0], len(clip))
        with pytest.raises(CorruptVideo, match="cut short: its index names segments"):
            check_boxes(reads_of(clip[:-8])[0], len(clip) - 8)


def test_files_without_a_brand() -> None:
    """QuickTime's older ones begin with anything."""
    assert index_of(film(ftyp=b"")).video.frames == 3
    assert index_of(film(ftyp=box(b"wide"), moov_first=False)).video.frames == 3


MILLION = ordinarily(100_000, of=1_000_000, what="boxes of each sort that takes long to look at")
MANY = {  # films with so many boxes of the smallest size
    "in the file": lambda count: FTYP + box(b"free") * count + film(ftyp=b""),
    "in moov": lambda count: film(more=box(b"free") * count),
    "in stbl": lambda count: film(HandTrack(more=box(b"sbgp", bytes(8)) * count)),
    "tracks": lambda count: film(more=box(b"trak") * count),
}


@pytest.mark.parametrize("where", MANY)
def test_a_million_boxes_end(where: str) -> None:
    """In an index or a typed error; the time grows with their number, not with its square."""
    count = 1_000_000 if where == "in moov" else MILLION  # what they take of memory: ../test_bad_input.py
    few, lots = MANY[where](count // 50), MANY[where](count)
    began = time.process_time()
    outcome(few)
    lap = time.process_time()
    outcome(lots)
    assert time.process_time() - lap < 500 * max(lap - began, 0.01)  # 50 times as many; a square would be 2,500 times as long


def outcome(clip: bytes) -> str:
    try:
        return repr(index_of(clip).video)
    except VideoError as error:
        return str(error)
