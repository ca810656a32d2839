"""Pictures made of later ones, in every container that PyAV writes: frames come in the order and at the times at which they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.clips import frame_number, pictures_of, rendered
from support.h264_sps import without_usability_information
from support.remuxing import as_ogm, as_vfw, remuxed

from forebay_loader.videos.sources.choice import source_of

CODECS: dict[str, dict[str, Any]] = {
    "H.264": {"b_frames": 2},
    "H.264 open": {"b_frames": 3, "open_gop": True},
    "HEVC": {"codec": "libx265", "b_frames": 3},
    "HEVC open": {"codec": "libx265", "b_frames": 3, "open_gop": True},
    "MPEG-4": {"codec": "mpeg4", "b_frames": 2},
    "MPEG-2": {"codec": "mpeg2video", "b_frames": 2},
    "MPEG-1": {"codec": "mpeg1video", "b_frames": 2},
}
EVERY = "mp4 mov ismv f4v 3gp matroska mpegts mpeg avi asf flv nut wtv mxf"
# Which of these PyAV muxes; of several that one code reads, some.
CONTAINERS = {
    "H.264": f"{EVERY} h264",
    "H.264 open": "mpeg avi asf mxf h264",
    "HEVC": "mp4 ismv matroska mpegts mpeg flv nut hevc",
    "HEVC open": "mpeg flv hevc",
    "MPEG-4": "mp4 matroska mpegts mpeg avi asf nut wtv m4v",
    "MPEG-2": "mp4 matroska mpegts mpeg avi asf nut wtv mxf mpeg2video",
    "MPEG-1": "mp4 matroska mpegts mpeg avi asf mpeg1video",
}
CELLS = [(codec, container) for codec, containers in CONTAINERS.items() for container in containers.split()]
BY_HAND: dict[str, Callable[[], bytes]] = {
    "OGM": lambda: as_ogm(clip("MPEG-4", "mp4")),
    "Matroska VFW, H.264": lambda: as_vfw(clip("H.264", "matroska")),
    "Matroska VFW, H.264 open": lambda: as_vfw(clip("H.264 open", "matroska")),
    "Matroska VFW, MPEG-4": lambda: as_vfw(clip("MPEG-4", "matroska")),
    "ASF, H.264 that keeps silent": lambda: remuxed(without_usability_information(clip("H.264", "mp4")), "asf", lambda *_: True),
}
FRAMES = 30
VARIABLE = tuple(number * 40 + number % 5 * 7 + (200 if number > 20 else 0) for number in range(48))
AT_THE_END = 2  # frames, at most, whose times nobody wrote: they are decoded after the last time


def clip(codec: str, container: str) -> bytes:
    return rendered(**CODECS[codec], container=container, frames=FRAMES, gop=10, fps=25)


def check(data: bytes) -> None:
    there = pictures_of(data)
    assert [frame_number(picture) for picture in there] == list(range(FRAMES))
    with source_of(data) as source:
        info = source.open()
        assert info.frames == FRAMES
        assert numpy.array_equal(source.frames(range(FRAMES)), numpy.stack(there))
        assert all(numpy.array_equal(source.frame(number), there[number]) for number in (17, 2, FRAMES - 1))
        assert [info.times_s[number] - info.times_s[0] for number in range(FRAMES)] == pytest.approx(
            [n / 25 for n in range(FRAMES)], abs=1e-3
        )
        assert info.duration_s - info.times_s[0] == pytest.approx(FRAMES / 25, abs=0.011)


@pytest.mark.parametrize(("codec", "container"), CELLS)
def test_frames_are_those_of_pyav(codec: str, container: str) -> None:
    """Bit for bit, together and alone, at even times."""
    check(clip(codec, container))


@pytest.mark.parametrize("name", BY_HAND)
def test_what_ffmpeg_reads_and_does_not_write(name: str) -> None:
    """Where its times of showing are guesses."""
    check(BY_HAND[name]())


def test_frames_that_are_held_back_for_long() -> None:
    """Of H.264 in ASF whose header keeps silent about it: its decoder guesses too few, and drops what comes later."""
    pyramid = {"x264-params": "scenecut=0:b-pyramid=normal:b-adapt=0:bframes=7:ref=6:threads=1"}
    silent = without_usability_information(rendered(frames=48, gop=24, b_frames=7, codec_options=pyramid))
    with source_of(remuxed(silent, "asf", lambda *_: True)) as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == list(range(48))


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        *((codec, container) for codec in ("H.264", "MPEG-4") for container in ("asf", "avi", "wtv", "matroska", "mpegts")),
        *(("H.264 open", container) for container in ("asf", "avi", "flv")),
    ],
)
def test_uneven_times(codec: str, container: str) -> None:
    """As they were written: a time of decoding is one of showing, so many frames later."""
    with source_of(rendered(**CODECS[codec], container=container, times_ms=VARIABLE)) as source:
        found = [1000 * time_s for time_s in source.open().times_s]
    assert found[:-AT_THE_END] == pytest.approx(VARIABLE[:-AT_THE_END], abs=1.01)
    assert found[-AT_THE_END:] == pytest.approx(VARIABLE[-AT_THE_END:], abs=5)


@pytest.mark.parametrize("container", ["asf", "avi", "matroska", "mp4"])
def test_sound_stays_beside_its_pictures(container: str) -> None:
    """Its tone begins where the pictures do, whatever they were delayed by."""
    data = rendered(b_frames=3, audio="pcm_s16le" if container != "mp4" else "aac", container=container)
    with source_of(data) as source:
        begin_s = source.open().times_s[0]
        samples, rate_hz = source.audio(begin_s, begin_s + 0.5)
    tone = 0.4 * numpy.sin(2 * numpy.pi * 440 * numpy.arange(samples.shape[1]) / rate_hz)
    late = [float(numpy.dot(samples[0, 4800 + shift : 14_400 + shift], tone[4800:14_400])) for shift in range(-54, 55)]
    assert abs(int(numpy.argmax(late)) - 54) <= 48  # the thousandth of a second that such containers round to
