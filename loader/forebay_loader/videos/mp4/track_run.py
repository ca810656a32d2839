"""Runs of samples in a fragment (trun, ISO/IEC 14496-12, 8.8.8): read one by one, spread to samples all at once.

A film may have as many fragments as frames, and an array of one sample takes as long to make as one of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.mp4.boxes import Box, Counts
from forebay_loader.videos.mp4.chunks import starts_of
from forebay_loader.videos.mp4.sample_table import SampleTable, pcm_units

__all__ = ["PlacedRun", "SampleDefaults", "TrackRun", "read_run", "spread_runs"]

# Flags of the box: what is there.
OFFSET, FIRST_FLAGS = 0x1, 0x4
# Signed in both versions, as in ctts.
FIELDS = {0x100: ("duration", ">u4"), 0x200: ("size", ">u4"), 0x400: ("flags", ">u4"), 0x800: ("shift", ">i4")}
# Of a sample's flags (8.8.3.1): no sync sample, or made of others. FFmpeg takes for a keyframe what is neither, and so do we.
NOT_KEY = 0x00010000 | 0x01000000


class SampleDefaults(NamedTuple):
    """Of a track's or a fragment's samples: the number of their description, their duration in ticks, bytes, flags."""

    description: int = 0
    duration: int = 0
    size: int = 0
    flags: int = 0
    shift: int = 0  # none has one that is not its own


@dataclass(frozen=True)
class TrackRun:
    """``total`` samples, ``offset`` bytes from the fragment's base (None: behind the run before). ``rows`` has the fields that each has of
    its own, None without any; the first may have flags of its own."""

    total: int
    offset: Optional[int]
    first_flags: Optional[int]
    rows: Optional[NDArray[Any]]
    defaults: SampleDefaults

    def sum(self, name: str) -> int:
        """Of all samples, in ``size`` or ``duration``."""
        if self.rows is not None and name in (self.rows.dtype.names or ()):
            return int(self.rows[name].sum(dtype=numpy.int64))
        return self.total * int(getattr(self.defaults, name))


class PlacedRun(NamedTuple):
    """A run, its first byte, and the decode time of its first sample in ticks."""

    run: TrackRun
    begin: int
    dts: int


def read_run(trun: Box, defaults: SampleDefaults) -> TrackRun:
    """Raises ``CorruptVideo`` where the box has no room for what its flags announce."""
    head, total = trun.fields(0, ">II")
    place, offset, first_flags = 8, None, None
    if head & OFFSET:
        offset, place = trun.number(place, ">i"), place + 4
    if head & FIRST_FLAGS:
        first_flags, place = trun.number(place), place + 4
    row = _row(head & sum(FIELDS))
    return TrackRun(total, offset, first_flags, trun.rows(place, total, row) if row else None, defaults)


@lru_cache(maxsize=16)
def _row(flags: int) -> Optional[numpy.dtype[Any]]:
    fields = [field for flag, field in FIELDS.items() if flags & flag]
    return numpy.dtype(fields) if fields else None


def is_pcm(run: TrackRun, frame_bytes: int) -> bool:
    """Whether each sample is one frame of uncompressed sound: there are as many as ticks, and no row says more."""
    return run.rows is None and run.defaults.duration == 1 and 0 < frame_bytes == run.defaults.size


def spread_runs(placed: Iterable[PlacedRun], sound: bool, frame_bytes: int = 0) -> list[SampleTable]:
    """Their samples, in tables one after the other; their number is bounded by whoever calls. ``frame_bytes`` is that of one frame of
    uncompressed sound, else 0: such runs become units."""
    tables: list[SampleTable] = []
    for _, runs in groupby(placed, key=lambda one: (one.run.rows is None or one.run.rows.dtype.names, is_pcm(one.run, frame_bytes))):
        alike = list(runs)
        if is_pcm(alike[0].run, frame_bytes):
            tables += [pcm_units(numpy.array([begin]), numpy.array([run.total]), frame_bytes, dts) for run, begin, dts in alike]
        else:
            tables.append(_spread(alike, sound))
    return tables


def _spread(placed: list[PlacedRun], sound: bool) -> SampleTable:
    """Of runs whose samples have the same fields of their own."""
    totals = numpy.array([one.run.total for one in placed], numpy.int64)
    columns = {name: _column(name, placed, totals) for name in ("duration", "size", "flags", "shift")}
    firsts = starts_of(totals)
    own = [(first, one.run.first_flags) for first, one in zip(firsts.tolist(), placed) if one.run.total]  # noqa: B905  # strict= is not of 3.9
    for first, flags in own:
        if flags is not None:
            columns["flags"][first] = flags
    return SampleTable(
        offsets=_from(numpy.array([one.begin for one in placed], numpy.int64), columns["size"], firsts, totals),
        sizes=columns["size"],
        dts=_from(numpy.array([one.dts for one in placed], numpy.int64), columns["duration"], firsts, totals),
        durations=columns["duration"],
        shifts=columns["shift"],
        key=numpy.ones(len(columns["flags"]), numpy.bool_) if sound else columns["flags"] & NOT_KEY == 0,
    )


def _column(name: str, placed: list[PlacedRun], totals: Counts) -> Counts:
    rows = [one.run.rows for one in placed if one.run.rows is not None]
    if rows and name in (rows[0].dtype.names or ()):
        return numpy.concatenate([row[name] for row in rows]).astype(numpy.int64)
    return numpy.repeat(numpy.array([getattr(one.run.defaults, name) for one in placed], numpy.int64), totals)


def _from(begins: Counts, lengths: Counts, firsts: Counts, totals: Counts) -> Counts:
    """Where each of ``lengths`` begins, in runs that begin at ``begins`` and whose first is number ``firsts``."""
    sums = starts_of(lengths)
    placed: Counts = sums + numpy.repeat(begins - numpy.append(sums, 0)[firsts], totals)
    return placed
