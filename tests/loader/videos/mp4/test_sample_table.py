"""Sample tables: sizes, times and keyframes of films made by hand; chunks: which samples each holds, and where these begin."""

from __future__ import annotations

import struct

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import SOUND_ENTRY, HandTrack, box, film, full, patched, places, reads_of, table

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.index import Mp4Index, read_index
from forebay_loader.videos.mp4.sample_table import chunk_offsets, chunk_samples, sample_offsets

STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def index_of(*tracks: HandTrack, **how: object) -> Mp4Index:
    clip = film(*tracks, **how)  # type: ignore[arg-type]
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


def changed(track: HandTrack, kind: bytes, place: int, form: str, *values: int) -> bytes:
    """The film with numbers of its own at byte ``place`` of a table's payload."""
    clip = film(track)
    begin, _ = places(clip, *STBL, kind)[0]
    return patched(clip, begin + 8 + place, form, *values)


def refused(clip: bytes, match: str) -> None:
    with pytest.raises(CorruptVideo, match=match):
        read_index(reads_of(clip)[0], len(clip), "a.mp4")


@pytest.mark.parametrize(
    ("track", "sizes"),
    [
        (HandTrack(sizes=(10, 0, 30)), [10, 0, 30]),
        (HandTrack(sizes=(0, 0, 0), one_size=7), [7, 7, 7]),
        (HandTrack(sizes=(3, 15, 1), size_bits=4), [3, 15, 1]),
        (HandTrack(sizes=(3, 15), size_bits=4), [3, 15]),
        (HandTrack(sizes=(3, 255, 1), size_bits=8), [3, 255, 1]),
        (HandTrack(sizes=(3, 40_000, 1), size_bits=16), [3, 40_000, 1]),
    ],
)
def test_sizes_in_each_of_their_forms(track: HandTrack, sizes: list[int]) -> None:
    """stsz, one size for all, and stz2 of 4, 8 and 16 bits: bytes of the media are where they were put."""
    clip = film(track)
    video = read_index(reads_of(clip)[0], len(clip), "a.mp4").video
    assert video.sizes.tolist() == sizes
    begin = places(clip, b"mdat")[0][0] + 8
    assert video.offsets.tolist() == [begin + sum(sizes[:number]) for number in range(len(sizes))]


def test_times_are_sums() -> None:
    """Of durations, with the composition offsets beside them."""
    video = index_of(HandTrack(sizes=[1] * 4, deltas=(10, 5, 0, 20), shifts=(5, 20, -5, 0))).video
    assert video.pts.tolist() == [5, 30, 10, 15]
    assert video.dts.tolist() == [-5, 5, 10, 10]
    assert video.durations.tolist() == [10, 5, 0, 20]
    assert video.order.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize(("sync", "key"), [(None, [1, 1, 1]), ((), [0, 0, 0]), ((1, 3), [1, 0, 1])])
def test_without_the_box_all_samples_are_sync(sync: tuple[int, ...] | None, key: list[int]) -> None:
    """8.6.2: and with an empty one, none."""
    assert list(index_of(HandTrack(sync=sync)).video.key) == key


@pytest.mark.parametrize(
    "more",
    [
        table(b"stps", ">I", [(3,)]),
        full(b"sbgp", b"rap ", struct.pack(">5I", 2, 2, 0, 1, 1)),
        full(b"sbgp", b"roll", struct.pack(">3I", 1, 3, 1))
        + full(b"sbgp", b"rap ", bytes(4), struct.pack(">5I", 2, 2, 0, 9, 1), version=1),
    ],
)
def test_open_groups_begin_at_samples_too(more: bytes) -> None:
    """QuickTime's partial sync samples, and the sample group of random access points."""
    assert list(index_of(HandTrack(sync=(1,), more=more)).video.key) == [1, 0, 1]


@pytest.mark.parametrize("number", [0, 4, 2**32 - 1])
def test_a_sync_sample_is_one_of_them(number: int) -> None:
    """Numbers begin at 1."""
    refused(film(HandTrack(sync=(number,))), f"names samples {number} to {number} of 3")


def test_samples_that_no_row_names_are_no_smaller_than_a_few_bytes() -> None:
    """Each costs more memory than two bytes of a file: so many of them are nobody's, though the file has their bytes."""
    clip = film(HandTrack(sizes=[2] * 3000, one_size=2, in_chunks=[3000], deltas=[1]))
    at = places(clip, *STBL, b"stts")[0][0] + 16
    refused(patched(clip, at, ">I", 3000), "3000 samples of 2 bytes")


def test_time_does_not_go_back() -> None:
    """A duration of more than 31 bits was meant negative."""
    refused(changed(HandTrack(), b"stts", 12, ">I", 2**31), "goes back in time")


@pytest.mark.parametrize("kind", [b"ima4", b"sowt", b"lpcm"])
def test_packets_that_are_counted_in_frames_are_left_to_the_demuxer(kind: bytes) -> None:
    """QuickTime's compressed sound of old, and uncompressed sound."""
    entries = box(kind, SOUND_ENTRY[8:])
    with pytest.raises(LeftToDemuxer):
        index_of(HandTrack(), HandTrack(sizes=[0] * 9, one_size=1, handler=b"soun", entries=entries, number=2))


def boxed(data: bytes) -> Box:
    return Box(data[4:8], 0, memoryview(data)[8:])


def stsc(*rows: tuple[int, int, int]) -> Box:
    return boxed(table(b"stsc", ">III", rows))


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 90), max_size=20))
def test_samples_lie_one_after_the_other_in_their_chunk(in_chunks: list[int], sizes: list[int]) -> None:
    """As a loop over chunks and samples finds them; chunks may be empty, and may be more than the samples need."""
    in_chunks[len(in_chunks) :] = [1] * max(0, len(sizes) - sum(in_chunks))
    begins = [1000 * number for number in range(len(in_chunks))]
    expected, left = [], list(sizes)
    for begin, count in zip(begins, in_chunks, strict=True):
        at = begin
        for size in left[:count]:
            expected.append(at)
            at += size
        left = left[count:]
    held, _ = chunk_samples(stsc(*((i + 1, n, 1) for i, n in enumerate(in_chunks))), len(in_chunks), len(sizes))
    found = sample_offsets(numpy.array(begins, numpy.int64), held, numpy.array(sizes, numpy.int64))
    assert found.tolist() == expected


def test_a_row_goes_on_to_the_next() -> None:
    """And the last to the last chunk; rows behind it are for nothing."""
    held, description = chunk_samples(stsc((1, 2, 1), (3, 1, 1), (90, 5, 7)), 5, 7)
    assert held.tolist() == [2, 2, 1, 1, 1]
    assert description == 1


def test_a_count_beyond_all_samples_is_cut() -> None:
    """Before anything is spread by it."""
    held, _ = chunk_samples(stsc((1, 2**32 - 1, 1)), 3, 5)
    assert held.tolist() == [5, 0, 0]


def test_samples_have_one_description() -> None:
    """Decoders are made of one; a row that no sample uses may name another."""
    with pytest.raises(UnsupportedVideo, match="2 descriptions"):
        chunk_samples(stsc((1, 1, 1), (2, 1, 2)), 2, 2)
    assert chunk_samples(stsc((1, 2, 2), (2, 1, 1)), 2, 2)[1] == 2


def test_offsets_are_of_32_or_64_bits() -> None:
    """Those of 64 are compared with the file before they become signed numbers."""
    assert chunk_offsets({b"stco": boxed(table(b"stco", ">I", [(7,), (2**32 - 1,)]))}, 100).tolist() == [7, 2**32 - 1]
    assert chunk_offsets({b"co64": boxed(table(b"co64", ">Q", [(7,), (2**40,)]))}, 2**41).tolist() == [7, 2**40]
    with pytest.raises(CorruptVideo, match=str(2**63)):
        chunk_offsets({b"co64": boxed(table(b"co64", ">Q", [(2**63,)]))}, 100)
    with pytest.raises(CorruptVideo, match="no box stco in stbl"):
        chunk_offsets({}, 100)
