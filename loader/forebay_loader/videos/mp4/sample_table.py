"""Sample tables (ISO/IEC 14496-12, 8.5 to 8.7): for each sample of a track its place, size, times and whether decoding can begin at it.

Runs are spread with numpy: a film of two hours has half a million samples. A run's count comes from the file and may be anything; each is
cut to the number of samples there are before it is spread, and that number is bounded by the box that names their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import MAX_ROWS, Box, BoxCount, Counts, needed_box

__all__ = [
    "MAX_SAMPLES",
    "SampleTable",
    "check_spans",
    "chunk_offsets",
    "chunk_samples",
    "cut_runs",
    "read_sample_table",
    "sample_offsets",
    "starts_of",
]


# Chunks (stco, co64 and stsc, ISO/IEC 14496-12, 8.7.4 and 8.7.5): runs of samples that lie one after the other in the file.
def starts_of(lengths: Counts) -> Counts:
    """Where each begins when they lie one after the other from 0."""
    return numpy.cumsum(lengths) - lengths


def chunk_offsets(tables: dict[bytes, Box], length: int) -> Counts:
    """First bytes of the chunks (stco and co64, 8.7.5)."""
    wide = b"co64" in tables
    box = tables[b"co64"] if wide else needed_box(tables, b"stco", b"stbl")
    offsets = box.rows(8, box.number(4), ">u8" if wide else ">u4")
    if wide and len(offsets) and int(offsets.max()) > length:  # compared before it is made a signed number
        raise CorruptVideo(f"a chunk begins at byte {int(offsets.max())}; the file has {length}")
    return offsets.astype(numpy.int64)


def chunk_samples(stsc: Box, chunks: int, total: int) -> tuple[Counts, int]:
    """``(samples of each chunk, number of their description, 0 without samples)`` (stsc, 8.7.4), of ``total`` samples."""
    rows = stsc.rows(8, stsc.number(4), ">u4,>u4,>u4")
    first, samples, descriptions = (rows[name].astype(numpy.int64) for name in ("f0", "f1", "f2"))
    if chunks and total and (not len(first) or first[0] != 1 or (numpy.diff(first) <= 0).any()):
        raise CorruptVideo("box stsc does not begin with the first chunk, or goes back")
    edges = numpy.minimum(numpy.append(first, chunks + 1) - 1, chunks)
    spread = numpy.repeat(samples, numpy.diff(edges)) if chunks and total else numpy.zeros(chunks, numpy.int64)
    held = cut_runs(spread, total)
    if int(held.sum()) < total:
        raise CorruptVideo(f"{total} samples, of which {chunks} chunks hold {int(held.sum())}")
    used = set(numpy.repeat(descriptions, numpy.diff(edges))[held > 0].tolist()) if chunks and total else set()
    if len(used) > 1:
        raise UnsupportedVideo(f"its samples change between {len(used)} descriptions")
    return held, max(used, default=0)


def sample_offsets(chunks: Counts, held: Counts, sizes: Counts) -> Counts:
    """In a chunk samples lie one after the other."""
    begins = starts_of(sizes)
    first = starts_of(held)  # number of each chunk's first sample
    before = numpy.append(begins, 0)[first]  # an empty chunk at the end has none; its number is used for no sample
    offsets: Counts = begins + numpy.repeat(chunks - before, held)
    return offsets


def cut_runs(counts: Counts, total: int) -> Counts:
    """Counts of runs, cut where their sum reaches ``total``: before anything is spread by them."""
    ends: Counts = numpy.minimum(numpy.cumsum(counts), total)
    return numpy.diff(ends, prepend=0)


MAX_SAMPLES = MAX_ROWS  # 19 hours at 60 frames a second; while they are read each takes 130 bytes
EQUAL_BYTES = 8  # of the file at least, for each sample that no row names: their number is else one field, and each costs 130 bytes
MAX_DELTA = 2**31 - 1  # of a decode time: what is beyond was meant negative, which none can be

TABLES = frozenset([b"stsz", b"stz2", b"stsc", b"stco", b"co64", b"stts", b"ctts", b"stss", b"stps"])


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Samples in decode order, an array of int64 each: byte offset, size, decode time and duration in ticks, composition offset (the
    presentation time less the decode time). ``key`` is of bool: decoding can begin here."""

    offsets: Counts
    sizes: Counts
    dts: Counts
    durations: Counts
    shifts: Counts
    key: NDArray[numpy.bool_]

    def __len__(self) -> int:
        return len(self.offsets)


def check_spans(table: SampleTable, length: int) -> None:
    """Raises ``CorruptVideo`` for a sample that does not lie inside the file's ``length`` bytes."""
    outside = (table.offsets < 0) | (table.offsets > length - table.sizes)
    if outside.any():
        first = int(outside.argmax())
        begin, size = int(table.offsets[first]), int(table.sizes[first])
        raise CorruptVideo(f"sample {first} has {size} bytes from byte {begin}; the file has {length}")


def read_sample_table(stbl: Box, count: BoxCount, length: int) -> tuple[SampleTable, int]:
    """The samples of a stbl, and the number of the description (from 1) that all of them have; 0 where there are none.

    ``length`` is the file's. Raises ``CorruptVideo`` for tables that contradict each other, ``UnsupportedVideo`` where the description
    changes, ``LeftToDemuxer`` where the table does not say where packets are.
    """
    tables = stbl.only(TABLES, count)
    total, one_size, sizes = _sizes(tables)
    chunks = chunk_offsets(tables, length)
    held, description = chunk_samples(needed_box(tables, b"stsc", b"stbl"), len(chunks), total)
    if one_size == 1:  # its packets are counted in frames, as QuickTime's compressed sound of old
        raise LeftToDemuxer(f"{total} samples of {one_size} bytes that are none")
    if total > MAX_SAMPLES or (sizes is None and total * max(one_size, EQUAL_BYTES) > length):
        raise CorruptVideo(f"{total} samples of {one_size or 'various'} bytes; the file has {length}")
    sizes = numpy.full(total, one_size, numpy.int64) if sizes is None else sizes.astype(numpy.int64)
    durations = _durations(needed_box(tables, b"stts", b"stbl"), total)
    return (
        SampleTable(
            offsets=sample_offsets(chunks, held, sizes),
            sizes=sizes,
            dts=starts_of(durations),
            durations=durations,
            shifts=_shifts(tables.get(b"ctts"), total),
            key=_keys(tables, _access_points(stbl, count), total),
        ),
        description,
    )


def _sizes(tables: dict[bytes, Box]) -> tuple[int, int, Optional[NDArray[Any]]]:
    """``(samples, size of all or 0, their sizes)`` of stsz or stz2 (8.7.3)."""
    if b"stsz" in tables:
        box = tables[b"stsz"]
        one_size, total = box.fields(4, ">II")
        return total, one_size, None if one_size else box.rows(12, total, ">u4")
    box = needed_box(tables, b"stz2", b"stbl")
    bits, total = box.number(7, ">B"), box.number(8)
    if bits == 4:
        pairs = box.rows(12, (total + 1) // 2, "u1")
        return total, 0, numpy.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:total]
    if bits not in (8, 16):
        raise CorruptVideo(f"box stz2 has sizes of {bits} bits")
    return total, 0, box.rows(12, total, f">u{bits // 8}")


def _durations(stts: Box, total: int) -> Counts:
    """Ticks from each sample's decode time to the next (stts, 8.6.1.2)."""
    rows = stts.rows(8, stts.number(4), ">u4,>u4")
    counts, deltas = cut_runs(rows["f0"].astype(numpy.int64), total), rows["f1"].astype(numpy.int64)
    if int(counts.sum()) < total:
        raise CorruptVideo(f"{total} samples, of which box stts times {int(counts.sum())}")
    if len(deltas) and int(deltas[counts > 0].max(initial=0)) > MAX_DELTA:
        raise CorruptVideo("box stts goes back in time")
    return numpy.repeat(deltas, counts)


def _shifts(ctts: Optional[Box], total: int) -> Counts:
    """Composition offsets (ctts, 8.6.1.3), signed in both versions: QuickTime writes negative ones in version 0."""
    if ctts is None:
        return numpy.zeros(total, numpy.int64)
    rows = ctts.rows(8, ctts.number(4), ">u4,>i4")
    counts = cut_runs(rows["f0"].astype(numpy.int64), total)
    if int(counts.sum()) < total:
        raise CorruptVideo(f"{total} samples, of which box ctts shifts {int(counts.sum())}")
    return numpy.repeat(rows["f1"].astype(numpy.int64), counts)


def _keys(tables: dict[bytes, Box], group: Optional[Box], total: int) -> NDArray[numpy.bool_]:
    """Sync samples (stss, 8.6.2; all without that box), QuickTime's partial ones (stps), and random access points of open groups of
    pictures (sample group ``rap ``, 8.9.2 and 10.4)."""
    key = numpy.full(total, b"stss" not in tables)
    for kind in (b"stss", b"stps"):
        if kind in tables:
            numbers = tables[kind].rows(8, tables[kind].number(4), ">u4")
            if len(numbers) and not 1 <= int(numbers.min()) <= int(numbers.max()) <= total:
                raise CorruptVideo(f"box {kind.decode()} names samples {int(numbers.min())} to {int(numbers.max())} of {total}")
            key[numbers.astype(numpy.int64) - 1] = True
    if group is not None:
        place = 8 if group.version == 0 else 12
        rows = group.rows(place + 4, group.number(place), ">u4,>u4")
        counts = cut_runs(rows["f0"].astype(numpy.int64), total)
        key[: int(counts.sum())] |= numpy.repeat(rows["f1"] > 0, counts)
    return key


def _access_points(stbl: Box, count: BoxCount) -> Optional[Box]:
    """The sample group of random access points, if the track has one."""
    groups = stbl.children(frozenset([b"sbgp"]), count)
    return next((group for group in groups if group.fields(4, "4s") == (b"rap ",)), None)
