"""Frames as they come, from what has no end and no way back: what cameras and live streams share."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, Mapping, Optional, Sequence

import av
from av.error import FFmpegError

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.decode.frames import ClipTimer
from forebay_loader.videos.decode.pictures import Pictures
from forebay_loader.videos.errors import UnsupportedVideo, VideoError
from forebay_loader.videos.sources.kinds import CAMERAS
from forebay_loader.videos.sources.video_source import VideoSource, room_for

__all__ = ["CameraSource", "LiveSource"]


class _Left:
    """How long FFmpeg may wait, in seconds: asked when a read begins, so that all reads of a call together have one limit."""

    def __init__(self, timer: ClipTimer) -> None:
        self.timer = timer

    def __float__(self) -> float:
        left_s = self.timer.left_s
        return -1.0 if left_s is None else max(left_s, 0.0)


class LiveSource(VideoSource):
    """A ``VideoSource`` whose frames are numbered as they come, from 0 at ``open``, and which gives none twice.

    ``url`` and ``form`` go to FFmpeg: its input and its input format (``v4l2``, ``avfoundation``, ``lavfi``; "" lets it find out);
    ``options`` too (``{"framerate": "30"}``). ``size`` as in ``check_size``. ``time_limit_s`` for opening, and for each call of ``frames``.

    ``frames`` asks for numbers that ascend and were not passed: frames between them are decoded and dropped. ``audio`` gives nothing.
    Raises ``IndexError`` for a number that has passed, and for one behind the end of a stream that ended; ``UnsupportedVideo`` where the
    device or stream cannot be opened, naming it without its query and account; ``VideoTimeout``.
    """

    def __init__(
        self, url: str, form: str = "", *, options: Optional[Mapping[str, str]] = None, size: Size = None, time_limit_s: float = 60.0
    ) -> None:
        self._url, self._form = url, form
        scheme, mark, rest = url.partition("://")
        self.name = f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if mark else url  # account and query may hold a password
        self._options = dict(options or {})
        self._size = size
        self._time_limit_s = time_limit_s
        self._container: Any = None
        self._left = _Left(self._timer())
        self._coming: Deque[Any] = deque()
        self._passed = 0
        self._pictures: Optional[Pictures] = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', open' if self._container else ''}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_container": None, "_coming": deque(), "_passed": 0, "_pictures": None}

    def open(self) -> ClipInfo:
        if self._container is None:
            self._container = self._opened()
            self._passed, self._pictures = 0, None
        stream = self._container.streams.video[0]
        return ClipInfo(0, array("d"), 0.0, stream.codec_context.width, stream.codec_context.height)

    def frames(self, indices: Sequence[int]) -> Any:
        self.open()
        timer = self._left.timer = self._timer()
        before, found = -1, room_for(0, (1, 1, 3))
        for place, index in enumerate(indices):
            if index == before:
                found[place] = found[place - 1]
            else:
                frame = self._reach(index, timer)
                try:
                    if self._pictures is None:  # all have the size of the first: what a stream says before is a guess
                        self._pictures = Pictures(frame.width, frame.height, 0, self._size)
                    found = found if len(found) else room_for(len(indices), self._pictures.shape)
                    self._pictures.into(frame, found[place])
                except VideoError as error:
                    raise error.of(self.name) from error
            before = index
        COUNTS.add("video_frames", len(indices))
        return found

    def close(self) -> None:
        container, self._container = self._container, None
        self._coming.clear()
        if container is not None:
            container.close()

    def _timer(self) -> ClipTimer:
        return ClipTimer(self._time_limit_s, self.name)

    def _opened(self) -> Any:
        timer = self._left.timer = self._timer()
        wait: Any = self._left
        try:
            found = av.open(self._url, format=self._form or None, options=self._options, timeout=wait)
        except FFmpegError as error:
            timer.check()  # FFmpeg says "I/O error" of what it gave up waiting for
            raise UnsupportedVideo(f"cannot be opened: {error.strerror}", self.name) from None
        if not found.streams.video:
            found.close()
            raise UnsupportedVideo("there is no video in it", self.name)
        found.streams.video[0].codec_context.thread_count = 1
        return found

    def _reach(self, index: int, timer: ClipTimer) -> Any:
        """Frame ``index``, past those before it."""
        if index < self._passed:
            raise IndexError(f"frame {index} of {self.name} has passed: the next one is {self._passed}")
        while True:
            try:
                frame = self._next(timer)
            except FFmpegError as error:
                timer.check()
                raise UnsupportedVideo(f"broke off: {error.strerror}", self.name) from None
            if frame is None:
                raise IndexError(f"{self.name} ended after {self._passed} frames")
            self._passed += 1
            COUNTS.add("video_packets")
            if self._passed > index:
                return frame

    def _next(self, timer: ClipTimer) -> Optional[Any]:
        """The frame that comes next, None at the end.

        A packet at a time, of sound too: a stream that goes on without a picture has its limit as well, and a read that begins is told how
        long it may wait.
        """
        stream = self._container.streams.video[0]
        while not self._coming:
            timer.check()
            packet: Any = next(self._container.demux(), None)
            ended = packet is None or not packet.size
            if ended or packet.stream_index == stream.index:
                with suppress(EOFError):  # the decoder was emptied before
                    self._coming.extend(stream.decode(None if ended else packet))
            if ended and not self._coming:
                return None
        return self._coming.popleft()


class CameraSource(LiveSource):
    """Frames of the camera ``device`` as they come: ``"/dev/video0"``, ``"avfoundation://0"``, ``"lavfi://testsrc=size=320x240:rate=30"``.

    ``options`` are FFmpeg's for that kind of device (``{"framerate": "30", "video_size": "640x480"}``); the rest as ``LiveSource`` says.
    """

    def __init__(self, device: str, *, options: Optional[Mapping[str, str]] = None, size: Size = None, time_limit_s: float = 60.0) -> None:
        form, mark, name = device.partition("://")
        if not mark or form not in CAMERAS:
            form, name = "avfoundation" if sys.platform == "darwin" else "v4l2", device
        super().__init__(name, form, options=options, size=size, time_limit_s=time_limit_s)
