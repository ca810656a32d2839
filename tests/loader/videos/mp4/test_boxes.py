"""Boxes: sizes in each of their forms, and nothing read or made where there is no room for it."""

from __future__ import annotations

import struct

import pytest
from support.mp4_boxes import FTYP, HandTrack, Spans, box, film, reads_of

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import MAX_BOXES, MAX_INDEX_BYTES, Box, BoxCount, BoxFile, BoxPlace
from forebay_loader.videos.mp4.index import read_index


def boxed(payload: bytes, kind: bytes = b"moov") -> Box:
    return Box(kind, 0, memoryview(payload))


def test_children_are_found_in_their_order() -> None:
    """Each with its payload; four zeros at the end, as QuickTime writes them, are nothing."""
    found = list(boxed(box(b"free", b"ab") + box(b"mdhd") + bytes(4)).children(None, BoxCount()))
    assert [(child.kind, bytes(child.data)) for child in found] == [(b"free", b"ab"), (b"mdhd", b"")]


def test_two_of_a_kind_contradict_each_other() -> None:
    """Of what there is one of."""
    parent = boxed(box(b"free") + box(b"free") + box(b"mdhd") * 2)
    with pytest.raises(CorruptVideo, match="two boxes mdhd in moov"):
        parent.only(frozenset([b"mdhd"]), BoxCount())
    assert parent.only(frozenset([b"trak"]), BoxCount()) == {}


@pytest.mark.parametrize("count", [3, 2**32 - 1])
def test_a_table_has_the_rows_that_fit(count: int) -> None:
    """No array is made for a count that the box has no room for."""
    assert boxed(bytes(11)).rows(3, 2, ">u4").tolist() == [0, 0]
    with pytest.raises(CorruptVideo, match=f"{count} rows"):
        boxed(bytes(11)).rows(3, count, ">u4")


def test_boxes_are_counted() -> None:
    """Those of all lists together; one more than the limit is an error."""
    count = BoxCount(3)
    parent = boxed(box(b"free") * 2)
    list(parent.children(None, count))
    with pytest.raises(CorruptVideo, match="more boxes than 3"):
        list(parent.children(None, count))
    assert BoxCount().left == MAX_BOXES


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


def test_an_index_has_an_end() -> None:
    """A box that says it is moov is not read if no index is as long, however long the file is."""
    file, spans = opened(FTYP)
    with pytest.raises(CorruptVideo, match="more than an index has"):
        file.load(BoxPlace(b"moov", 24, 8, MAX_INDEX_BYTES + 1))
    assert spans == []
