"""One run of samples in a fragment (trun, ISO/IEC 14496-12, 8.8.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.video.mp4.boxes import Box, Counts
from forebay_loader.video.mp4.chunks import starts_of
from forebay_loader.video.mp4.sample_table import SampleTable, pcm_units

__all__ = ["SampleDefaults", "TrackRun", "read_run"]

# Flags of the box: what is there.
OFFSET, FIRST_FLAGS = 0x1, 0x4
# Signed in both versions, as in ctts.
FIELDS = {0x100: ("duration", ">u4"), 0x200: ("size", ">u4"), 0x400: ("flags", ">u4"), 0x800: ("shift", ">i4")}
# Of a sample's flags (8.8.3.1): no sync sample, or made of others. FFmpeg takes for a keyframe what is neither, and so do we.
NOT_KEY = 0x00010000 | 0x01000000


@dataclass(frozen=True)
class SampleDefaults:
    """Of a track's or a fragment's samples: the number of their description, their duration in ticks, bytes, flags."""

    description: int = 0
    duration: int = 0
    size: int = 0
    flags: int = 0


@dataclass(frozen=True)
class TrackRun:
    """A run before its samples are spread: ``total`` of them, ``offset`` bytes from the fragment's base (None: behind the run before),
    ``rows`` with the fields that each sample has of its own, None without any."""

    total: int
    offset: Optional[int]
    first_flags: Optional[int]
    rows: Optional[NDArray[Any]]
    defaults: SampleDefaults

    @property
    def bytes(self) -> int:
        """Of all its samples."""
        return int(self._column("size").sum()) if self._has("size") else self.total * self.defaults.size

    def holds_pcm(self, frame_bytes: int) -> bool:
        """Whether each sample is one frame of uncompressed sound: there are as many as ticks, and no row says more."""
        return self.rows is None and self.defaults.duration == 1 and 0 < frame_bytes == self.defaults.size

    def pcm(self, begin: int, dts: int) -> SampleTable:
        table = pcm_units(numpy.array([begin]), numpy.array([self.total]), self.defaults.size)
        table.dts[:] += dts
        return table

    def samples(self, begin: int, dts: int, sound: bool) -> SampleTable:
        """The samples, the first at byte ``begin`` and tick ``dts``. Their number is bounded by whoever calls."""
        sizes, durations = self._column("size"), self._column("duration")
        flags = self._column("flags")
        if self.first_flags is not None and self.total:
            flags[0] = self.first_flags
        return SampleTable(
            offsets=begin + starts_of(sizes),
            sizes=sizes,
            dts=dts + starts_of(durations),
            durations=durations,
            shifts=self._column("shift"),
            key=numpy.ones(self.total, numpy.bool_) if sound else flags & NOT_KEY == 0,
        )

    def _has(self, name: str) -> bool:
        return self.rows is not None and name in (self.rows.dtype.names or ())

    def _column(self, name: str) -> Counts:
        if self.rows is not None and self._has(name):
            column: Counts = self.rows[name].astype(numpy.int64)
            return column
        return numpy.full(self.total, getattr(self.defaults, name, 0), numpy.int64)


def read_run(trun: Box, defaults: SampleDefaults) -> TrackRun:
    """Raises ``CorruptVideo`` where the box has no room for what its flags announce."""
    total, flags, place = trun.number(4), trun.flags, 8
    offset = first_flags = None
    if flags & OFFSET:
        offset, place = trun.number(place, ">i"), place + 4
    if flags & FIRST_FLAGS:
        first_flags, place = trun.number(place), place + 4
    fields = [field for flag, field in FIELDS.items() if flags & flag]
    return TrackRun(total, offset, first_flags, trun.rows(place, total, fields) if fields else None, defaults)
