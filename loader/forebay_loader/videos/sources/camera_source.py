"""A camera of this machine, by the operating system's own interface; FFmpeg reads it."""

from __future__ import annotations

import sys
from typing import Mapping, Optional

from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.sources.live_source import LiveSource

__all__ = ["CAMERAS", "CameraSource"]

CAMERAS = ("v4l2", "avfoundation", "dshow", "lavfi")  # lavfi is FFmpeg's own synthetic one: lavfi://testsrc=size=320x240:rate=30


class CameraSource(LiveSource):
    """Frames of the camera ``device`` as they come: ``"/dev/video0"``, ``"avfoundation://0"``, ``"lavfi://testsrc=size=320x240:rate=30"``.

    ``options`` are FFmpeg's for that kind of device (``{"framerate": "30", "video_size": "640x480"}``); the rest as ``LiveSource`` says.
    """

    def __init__(self, device: str, *, options: Optional[Mapping[str, str]] = None, size: Size = None, time_limit_s: float = 60.0) -> None:
        form, mark, name = device.partition("://")
        if not mark or form not in CAMERAS:
            form, name = "avfoundation" if sys.platform == "darwin" else "v4l2", device
        super().__init__(name, form, options=options, size=size, time_limit_s=time_limit_s)
