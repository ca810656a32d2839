"""The boxes of one track (trak, ISO/IEC 14496-12, 8.3 to 8.7): headers, tables and edits become a ``Track``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount, Counts, needed_box
from forebay_loader.videos.mp4.sample_entry import UNCOMPRESSED, SampleEntry, read_sample_entry
from forebay_loader.videos.mp4.sample_table import SampleTable, check_spans, read_sample_table
from forebay_loader.videos.mp4.track import Coded, Track, leading, trusted_keys

__all__ = ["SOUND", "VIDEO", "Edit", "Movie", "Trak", "apply_edit", "handler_of", "read_edit", "read_movie", "read_trak", "turn_of"]


# Edit lists (elst, ISO/IEC 14496-12, 8.6.6): which part of a track is shown, and when.
#
# An edit shows the media from ``media_time`` for its duration; media time -1 shows nothing for that long. The usual ones are an empty edit
# that delays a track, and one edit that leaves out what a decoder or encoder needed before the first frame. What cuts a track into pieces
# is left to FFmpeg's demuxer, and another speed is not read: a sample would have two presentation times.
MAX_TICKS = 2**60  # sums of these and of decode times stay in 64 bits
NORMAL_SPEED = (1, 0)


@dataclass(frozen=True)
class Edit:
    """Media from tick ``begin`` to ``end`` (None: to its last) of the track is shown from tick ``shown`` on."""

    begin: int
    end: Optional[int]
    shown: int


def read_edit(elst: Box, timescale: int, movie_timescale: int) -> Optional[Edit]:
    """The edit that shows something, in ticks of the track (``timescale`` a second); durations in the box are the movie's. None without
    entries: all is shown. Raises ``CorruptVideo`` for times beyond reason and a list that shows nothing, ``UnsupportedVideo`` for another
    speed, ``LeftToDemuxer`` for several pieces."""
    rows = elst.rows(8, elst.number(4), ">u8,>i8,>i2,>i2" if elst.version == 1 else ">u4,>i4,>i2,>i2")
    found: Optional[Edit] = None
    movie_ticks = 0
    for duration, begin, *speed in rows.tolist():
        shown, movie_ticks = _rescaled(movie_ticks, timescale, movie_timescale), movie_ticks + duration
        if max(begin, _rescaled(movie_ticks, timescale, movie_timescale)) > MAX_TICKS:
            raise CorruptVideo(f"an edit shows {duration} ticks from tick {begin}")
        if begin >= 0:
            if tuple(speed) != NORMAL_SPEED:
                raise UnsupportedVideo(f"an edit shows the media at speed {speed[0]}")
            if found is not None:
                raise LeftToDemuxer(f"cut into pieces by an edit list of {len(rows)} edits")
            # Without a duration all that follows is shown (8.6.6.3).
            found = Edit(begin, begin + _rescaled(duration, timescale, movie_timescale) if duration else None, shown)
    if len(rows) and found is None:
        raise CorruptVideo("its edit list shows nothing")
    return found


def _rescaled(ticks: int, timescale: int, movie_timescale: int) -> int:
    """To the nearest tick of the track."""
    return (ticks * timescale + movie_timescale // 2) // movie_timescale


def apply_edit(edit: Optional[Edit], times: Counts, durations: Counts, sound: bool) -> tuple[Counts, NDArray[numpy.bool_]]:
    """``(presentation times, shown)`` by sample, of composition times and durations in ticks of the media.

    A picture is shown if it begins in an edit, sound if some of it lies in one. Each sample has a time of its own, a hidden one too.
    """
    if edit is None:
        return times, numpy.ones(len(times), numpy.bool_)
    shown = times + (numpy.maximum(durations, 1) - 1 if sound else 0) >= edit.begin
    if edit.end is not None:
        shown &= times < edit.end
    return times - edit.begin + edit.shown, shown


VIDEO, SOUND = b"vide", b"soun"
SELF_CONTAINED = 1  # flag of a data reference: the media is in this file


@dataclass(frozen=True)
class Movie:
    """What tracks are read with: the movie's ``timescale`` (ticks a second), the first two of its matrix's rows, the file's ``length``."""

    timescale: int
    matrix: tuple[float, float, float, float]
    length: int


@dataclass(frozen=True)
class Trak:
    """A track's boxes, read; ``track`` makes of them what is decoded by."""

    number: int  # track_ID
    handler: bytes
    entry: SampleEntry
    timescale: int
    rotation_deg: int
    mirrored: bool
    edit: Optional[Edit]
    table: SampleTable

    def track(self, length: int) -> Track:
        """Raises ``CorruptVideo`` for samples outside of the file's ``length`` bytes, and where none is shown."""
        table = self.table
        check_spans(table, length)
        times, key = table.dts + table.shifts, trusted_keys(self.entry.decoder, table.key)
        pts, shown = apply_edit(self.edit, times, table.durations, self.handler == SOUND)
        visible = numpy.flatnonzero(shown)
        if not len(visible):
            raise CorruptVideo(f"track {self.number} shows none of its {len(table)} samples")
        return Track(
            coded=Coded(self.entry.codec, self.entry.tag, self.entry.depth), decoder=self.entry.decoder,
            extradata=self.entry.extradata, timescale=self.timescale, width=self.entry.width, height=self.entry.height,
            rotation_deg=self.rotation_deg, mirrored=self.mirrored,
            rate_hz=self.entry.rate_hz or (self.timescale if self.handler == SOUND else 0),  # 16 bits hold no 96 kHz
            channels=self.entry.channels, offsets=table.offsets, sizes=table.sizes, dts=self._decode_times(table), pts=pts,
            durations=table.durations, key=key.tobytes(), leading=leading(times, key).tobytes(),
            order=visible[numpy.argsort(pts[visible], kind="stable")],
        )  # fmt: skip

    def _decode_times(self, table: SampleTable) -> Counts:
        """On the clock of the presentation times, and none later than its sample's own."""
        moved = self.edit.shown - self.edit.begin if self.edit else 0
        return table.dts + moved + min(int(table.shifts.min(initial=0)), 0)


def handler_of(trak: Box, count: BoxCount) -> bytes:
    """What sort of track it is (hdlr, 8.4.3): ``vide``, ``soun``, others."""
    mdia = needed_box(trak.only(frozenset([b"mdia"]), count), b"mdia", b"trak")
    handler: bytes = needed_box(mdia.only(frozenset([b"hdlr"]), count), b"hdlr", b"mdia").fields(8, "4s")[0]
    return handler


def read_movie(mvhd: Box, length: int) -> Movie:
    """8.2.2."""
    long = mvhd.version == 1
    return Movie(_timescale(mvhd), _matrix(mvhd, 48 if long else 36), length)


def read_trak(trak: Box, movie: Movie, count: BoxCount) -> Trak:
    """Raises ``CorruptVideo``, ``UnsupportedVideo``, ``LeftToDemuxer``."""
    boxes = trak.only(frozenset([b"tkhd", b"edts", b"mdia"]), count)
    mdia = needed_box(boxes, b"mdia", b"trak").only(frozenset([b"mdhd", b"hdlr", b"minf"]), count)
    minf = needed_box(mdia, b"minf", b"mdia").only(frozenset([b"dinf", b"stbl"]), count)
    stbl = needed_box(minf, b"stbl", b"minf")
    stsd = needed_box(stbl.only(frozenset([b"stsd"]), count), b"stsd", b"stbl")
    handler = handler_of(trak, count)
    if handler == SOUND and any(entry.kind in UNCOMPRESSED for entry in stsd.children(None, count, skip=8)):
        raise LeftToDemuxer("uncompressed sound")
    table, description = read_sample_table(stbl, count, movie.length)
    tkhd, timescale = needed_box(boxes, b"tkhd", b"trak"), _timescale(needed_box(mdia, b"mdhd", b"mdia"))
    number = tkhd.number(20 if tkhd.version == 1 else 12)
    entry = read_sample_entry(stsd, description or 1, handler, count)
    _check_reference(minf.get(b"dinf"), entry.reference, count)
    edts = boxes[b"edts"].only(frozenset([b"elst"]), count) if b"edts" in boxes else {}
    edit = read_edit(edts[b"elst"], timescale, movie.timescale) if b"elst" in edts else None
    rotation_deg, mirrored = turn_of(*_product(_matrix(tkhd, 52 if tkhd.version == 1 else 40), movie.matrix))
    return Trak(
        number=number, handler=handler, entry=entry, timescale=timescale,
        rotation_deg=rotation_deg, mirrored=mirrored, edit=edit, table=table,
    )  # fmt: skip


def _timescale(header: Box) -> int:
    """Ticks a second, of mvhd and mdhd (8.2.2, 8.4.2)."""
    ticks = header.number(20 if header.version == 1 else 12)
    if not ticks:
        raise CorruptVideo(f"box {header.kind.decode()} at byte {header.at} has 0 ticks a second")
    return ticks


def _matrix(header: Box, place: int) -> tuple[float, float, float, float]:
    """a, b, c, d of ``x' = a x + c y, y' = b x + d y`` (8.2.2, 8.3.2): the third column is for nothing, the third row moves."""
    a, b, _, c, d = header.fields(place, ">5i")
    return a / 65536, b / 65536, c / 65536, d / 65536


def turn_of(a: float, b: float, c: float, d: float) -> tuple[int, bool]:
    """How the matrix ``x' = a x + c y, y' = b x + d y`` shows a picture: the clockwise turn (y grows downwards), to the nearest quarter,
    and whether it is mirrored top to bottom before that."""
    return round(math.degrees(math.atan2(b, a)) / 90) % 4 * 90, a * d < b * c


def _product(track: tuple[float, float, float, float], movie: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """The track's matrix, then the movie's."""
    (a, b, c, d), (e, f, g, h) = track, movie
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _check_reference(dinf: Optional[Box], number: int, count: BoxCount) -> None:
    """Raises ``UnsupportedVideo`` where the media is in another file (dref, 8.7.2): offsets are that one's."""
    dref = dinf.only(frozenset([b"dref"]), count).get(b"dref") if dinf else None
    references = enumerate(dref.children(None, count, skip=8), 1) if dref else ()
    entry = next((child for index, child in references if index == number), None)
    if entry is not None and not entry.flags & SELF_CONTAINED and len(entry.data) > 4:
        raise UnsupportedVideo("its media is in another file")
