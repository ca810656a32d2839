"""Edit lists (elst, ISO/IEC 14496-12, 8.6.6): which part of a track is shown, and when.

An edit shows the media from ``media_time`` for its duration; media time -1 shows nothing for that long. The usual ones are an empty edit
that delays a track, and one edit that leaves out what a decoder or encoder needed before the first frame. Several cut a track into pieces.
What shows a piece twice, or at another speed, is not read: a sample would have two presentation times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, Counts

__all__ = ["Edit", "apply_edits", "read_edits"]

MAX_EDITS = 4096  # a film has one or two, an edited one some hundreds
MAX_TICKS = 2**60  # sums of these and of decode times stay in 64 bits
NORMAL_SPEED = (1, 0)


@dataclass(frozen=True)
class Edit:
    """Media from tick ``begin`` to ``end`` (None: to its last) of the track is shown from tick ``shown`` on."""

    begin: int
    end: Optional[int]
    shown: int


def read_edits(elst: Box, timescale: int, movie_timescale: int) -> list[Edit]:
    """The edits that show something, in ticks of the track (``timescale`` a second); durations in the box are the movie's. [] without
    entries: all is shown. Raises ``CorruptVideo`` for times beyond reason and a list that shows nothing, ``UnsupportedVideo`` for another
    speed or very many edits."""
    rows = elst.rows(8, elst.number(4), ">u8,>i8,>i2,>i2" if elst.version == 1 else ">u4,>i4,>i2,>i2")
    if len(rows) > MAX_EDITS:
        raise LeftToDemuxer(f"an edit list of {len(rows)} edits")
    edits: list[Edit] = []
    movie_ticks = 0
    for duration, begin, *speed in rows.tolist():
        shown, movie_ticks = _rescaled(movie_ticks, timescale, movie_timescale), movie_ticks + duration
        if max(begin, _rescaled(movie_ticks, timescale, movie_timescale)) > MAX_TICKS:
            raise CorruptVideo(f"an edit shows {duration} ticks from tick {begin}")
        if begin >= 0:
            if tuple(speed) != NORMAL_SPEED:
                raise UnsupportedVideo(f"an edit shows the media at speed {speed[0]}")
            # Without a duration all that follows is shown: fragments come later, and their end was not known (8.6.6.3).
            edits.append(Edit(begin, begin + _rescaled(duration, timescale, movie_timescale) if duration else None, shown))
    if len(rows) and not edits:
        raise CorruptVideo("its edit list shows nothing")
    return edits


def _rescaled(ticks: int, timescale: int, movie_timescale: int) -> int:
    """To the nearest tick of the track."""
    return (ticks * timescale + movie_timescale // 2) // movie_timescale


def apply_edits(edits: list[Edit], times: Counts, durations: Counts, sound: bool) -> tuple[Counts, NDArray[numpy.bool_]]:
    """``(presentation times, shown)`` by sample, of composition times and durations in ticks of the media.

    A picture is shown if it begins in an edit, sound if some of it lies in one. Each sample has a time of its own, a hidden one too.
    """
    if not edits:
        return times, numpy.ones(len(times), numpy.bool_)
    if len(edits) > 1:
        if sound:
            raise UnsupportedVideo(f"sound cut into {len(edits)} pieces")
        return _pieces(edits, times)
    edit = edits[0]
    shown = times + (numpy.maximum(durations, 1) - 1 if sound else 0) >= edit.begin
    if edit.end is not None:
        shown &= times < edit.end
    return times - edit.begin + edit.shown, shown


def _pieces(edits: list[Edit], times: Counts) -> tuple[Counts, NDArray[numpy.bool_]]:
    rows = sorted((edit.begin, MAX_TICKS if edit.end is None else edit.end, edit.shown) for edit in edits)
    begins, ends, shown_from = numpy.array(rows, numpy.int64).T
    if (begins[1:] < ends[:-1]).any():
        raise LeftToDemuxer("an edit list that shows a part twice")
    piece = numpy.maximum(numpy.searchsorted(begins, times, "right") - 1, 0)
    shown = (times >= begins[piece]) & (times < ends[piece])
    hidden = times - int(times.max(initial=0)) - 1  # below 0, so never the time of a sample that is shown
    return numpy.where(shown, times - begins[piece] + shown_from[piece], hidden), shown
