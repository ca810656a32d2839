"""MP4 files made box by box: what no encoder at hand writes, and what nobody should. No encoder and no numpy is needed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "AVC", "FTYP", "SOUND_ENTRY", "TURNED", "HandTrack", "Spans", "box", "film", "full", "patched", "places", "reads_of",
    "table",
]  # fmt: skip

Spans = list[tuple[int, int]]

IDENTITY = (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
TURNED = {
    0: IDENTITY,
    90: (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30),
    180: (-65536, 0, 0, 0, -65536, 0, 0, 0, 1 << 30),
    270: (0, -65536, 0, 65536, 0, 0, 0, 0, 1 << 30),
}


def box(kind: bytes, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return struct.pack(">I4s", len(payload) + 8, kind) + payload


def full(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def table(kind: bytes, form: str, rows: Iterable[Sequence[int]], version: int = 0) -> bytes:
    """A full box of a count and rows."""
    packed = [struct.pack(form, *row) for row in rows]
    return full(kind, struct.pack(">I", len(packed)), *packed, version=version)


FTYP = box(b"ftyp", b"isom", bytes(4), b"isomiso2")
AVC = box(b"avc1", bytes(6), b"\0\1", bytes(16), struct.pack(">HH", 64, 48), bytes(50), box(b"avcC", b"\1\2\3"))
SOUND_ENTRY = box(b".mp3", bytes(6), b"\0\1", bytes(8), struct.pack(">HH", 2, 16), bytes(4), struct.pack(">I", 48000 << 16))


@dataclass(frozen=True)
class HandTrack:
    """A track of samples of these sizes; each of the others is left to what is usual where it is None. ``in_chunks`` are samples of each
    chunk, ``edits`` are (duration, media time, rate), ``sync`` are sample numbers from 1."""

    sizes: Sequence[int] = (10, 20, 30)
    deltas: Sequence[int] | None = None
    shifts: Sequence[int] | None = None
    sync: Sequence[int] | None = None
    in_chunks: Sequence[int] | None = None
    descriptions: Sequence[int] | None = None  # of each chunk
    edits: Sequence[Sequence[int]] | None = None
    handler: bytes = b"vide"
    entries: bytes = AVC
    number: int = 1
    timescale: int = 1000
    matrix: Sequence[int] = IDENTITY
    long: bool = False  # 64-bit fields wherever there are two versions
    one_size: int = 0  # of all samples, ``sizes`` giving their number only
    size_bits: int = 0  # stz2 of so many bits
    more: bytes = b""  # boxes at the end of stbl
    reference: bytes = full(b"url ", flags=1)

    def chunks(self) -> list[int]:
        """Bytes of each chunk."""
        sizes = [self.one_size] * len(self.sizes) if self.one_size else list(self.sizes)
        sums, first = [], 0
        for count in self._in_chunks():
            sums.append(sum(sizes[first : first + count]))
            first += count
        return sums

    def trak(self, offsets: Sequence[int]) -> bytes:
        long = int(self.long)
        wide, edit = (">Q", ">qqHH") if long else (">I", ">iiHH")
        times, duration = struct.pack(wide, 0) * 2, struct.pack(wide, 0)
        named = struct.pack(">II", self.number, 0)
        tkhd = full(b"tkhd", times, named, duration, bytes(16), struct.pack(">9i", *self.matrix), bytes(8), version=long)
        mdhd = full(b"mdhd", times, struct.pack(">I", self.timescale), duration, bytes(4), version=long)
        hdlr = full(b"hdlr", bytes(4), self.handler, bytes(13))
        dinf = box(b"dinf", full(b"dref", struct.pack(">I", 1), self.reference))
        edts = b"" if self.edits is None else box(b"edts", table(b"elst", edit, ((*row, 0) for row in self.edits), long))
        return box(b"trak", tkhd, edts, box(b"mdia", mdhd, hdlr, box(b"minf", dinf, self._stbl(offsets))))

    def _stbl(self, offsets: Sequence[int]) -> bytes:
        count = len(self.sizes)
        stsd = full(b"stsd", struct.pack(">I", 1), self.entries)
        parts = [stsd, table(b"stts", ">II", ((1, delta) for delta in self.deltas or [10] * count))]
        if self.shifts is not None:
            parts.append(table(b"ctts", ">Ii", ((1, shift) for shift in self.shifts), 1))
        if self.sync is not None:
            parts.append(table(b"stss", ">I", ((number,) for number in self.sync)))
        held = self._in_chunks()
        parts.append(table(b"stsc", ">III", ((i + 1, n, (self.descriptions or [1] * len(held))[i]) for i, n in enumerate(held))))
        parts.append(self._size_table())
        parts.append(table(b"co64" if self.long else b"stco", ">Q" if self.long else ">I", ((offset,) for offset in offsets)))
        return box(b"stbl", *parts, self.more)

    def _size_table(self) -> bytes:
        count = len(self.sizes)
        if not self.size_bits:
            rows = b"" if self.one_size else struct.pack(f">{count}I", *self.sizes)
            return full(b"stsz", struct.pack(">II", self.one_size, count), rows)
        if self.size_bits == 4:
            padded = [*self.sizes, 0]
            rows = bytes(padded[i] << 4 | padded[i + 1] for i in range(0, count, 2))
        else:
            rows = struct.pack(f">{count}{'B' if self.size_bits == 8 else 'H'}", *self.sizes)
        return full(b"stz2", struct.pack(">II", self.size_bits, count), rows)

    def _in_chunks(self) -> Sequence[int]:
        return self.in_chunks if self.in_chunks is not None else [1] * len(self.sizes)


def film(
    *tracks: HandTrack, moov_first: bool = True, mdat: str = "short", movie_timescale: int = 1000, matrix: Sequence[int] = IDENTITY,
    more: bytes = b"", after: bytes = b"", ftyp: bytes = FTYP,
) -> bytes:  # fmt: skip
    """A file of these tracks, one hand-made ``HandTrack()`` without any; their chunks lie in turn. ``mdat`` is its header: short, long
    (64 bits), rest (size 0, so it is the last box). ``more`` are boxes at the end of moov, ``after`` at the end of the file."""
    tracks = tracks or (HandTrack(),)
    long = int(any(track.long for track in tracks))
    wide = ">Q" if long else ">I"
    times, duration = struct.pack(wide, 0) * 2, struct.pack(wide, 0)
    scale, turned = struct.pack(">I", movie_timescale), struct.pack(">9i", *matrix)
    mvhd = full(b"mvhd", times, scale, duration, bytes(16), turned, bytes(28), version=long)

    def moov(begin: int) -> bytes:
        offsets, _ = _laid(tracks, begin)
        return box(b"moov", mvhd, *(track.trak(where) for track, where in zip(tracks, offsets, strict=True)), more)

    _, size = _laid(tracks, 0)
    header = {
        "short": struct.pack(">I4s", size + 8, b"mdat"),
        "long": struct.pack(">I4sQ", 1, b"mdat", size + 16),
        "rest": struct.pack(">I4s", 0, b"mdat"),
    }[mdat]
    media = header + bytes(i % 251 for i in range(size))
    begin = len(ftyp) + (len(moov(0)) if moov_first else 0) + len(header)
    return ftyp + (moov(begin) + media if moov_first else media + moov(begin)) + after


def _laid(tracks: Sequence[HandTrack], begin: int) -> tuple[list[list[int]], int]:
    """Offsets of each track's chunks, one of each in turn, and the bytes of all."""
    chunks = [track.chunks() for track in tracks]
    offsets: list[list[int]] = [[] for _ in tracks]
    at = begin
    for turn in range(max(map(len, chunks))):
        for number, sizes in enumerate(chunks):
            if turn < len(sizes):
                offsets[number].append(at)
                at += sizes[turn]
    return offsets, at - begin


def places(clip: bytes, *path: bytes) -> Spans:
    """``(begin, end)`` of each box of this path, ``places(clip, b"moov", b"trak")``."""
    found: Spans = [(0, len(clip))]
    header = {b"stsd": 16, b"dref": 16}
    for depth, kind in enumerate(path):
        outer = header.get(path[depth - 1], 8) if depth else 0
        found = [(at, at + size) for begin, end in found for at, size, name in _children(clip, begin + outer, end) if name == kind]
    return found


def _children(clip: bytes, at: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", clip, at)
        size = {0: end - at, 1: struct.unpack_from(">Q", clip.ljust(at + 16), at + 8)[0]}.get(size, size)
        yield at, size, kind
        at += max(size, 8)


def patched(clip: bytes, at: int, form: str, *values: int) -> bytes:
    """The clip with these numbers at byte ``at``."""
    changed = bytearray(clip)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


def reads_of(clip: bytes) -> tuple[Callable[[int, int], bytes], Spans]:
    """A reader of the clip's bytes, and the spans that were read through it."""
    spans: Spans = []

    def read(offset: int, size: int) -> bytes:
        spans.append((offset, offset + size))
        return clip[offset : offset + size]

    return read, spans
