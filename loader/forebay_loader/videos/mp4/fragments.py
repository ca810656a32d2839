"""Movie fragments (moof, ISO/IEC 14496-12, 8.8): the samples that come after those of moov, with their defaults from box to box.

A field of a sample is in its run (trun), else the fragment's (tfhd), else the track's (trex). Where a run's bytes lie is said from the
moof's first byte or from an absolute one, or not at all: then they follow the run before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount, needed_box
from forebay_loader.videos.mp4.edit_list import MAX_TICKS
from forebay_loader.videos.mp4.sample_table import MAX_SAMPLES, PCM_UNIT, equal_bytes
from forebay_loader.videos.mp4.track_run import PlacedRun, SampleDefaults, TrackRun, is_pcm, read_run
from forebay_loader.videos.mp4.trak import Trak

__all__ = ["Fragments", "check_segment_index", "read_defaults"]

TRACKS, HEADERS, RUNS = frozenset([b"traf"]), frozenset([b"tfhd", b"tfdt"]), frozenset([b"trun"])

TRACK_COST, RUN_COST = 16, 16  # in boxes that are passed over

# Flags of tfhd (8.8.7): what is there.
BASE_OFFSET, DESCRIPTION, DURATION, SIZE, FLAGS = 0x1, 0x2, 0x8, 0x10, 0x20
BASE_IS_MOOF = 0x020000


@dataclass
class RunPlace:
    """Where offsets are from, and where the next run begins that does not say it: its first byte, and its first sample's decode time."""

    base: int
    at: int
    dts: int


def read_defaults(mvex: Box, count: BoxCount) -> dict[int, SampleDefaults]:
    """By track_ID (trex, 8.8.3)."""
    found = {}
    for trex in mvex.children(frozenset([b"trex"]), count):
        number, *defaults = trex.fields(4, ">5I")
        found[number] = SampleDefaults(*defaults)
    return found


def check_segment_index(sidx: Box, end: int, length: int) -> None:
    """Raises ``CorruptVideo`` where the segments that sidx (8.16.3) names end beyond the file: one that was cut between two fragments looks
    whole else. ``end`` is the first byte behind the box."""
    wide = sidx.version > 0
    first = sidx.number(20, ">Q") if wide else sidx.number(16)
    place = 32 if wide else 24
    sizes = sidx.rows(place, sidx.number(place - 2, ">H"), ">u4,>u4,>u4")["f0"].astype(numpy.int64) & 0x7FFFFFFF
    if end + first + int(sizes.sum()) > length:
        raise CorruptVideo(f"cut short: its index names segments up to byte {end + first + int(sizes.sum())}; the file has {length}")


class Fragments:
    """Adds the samples of each moof to the tracks that are read."""

    def __init__(self, traks: list[Trak], defaults: dict[int, SampleDefaults], length: int, count: BoxCount) -> None:
        self._traks = {trak.number: trak for trak in traks}
        self._defaults = defaults
        self._length, self._count = length, count
        self._equal_bytes = 0  # of the file, that samples of runs without rows take at least
        self._samples = sum(len(trak.table) for trak in traks)
        self._dts = {trak.number: _end_dts(trak) for trak in traks}

    def add(self, moof: Box) -> None:
        """Raises ``CorruptVideo`` for runs that do not fit. A track whose description changes keeps that as its ``fault``."""
        at = moof.at  # of the first track; each later one follows the data of the one before (8.8.7)
        for traf in moof.children(TRACKS, self._count):
            self._count.spend(TRACK_COST)
            at = self._add_track(traf, moof.at, at)

    def _add_track(self, traf: Box, moof_at: int, at: int) -> int:
        """Gives the first byte behind the track's data."""
        boxes = traf.only(HEADERS, self._count)
        tfhd = needed_box(boxes, b"tfhd", b"traf")
        number = tfhd.number(4)
        defaults, base = self._header(tfhd, number, moof_at, at)
        trak = self._traks.get(number)
        if trak and defaults.description != trak.description:
            trak.fault = f"its samples change from description {trak.description} to {defaults.description}"
        tfdt = boxes.get(b"tfdt")
        dts = self._dts.get(number, 0) if tfdt is None else tfdt.number(4, ">Q" if tfdt.version == 1 else ">I")
        if dts > MAX_TICKS:
            raise CorruptVideo(f"the fragment at byte {moof_at} begins at tick {dts}")
        place = RunPlace(base, base, dts)
        for trun in traf.children(RUNS, self._count):
            self._count.spend(RUN_COST)
            self._add_run(read_run(trun, defaults), trak, place)
        self._dts[number] = place.dts
        return place.at

    def _header(self, tfhd: Box, number: int, moof_at: int, at: int) -> tuple[SampleDefaults, int]:
        """``(defaults, first byte that offsets are from)`` (tfhd, 8.8.7)."""
        place, flags, track = 8, tfhd.flags, self._defaults.get(number, SampleDefaults(1))
        base = moof_at if flags & BASE_IS_MOOF else at
        if flags & BASE_OFFSET:
            base, place = tfhd.number(place, ">Q"), place + 8
        values = []
        for flag, default in ((DESCRIPTION, track.description), (DURATION, track.duration), (SIZE, track.size), (FLAGS, track.flags)):
            values.append(tfhd.number(place) if flags & flag else default)
            place += 4 if flags & flag else 0
        return SampleDefaults(*values), base

    def _add_run(self, run: TrackRun, trak: Optional[Trak], place: RunPlace) -> None:
        """Moves ``place`` behind the run. Of a track that is not read only the bytes count."""
        if run.offset is not None:
            place.at = place.base + run.offset
        size = run.sum("size")
        if place.at < 0 or place.at + size > self._length:
            raise CorruptVideo(f"a run has {size} bytes from byte {place.at}; the file has {self._length}")
        if trak and run.total:
            self._spend(-(-run.total // PCM_UNIT) if is_pcm(run, trak.entry.pcm_bytes) else self._checked(run))
            trak.runs.append(PlacedRun(run, place.at, place.dts))
            place.dts += run.sum("duration")
        place.at += size

    def _checked(self, run: TrackRun) -> int:
        """How many samples it has: of those that no row names no more than the file holds, all such runs together, wherever they lie."""
        if run.rows is None:
            self._equal_bytes += equal_bytes(run.total, run.defaults.size)
            if self._equal_bytes > self._length:
                raise CorruptVideo(f"a run has {run.total} samples of {run.defaults.size} bytes; the file has {self._length} in all")
        return run.total

    def _spend(self, samples: int) -> None:
        self._samples += samples
        if self._samples > MAX_SAMPLES:
            raise CorruptVideo(f"more than {MAX_SAMPLES} samples")


def _end_dts(trak: Trak) -> int:
    """When the last sample in moov ends to be decoded."""
    return int(trak.table.dts[-1] + trak.table.durations[-1]) if len(trak.table) else 0
