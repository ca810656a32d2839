"""Chunks: which samples each holds, and where these begin."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import table

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.chunks import chunk_offsets, chunk_samples, cut_runs, sample_offsets


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


@pytest.mark.parametrize("rows", [((2, 1, 1),), ((1, 1, 1), (1, 1, 1)), ((1, 1, 1), (3, 1, 1), (2, 1, 1)), ()])
def test_rows_that_go_back_are_refused(rows: tuple[tuple[int, int, int], ...]) -> None:
    """So is a first row that is not of the first chunk, and none."""
    with pytest.raises(CorruptVideo, match="stsc"):
        chunk_samples(stsc(*rows), 5, 5)


def test_chunks_must_hold_all_samples() -> None:
    """Else some would have no place."""
    with pytest.raises(CorruptVideo, match="7 samples, of which 2 chunks hold 6"):
        chunk_samples(stsc((1, 3, 1)), 2, 7)


def test_a_count_beyond_all_samples_is_cut() -> None:
    """Before anything is spread by it."""
    held, _ = chunk_samples(stsc((1, 2**32 - 1, 1)), 3, 5)
    assert held.tolist() == [5, 0, 0]


def test_samples_have_one_description() -> None:
    """Decoders are made of one; a row that no sample uses may name another."""
    with pytest.raises(UnsupportedVideo, match="2 descriptions"):
        chunk_samples(stsc((1, 1, 1), (2, 1, 2)), 2, 2)
    assert chunk_samples(stsc((1, 2, 2), (2, 1, 1)), 2, 2)[1] == 2


def test_no_samples_have_none() -> None:
    """The moov of a fragmented file."""
    held, description = chunk_samples(stsc(), 0, 0)
    assert (held.tolist(), description) == ([], 0)


def test_offsets_are_of_32_or_64_bits() -> None:
    """Those of 64 are compared with the file before they become signed numbers."""
    assert chunk_offsets({b"stco": boxed(table(b"stco", ">I", [(7,), (2**32 - 1,)]))}, 100).tolist() == [7, 2**32 - 1]
    assert chunk_offsets({b"co64": boxed(table(b"co64", ">Q", [(7,), (2**40,)]))}, 2**41).tolist() == [7, 2**40]
    with pytest.raises(CorruptVideo, match=str(2**63)):
        chunk_offsets({b"co64": boxed(table(b"co64", ">Q", [(2**63,)]))}, 100)
    with pytest.raises(CorruptVideo, match="no box stco in stbl"):
        chunk_offsets({}, 100)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.integers(0, 2**23))
def test_cut_runs_never_exceed_the_total(counts: list[int], total: int) -> None:
    """Each is at most what it was, and only the last that has any is less."""
    cut = cut_runs(numpy.array(counts, numpy.int64), total).tolist()
    assert sum(cut) == min(sum(counts), total)
    assert all(0 <= after <= before for after, before in zip(cut, counts, strict=True))
    shortened = [index for index, (after, before) in enumerate(zip(cut, counts, strict=True)) if after < before]
    assert all(cut[later] == 0 for later in shortened[1:])
    assert all(second == first + 1 or counts[first + 1 : second] == [0] * (second - first - 1) for first, second in pairwise(shortened))


def test_a_count_that_the_box_has_no_room_for() -> None:
    """Is refused before rows are made."""
    data = bytearray(table(b"stsc", ">III", [(1, 1, 1)]))
    struct.pack_into(">I", data, 12, 2**32 - 1)
    with pytest.raises(CorruptVideo, match="4294967295 rows"):
        chunk_samples(boxed(bytes(data)), 1, 1)
