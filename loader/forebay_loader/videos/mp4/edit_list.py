"""Edit lists (elst, ISO/IEC 14496-12, 8.6.6): which part of a track is shown, and when.

An edit shows the media from ``media_time`` for its duration; media time -1 shows nothing for that long. The usual ones are an empty edit
that delays a track, and one edit that leaves out what a decoder or encoder needed before the first frame. What cuts a track into pieces
is left to FFmpeg's demuxer, and another speed is not read: a sample would have two presentation times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, Counts

__all__ = ["Edit", "apply_edit", "read_edit"]

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
