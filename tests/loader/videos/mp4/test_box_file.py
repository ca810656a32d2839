"""How much of a file is read for its boxes."""

from __future__ import annotations

import struct

import pytest
from support.mp4_boxes import FTYP, HandTrack, Spans, box, film, reads_of

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import MAX_INDEX_BYTES, BoxCount, BoxFile, BoxPlace
from forebay_loader.videos.mp4.index import read_index

MEDIA = 3 << 20
TRACK = HandTrack(sizes=[MEDIA // 300] * 300)


def opened(clip: bytes) -> tuple[BoxFile, Spans]:
    read, spans = reads_of(clip)
    return BoxFile(read, len(clip), BoxCount()), spans


def kinds(file: BoxFile) -> list[bytes]:
    return [place.kind for place in file.places()]


@pytest.mark.parametrize("mdat", ["short", "long"])
@pytest.mark.parametrize("moov_first", [True, False])
def test_two_reads_make_an_index(moov_first: bool, mdat: str) -> None:
    """64 bytes at the begin, then moov, wherever it is; of three megabytes of media less than 64 bytes."""
    clip = film(TRACK, moov_first=moov_first, mdat=mdat)
    read, spans = reads_of(clip)
    index = read_index(read, len(clip), "a.mp4")
    media = (int(index.video.offsets[0]), int(index.video.offsets[-1] + index.video.sizes[-1]))
    assert len(spans) == 2
    assert sum(max(0, min(end, media[1]) - max(begin, media[0])) for begin, end in spans) < 64


def test_a_long_moov_behind_the_media_is_a_third_read() -> None:
    """Its header has to be found first: what comes behind mdat is longer than one would read without knowing."""
    clip = film(TRACK, moov_first=False, more=box(b"udta", bytes(2 << 20)))
    read, spans = reads_of(clip)
    read_index(read, len(clip), "a.mp4")
    assert len(spans) == 3
    assert spans[1][1] - spans[1][0] == 64


def test_many_small_boxes_are_few_reads() -> None:
    """A read that held nothing but boxes is followed by one twice as long."""
    file, spans = opened(FTYP + box(b"free") * 50_000)
    assert len(kinds(file)) == 50_001
    assert len(spans) < 20


def test_a_box_beyond_the_file_is_refused() -> None:
    """Whatever it is: the file was cut, or its size is a lie."""
    file, _ = opened(FTYP + struct.pack(">I4s", 500, b"mdat") + bytes(100))
    with pytest.raises(CorruptVideo, match="box mdat at byte 24 says it has 500 bytes; 108 are there"):
        kinds(file)


def test_the_last_box_may_have_no_size() -> None:
    """It reaches to the end of the file."""
    file, _ = opened(FTYP + struct.pack(">I4s", 0, b"mdat") + bytes(100))
    assert [place.end for place in file.places()] == [24, 132]


def test_a_file_shorter_than_it_was_said_is_cut() -> None:
    """What reads it gives fewer bytes than it must."""
    clip = film()
    read, _ = reads_of(clip[:100])
    with pytest.raises(CorruptVideo, match="76 bytes came from byte 24"):
        read_index(read, len(clip), "a.mp4")


def test_an_index_has_an_end() -> None:
    """A box that says it is moov is not read if no index is as long, however long the file is."""
    file, spans = opened(FTYP)
    with pytest.raises(CorruptVideo, match="more than an index has"):
        file.load(BoxPlace(b"moov", 24, 8, MAX_INDEX_BYTES + 1))
    assert spans == []


@pytest.mark.parametrize("length", [0, 1, 15])
def test_less_than_a_box_is_no_file(length: int) -> None:
    """Nothing of it is read."""
    file, spans = opened(bytes(length))
    with pytest.raises(CorruptVideo, match=f"it has {length} bytes"):
        file.begin()
    assert spans == []
