"""Which kind of source a URL or path is read by. Imports no PyAV."""

from __future__ import annotations

__all__ = ["CAMERAS", "LIVE_MARK", "is_live", "kind_of", "scheme_of"]

# A camera of this machine, by the operating system's own interface; FFmpeg reads it.
CAMERAS = ("v4l2", "avfoundation", "dshow", "lavfi")  # lavfi is FFmpeg's own synthetic one: lavfi://testsrc=size=320x240:rate=30
LIVE_MARK = "live+"  # before an http(s) URL: a stream without end, such as HLS, which the sidecar could not store
_LIVE = ("rtsp", "rtsps", "rtmp", "rtmps", "srt", "udp", "rtp")  # FFmpeg's own, which have no other meaning


def scheme_of(text: str) -> str:
    """All of a path."""
    return text.partition("://")[0].lower() if "://" in text else text.partition(":")[0]


def kind_of(text: str) -> str:
    """``clip``, ``frames``, ``live`` or ``camera``."""
    scheme = scheme_of(text)
    if scheme in CAMERAS or text.startswith("/dev/video"):
        return "camera"
    if scheme in _LIVE or scheme.startswith(LIVE_MARK):
        return "live"
    return "frames" if scheme == "lmdb" else "clip"


def is_live(text: str) -> bool:
    """Whether its frames come in their own order."""
    return kind_of(text) in ("live", "camera")
