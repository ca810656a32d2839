"""The index of an MP4 (ISO/IEC 14496-12, QuickTime): read from its boxes in two or three reads, the media never."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Optional

import numpy

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo, VideoError
from forebay_loader.videos.mp4.boxes import Box, BoxCount, BoxFile, ReadAt, needed_box
from forebay_loader.videos.mp4.track import Track
from forebay_loader.videos.mp4.trak import SOUND, VIDEO, Trak, handler_of, read_movie, read_trak

__all__ = ["Mp4Index", "check_boxes", "read_index"]

TRAK_COST = 8  # in boxes that are passed over

# What such a file begins with; QuickTime's older ones have no ftyp.
FIRST_KINDS = (b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"uuid", b"sidx", b"moof", b"pdin", b"prft", b"emsg")


@dataclass(frozen=True, eq=False)
class Mp4Index:
    """The first video track and the first audio track that can be read. ``audio_fault`` says why there is sound that cannot be read; ""
    where it is, or where there is none."""

    video: Track
    audio: Optional[Track]
    audio_fault: str = ""

    def to_info(self) -> ClipInfo:
        """What samplers choose by; motion and energy are not known."""
        times_s = array("d")
        times_s.frombytes(self.video.times_s.tobytes())
        return ClipInfo(
            frames=self.video.frames,
            times_s=times_s,
            duration_s=self.video.end_s,
            width=self.video.width,
            height=self.video.height,
            rotation_deg=self.video.rotation_deg,
            keyframes=tuple(self.video.keyframes().tolist()),
            audio_rate_hz=self.audio.rate_hz if self.audio else 0,
            mirrored=self.video.mirrored,
        )


def read_index(read: ReadAt, length: int, clip: str) -> Mp4Index:
    """The index of the file of ``length`` bytes that ``read(offset, size)`` reads.

    ``clip`` is its name in errors: ``CorruptVideo`` for boxes or samples that cannot be, ``UnsupportedVideo`` for what is no MP4, has no
    video, or is made in a way that is not read here (encrypted, in another file, two descriptions in a track, a part shown twice).
    """
    try:
        return _read(BoxFile(read, length, BoxCount()))
    except VideoError as error:
        raise error.of(clip) from error


def check_boxes(read: ReadAt, length: int) -> None:
    """Raises ``CorruptVideo`` where a box of the top level, or a segment that sidx (8.16.3) names, ends beyond the file: FFmpeg gives what
    comes before a cut, and says nothing."""
    file = BoxFile(read, length, BoxCount())
    for place in file.places():
        if place.kind == b"sidx":
            _check_segments(file.load(place), place.end, length)


def _check_segments(sidx: Box, end: int, length: int) -> None:
    """``end`` is the first byte after the box."""
    wide = sidx.version > 0
    first = sidx.number(20, ">Q") if wide else sidx.number(16)
    rows = 32 if wide else 24
    sizes = sidx.rows(rows, sidx.number(rows - 2, ">H"), ">u4,>u4,>u4")["f0"].astype(numpy.int64) & 0x7FFFFFFF
    named = end + first + int(sizes.sum())
    if named > length:
        raise CorruptVideo(f"cut short: its index names segments up to byte {named}; the file has {length}")


def _read(file: BoxFile) -> Mp4Index:
    begin = file.begin()
    if begin[4:] not in FIRST_KINDS:
        raise UnsupportedVideo(f"no MP4: it begins with {begin.hex(' ')}")
    for place in file.places():
        if place.kind == b"moov":
            return _read_moov(file.load(place), file)
    raise CorruptVideo(f"no box moov in its {file.length} bytes")


def _read_moov(moov: Box, file: BoxFile) -> Mp4Index:
    """8.2.1."""
    boxes = moov.only(frozenset([b"mvhd", b"mvex", b"cmov"]), file.count)
    if b"cmov" in boxes:
        raise LeftToDemuxer("its index is compressed")
    movie = read_movie(needed_box(boxes, b"mvhd", b"moov"), file.length)
    traks: dict[bytes, Trak] = {}
    fault: Optional[UnsupportedVideo] = None
    for trak in moov.children(frozenset([b"trak"]), file.count):
        file.count.spend(TRAK_COST)
        handler = handler_of(trak, file.count)
        if handler not in (VIDEO, SOUND) or handler in traks:
            continue
        try:
            traks[handler] = read_trak(trak, movie, file.count)
        except UnsupportedVideo as error:
            if handler == VIDEO:
                raise
            fault = error  # pictures are of use without their sound; who asks for it is told
    if VIDEO not in traks:
        raise LeftToDemuxer("no video track")
    if b"mvex" in boxes:
        raise LeftToDemuxer("fragmented")
    video, sound = traks[VIDEO].track(file.length), traks.get(SOUND)
    if isinstance(fault, LeftToDemuxer):
        raise fault
    audio = sound.track(file.length) if sound is not None and len(sound.table) else None
    return Mp4Index(video, audio, "" if fault is None else fault.what)
