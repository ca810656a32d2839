"""Chunks (stco, co64 and stsc, ISO/IEC 14496-12, 8.7.4 and 8.7.5): runs of samples that lie one after the other in the file."""

from __future__ import annotations

import numpy

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, Counts, needed_box

__all__ = ["chunk_offsets", "chunk_samples", "cut_runs", "sample_offsets", "starts_of"]


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
