"""Samples of a live stream: so many frames that follow each other, again and again until it ends."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

import numpy

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.clip_pass import ClipArguments
from forebay_loader.videos.errors import VideoError
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.live_source import LiveSource

__all__ = ["live_source", "windows"]


def live_source(url: Any, asked: ClipArguments) -> LiveSource:
    """Raises ``ValueError`` for what is none."""
    found = source_of(url, size=asked.size, threads=asked.threads, time_limit_s=asked.time_limit_s)
    if not isinstance(found, LiveSource):
        raise ValueError(f"{found!r} is no live stream: fb.Clips([url], video=…) has its frames by number")
    return found


def windows(source: LiveSource, url: str, frames: int, stride: int) -> Iterator[Dict[str, Any]]:
    """As ``fb.Clips.stream`` says. What came before an error is given before it is raised."""
    first = 0
    ended: Optional[Exception] = None
    with source:
        info = source.open()
        while ended is None:
            found: List[Any] = []
            try:
                for place in range(frames):
                    found.append(source.frame(first + place * stride))
            except (IndexError, VideoError) as error:  # numbers ascend, so none has passed: IndexError is the end
                ended = error
            if found:
                shown = numpy.stack(found + [found[-1]] * (frames - len(found)))
                COUNTS.add("video_clips")
                yield {"__key__": str(first), "__url__": url, "frames": shown, "mask": numpy.arange(frames) < len(found), "video": info}
            first += frames * stride
    if isinstance(ended, VideoError):
        raise ended
