"""Which source a URL, a file's name, bytes in memory or a table of settings are read by."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional
from urllib.parse import parse_qs, unquote, urlsplit

from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.videos.decode.frame_size import Size, check_size
from forebay_loader.videos.sources.clip_bytes import ClipBytes, FileClip, MemoryClip, ObjectClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_loader.videos.sources.frames_source import FramesSource
from forebay_loader.videos.sources.kinds import LIVE_MARK, kind_of, scheme_of
from forebay_loader.videos.sources.live_source import CameraSource, LiveSource
from forebay_loader.videos.sources.video_source import VideoSource

__all__ = ["VideoSource", "source_of"]


_KINDS = ("clip", "frames", "live", "camera")
_SETTINGS = ("url", "kind", "clip", "fps", "size", "threads", "time_limit_s", "options")


def source_of(
    what: Any,
    *,
    size: Any = None,
    threads: int = 1,
    time_limit_s: Optional[float] = 60.0,
    options: Optional[Mapping[str, str]] = None,
    limits: Limits = DEFAULT_LIMITS,
    name: str = "",
    shard: str = "",
) -> VideoSource:
    """The source for one clip; nothing is opened. Example: ``source_of("s3://bucket/match.mp4", size=256).frames([0, 100])``.

    - ``what``: bytes of a clip, or where one is: a path; a URL or command that ``fb.WebDataset`` would take (through the sidecar: from its
      file where all of it is here, else by ranges); ``lmdb:///folder?clip=NAME&fps=25`` (frames decoded before; without ``clip`` the LMDB
      is one clip's); ``rtsp:``, ``rtmp:``,
      ``srt:``, ``udp:``, ``live+https://host/list.m3u8`` (live); ``v4l2:///dev/video0``, ``/dev/video0``, ``avfoundation://0``,
      ``lavfi://testsrc`` (cameras). Or a table of settings, as TOML has it: ``url``, and where wanted ``kind`` (``clip``, ``frames``,
      ``live`` or ``camera``: it counts more than the URL's scheme), ``size``, ``threads``, ``time_limit_s``, ``options``, and of frames
      ``clip`` and ``fps``; what it says counts more than the arguments.
    - ``size``: None, the shorter side, or (height, width), in pixels.
    - ``threads``: a decoder's.
    - ``time_limit_s``: for each call of ``frames`` and ``audio``; None for ever.
    - ``options``: FFmpeg's, for cameras and live streams.
    - ``limits``: how long to wait for bytes through the sidecar, a ``fb.Limits``.
    - ``name``, ``shard``: how errors call bytes.

    Raises ``TypeError`` and ``ValueError`` for what names nothing, ``fb.ShardReadError`` for a URL that the sidecar does not read.
    """
    if isinstance(what, Mapping):
        return _of_table(what, {"size": size, "threads": threads, "time_limit_s": time_limit_s, "options": options, "limits": limits})
    return _made("", what, check_size(size), threads, time_limit_s, options, limits, name, shard)


def _of_table(table: Mapping[Any, Any], given: Dict[str, Any]) -> VideoSource:
    unknown = sorted(str(key) for key in table if key not in _SETTINGS)
    kind, url, clip = table.get("kind", ""), table.get("url"), table.get("clip")
    if unknown or not isinstance(url, str) or not url:
        raise ValueError(f"a source's settings are url and, where wanted, {', '.join(_SETTINGS[1:])}; got {unknown or 'no url'}")
    if "kind" in table and kind not in _KINDS:
        raise ValueError(f"a source's kind is one of {', '.join(_KINDS)}; got {kind!r}")
    asked = {**given, **{key: value for key, value in table.items() if key in given}}
    asked["size"] = check_size(asked["size"])
    if clip is None and "fps" not in table:
        return _made(kind, url, **asked)
    if clip is None and (kind == "frames" or url.startswith("lmdb://")):
        clip = ""  # the LMDB is one clip's
    if kind not in ("", "frames") or not isinstance(clip, str) or "?" in url:
        raise ValueError("clip names a clip in an LMDB of frames, whose url is its path, and fps is its rate")
    return FramesSource(url.removeprefix("lmdb://"), clip, fps=float(table.get("fps", 25.0)), size=asked["size"])


def _made(
    kind: str,
    what: Any,
    size: Size,
    threads: int,
    time_limit_s: Optional[float],
    options: Optional[Mapping[str, str]],
    limits: Limits,
    name: str = "",
    shard: str = "",
) -> VideoSource:
    if isinstance(what, (bytes, bytearray, memoryview)):
        return ClipSource(MemoryClip(memoryview(what), name, shard), size=size, threads=threads, time_limit_s=time_limit_s)
    text = os.fspath(what)
    if not isinstance(text, str) or not text:
        raise TypeError(f"a clip is bytes, a path or a URL; got {what!r}")
    scheme = scheme_of(text)
    kind = kind or kind_of(text)
    if kind == "camera":
        return CameraSource(text, options=options, size=size, time_limit_s=time_limit_s or 60.0)
    if kind == "live":
        return LiveSource(text.removeprefix(LIVE_MARK), options=options, size=size, time_limit_s=time_limit_s or 60.0)
    if kind == "frames":
        return _of_frames(text, size)
    there: ClipBytes = FileClip(text) if scheme == text else ObjectClip(text, limits)
    return ClipSource(there, size=size, threads=threads, time_limit_s=time_limit_s)


def _of_frames(url: str, size: Size) -> VideoSource:
    parts = urlsplit(url)
    said = parse_qs(parts.query, strict_parsing=bool(parts.query))
    unknown = sorted(set(said) - {"clip", "fps"})
    if unknown:
        raise ValueError(f"lmdb:///folder?clip=NAME names a clip, and &fps=25 its rate; got {unknown}")
    return FramesSource(unquote(parts.netloc + parts.path), said.get("clip", [""])[0], fps=float(said.get("fps", ["25"])[0]), size=size)
