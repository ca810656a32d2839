"""A clip whose bytes are somewhere, all of them: in memory, a file, a shard, an object. Frames by number, sound by time.

Of an MP4 only the boxes and the bytes of the wanted groups are read; of a cold one, nothing else travels.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy

from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.profile_ranges import profiled
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.byte_spans import SpanReader
from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.decode.frames import ClipTimer, decoded
from forebay_loader.videos.decode.pictures import Pictures
from forebay_loader.videos.decode.tracks import GAP_BYTES, ClipTracks, tracks_of
from forebay_loader.videos.errors import UnsupportedVideo
from forebay_loader.videos.sources.clip_bytes import ClipBytes
from forebay_loader.videos.sources.video_source import VideoSource, room_for

__all__ = ["ClipSource"]

_MOST_HZ = 1 << 20  # above what any recorder takes: a header may say anything, and gaps are filled with silence


class ClipSource(VideoSource):
    """A ``VideoSource`` over ``clip``: an MP4 or MOV, or another container that FFmpeg knows.

    ``size`` as ``check_size`` takes it; ``threads`` a decoder may use; ``time_limit_s`` is for each call of ``open``, ``frames`` and
    ``audio``, and counts the opening in the first; ``timer`` takes its place, and is for all calls together.
    """

    def __init__(
        self,
        clip: ClipBytes,
        *,
        size: Size = None,
        threads: int = 1,
        time_limit_s: Optional[float] = 60.0,
        timer: Optional[ClipTimer] = None,
    ) -> None:
        self._clip = clip
        self.name, self.shard = clip.name, clip.shard
        self.size = size
        self._threads = threads
        self._time_limit_s = time_limit_s
        self._one_timer = timer
        self._tracks: Optional[ClipTracks] = None

    @property
    def clip(self) -> ClipBytes:
        return self._clip

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._clip.name or 'in memory'}{', open' if self._tracks else ''}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_tracks": None}

    def clip_bytes(self) -> int:
        return self._clip.open()

    def version(self) -> str:
        return self._clip.version()

    def limit_together(self) -> None:
        self._one_timer = self._timer()

    def open(self) -> ClipInfo:
        return self._opened(self._timer()).info

    def frames(self, indices: Sequence[int]) -> Any:
        timer = self._timer()
        tracks = self._opened(timer)
        places = {} if tracks.video is None else _places(indices, tracks.info.frames)
        with self.named():
            track = tracks.video
            if track is None:
                raise UnsupportedVideo("there is no video track in it")
            said = Pictures(track.width, track.height, track.rotation_deg, self.size, track.mirrored)
            found, pictures = room_for(0, said.shape), said
            groups = track.needed(sorted(places))
            with profiled("forebay.video.decode"):
                spans = track.byte_spans(groups, GAP_BYTES)
                with SpanReader(tracks.read, spans, tracks.expect(spans)) as read:
                    for number, frame in decoded(track, groups, read, timer, self._threads):
                        if not len(found):  # made for what a decoder gives: what the header says is nobody's word for it
                            pictures = Pictures(frame.width, frame.height, track.rotation_deg, self.size, track.mirrored)
                            found = room_for(len(indices), pictures.shape)
                        first, *others = places[number]
                        pictures.into(frame, found[first])
                        for place in others:
                            found[place] = found[first]
        COUNTS.add("video_frames", len(indices))
        return found

    def each(self) -> Iterator[Tuple[int, Any]]:
        """All frames one after the other as they are decoded, each with its number: a film's are more than memory holds."""
        timer = self._timer()
        tracks = self._opened(timer)
        with self.named():
            track = tracks.video
            if track is None:
                raise UnsupportedVideo("there is no video track in it")
            pictures = None
            groups = track.needed(range(tracks.info.frames))
            spans = track.byte_spans(groups, GAP_BYTES)
            with SpanReader(tracks.read, spans, tracks.expect(spans)) as read:
                for number, frame in decoded(track, groups, read, timer, self._threads):
                    pictures = pictures or Pictures(frame.width, frame.height, track.rotation_deg, self.size, track.mirrored)
                    room = room_for(1, pictures.shape)[0]
                    pictures.into(frame, room)
                    yield number, room

    def audio(self, begin_s: float, end_s: float) -> Tuple[Any, int]:
        timer = self._timer()
        tracks = self._opened(timer)
        if tracks.sound is None:
            return numpy.zeros((0, 0), numpy.float32), 0
        with self.named(), profiled("forebay.video.audio"):
            if tracks.info.audio_rate_hz > _MOST_HZ:
                raise UnsupportedVideo(f"its sound has {tracks.info.audio_rate_hz} samples a second, as its header says")
            return tracks.sound(begin_s, end_s, timer)

    def close(self) -> None:
        self._tracks = None
        self._clip.close()

    def _opened(self, timer: ClipTimer) -> ClipTracks:
        if self._tracks is None:
            length = self._clip.open()
            with self.named(), profiled("forebay.video.index"):
                self._tracks = tracks_of(self._clip.read, length, self._clip.name, timer, self._clip.expect)
        return self._tracks

    def _timer(self) -> ClipTimer:
        return self._one_timer or ClipTimer(self._time_limit_s, self._clip.name, self._clip.shard)


def _places(indices: Sequence[int], frames: int) -> Dict[int, List[int]]:
    """Frame number -> where in the result it is wanted. Raises ``IndexError``."""
    found: Dict[int, List[int]] = {}
    for place, number in enumerate(indices):
        if not 0 <= number < frames:
            raise IndexError(f"frame {number} of {frames}")
        found.setdefault(number, []).append(place)
    return found
