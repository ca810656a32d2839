"""A source of a clip that was never a file: grey frames and a tone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.motion import measured
from forebay_loader.videos.metadata.scan import ClipToScan, ScanProgress, scan_clips

__all__ = ["Opened", "PaintedSource", "look_here", "scan_here"]

Opened = Callable[[], AbstractContextManager[Any]]


class PaintedSource:
    """Grey frames, as bright as ``brightness`` says of their number; a tone from ``tone_s`` on."""

    def __init__(self, info: ClipInfo, brightness: Any = lambda number: 0, tone_s: float = 0.0) -> None:
        self.info, self.brightness, self.tone_s = info, brightness, tone_s
        self.heard: list[tuple[float, float]] = []

    def open(self) -> ClipInfo:
        return self.info

    def frames(self, indices: Sequence[int]) -> Any:
        return numpy.stack([numpy.full((8, 8, 3), self.brightness(number), numpy.uint8) for number in indices])

    def audio(self, begin_s: float, end_s: float) -> tuple[Any, int]:
        self.heard.append((begin_s, end_s))
        times = numpy.arange(round(begin_s * 1000), round(end_s * 1000)) / 1000
        return numpy.where(times >= self.tone_s, 0.5, 0.0)[None], 1000


def look_here(opened: Opened, audio: bool) -> ClipInfo:
    """A scan's look in this process, at the source that ``opened`` gives."""
    with opened() as source:
        return measured(source, audio=audio)


def scan_here(clips: Iterable[ClipToScan[Opened]], path: Path, **how: Any) -> ScanProgress:
    """``scan_clips`` in this process, of clips that lie where ``Opened`` says."""
    return scan_clips(clips, path, look_here, **how)
