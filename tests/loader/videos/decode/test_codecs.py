"""Codecs of old that want to be told what their container knows: the same pictures as PyAV's own decode, alone or together."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy
import pytest

av = pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clips import painted  # noqa: E402 -- needs av

from forebay_loader.videos.sources.choice import source_of  # noqa: E402

FRAMES, GROUP = 9, 4
CASES = [
    ("wmv1", "asf"), ("wmv2", "asf"), ("wmv2", "avi"), ("msmpeg4v2", "avi"), ("msmpeg4", "avi"), ("msmpeg4", "matroska"),
    ("huffyuv", "avi"), ("ffvhuff", "avi"), ("ffv1", "avi"), ("ffv1", "matroska"), ("ffv1", "mp4"), ("utvideo", "avi"), ("asv1", "avi"),
    ("cinepak", "avi"), ("cinepak", "mov"), ("qtrle", "mov"), ("svq1", "mov"), ("rpza", "mov"), ("rpza", "avi"), ("msvideo1", "avi"),
    ("rawvideo", "avi"), ("rawvideo", "matroska"), ("v210", "avi"), ("v210", "mov"), ("r210", "mov"), ("snow", "avi"), ("cljr", "avi"),
    ("h263", "avi"), ("h263", "mov"), ("flv", "flv"), ("mpeg1video", "mpeg"), ("mpeg1video", "mov"), ("mpeg2video", "mpegts"),
    ("mpeg2video", "mov"), ("dvvideo", "mov"), ("dvvideo", "avi"), ("cfhd", "mov"), ("png", "mov"), ("png", "avi"), ("jpeg2000", "mov"),
    ("jpeg2000", "mp4"), ("mpeg4", "avi"), ("libvpx", "webm"),
]  # fmt: skip


@lru_cache
def clip_of(codec: str, container: str) -> bytes:
    """Frames that a picture of 128 x 96 shows in their numbers, in groups of four where the codec has any."""
    room = io.BytesIO()
    with av.open(room, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=25, options={"strict": "-2"})
        stream.width, stream.height = {"dvvideo": (720, 576)}.get(codec, (128, 96))
        formats = [one.name for one in stream.codec_context.codec.video_formats or ()]
        stream.pix_fmt = "yuv420p" if codec in ("dvvideo", "rawvideo") else formats[0]
        stream.time_base = Fraction(1, 25)
        stream.codec_context.thread_count, stream.codec_context.gop_size = 1, GROUP
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(painted(number), format="rgb24").reformat(stream.width, stream.height)
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return room.getvalue()


def by_pyav(clip: bytes) -> list[Any]:
    with av.open(io.BytesIO(clip)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize(("codec", "container"), CASES)
def test_its_pictures_are_those_of_pyav(codec: str, container: str) -> None:
    """All of them, and each alone: a keyframe that is none would show."""
    clip = clip_of(codec, container)
    there = by_pyav(clip)
    with source_of(clip, name="a.clip") as source:
        assert source.open().frames == len(there) == FRAMES
        assert numpy.array_equal(source.frames(range(FRAMES)), numpy.stack(there))
        for number in (FRAMES - 1, 2, 5, 4):
            assert numpy.array_equal(source.frame(number), there[number]), number
