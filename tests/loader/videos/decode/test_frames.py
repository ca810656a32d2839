"""Frames by number: the same as PyAV's own decode from the begin, of the packets that are needed and no others."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy
import pytest
from support.clips import frame_number, pictures_of, rendered
from support.h264_sps import without_usability_information
from support.remuxing import remuxed

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode.frames import ClipTimer, decoded
from forebay_loader.videos.errors import CorruptVideo, VideoTimeout
from forebay_loader.videos.mp4.index import read_index
from forebay_loader.videos.sources.choice import source_of

VFR = (*range(0, 480, 30), 500, 900, 901, 1500)
LAYERS = "log-level=none:scenecut=0:temporal-layers=3:bframes=4:b-adapt=0:pools=none:frame-threads=1:keyint=12"
CLIPS: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264, B-frames": {"b_frames": 3},
    "h264, open groups": {"b_frames": 3, "open_gop": True},
    "h264, one group": {"gop": 250, "b_frames": 2},
    "h264, each a keyframe": {"gop": 1},
    "h264, variable rate": {"times_ms": VFR, "b_frames": 2},
    "h264, fragments": {"fragmented": True, "b_frames": 2},
    "h264, moov first": {"moov_first": True},
    "h264, pictures late": {"start_ms": 700, "b_frames": 2, "audio": "aac"},
    "h264, negative offsets": {"b_frames": 2, "movflags": "negative_cts_offsets"},
    "hevc": {"codec": "libx265", "b_frames": 3},
    "hevc, variable rate": {"codec": "libx265", "b_frames": 3, "times_ms": VFR},
    "hevc, pictures late": {"codec": "libx265", "b_frames": 3, "start_ms": 700, "audio": "aac"},
    "hevc, open groups": {"codec": "libx265", "b_frames": 3, "open_gop": True},
    "hevc, 10 bits": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "hevc, temporal layers": {"codec": "libx265", "codec_options": {"x265-params": LAYERS}},
    "av1": {"codec": "libsvtav1"},
    "av1, variable rate": {"codec": "libsvtav1", "times_ms": VFR},
    "av1, pictures late": {"codec": "libsvtav1", "start_ms": 700, "audio": "aac"},
    "av1, open groups": {"codec": "libsvtav1", "open_gop": True},
    "mpeg-4 part 2": {"codec": "mpeg4", "b_frames": 2},
    "motion jpeg": {"codec": "mjpeg"},
    "h264, 4:4:4": {"pix_fmt": "yuv444p"},
    "prores in mov": {"codec": "prores_ks", "container": "mov", "pix_fmt": "yuv422p10le"},
    "vp9 in webm": {"codec": "libvpx-vp9", "container": "webm"},
    "h264 in matroska": {"container": "matroska", "b_frames": 2},
    "h264 in mpeg-ts": {"container": "mpegts", "b_frames": 2},
    "h264 in avi, which knows no presentation times": {"container": "avi", "b_frames": 2},
    "mpeg-4 in avi": {"codec": "mpeg4", "container": "avi"},
}  # fmt: skip


@pytest.mark.parametrize("kind", CLIPS)
def test_frames_are_those_of_a_decode_from_the_begin(kind: str) -> None:
    """Any choice, in any order, with repetitions; bit for bit."""
    data = rendered(**CLIPS[kind])
    there = pictures_of(data)
    chance = random.Random(kind)
    with source_of(data) as source:
        assert source.open().frames == len(there)
        choices = [[number] for number in (0, 1, len(there) // 2, len(there) - 1)]
        choices += [[chance.randrange(len(there)) for _ in range(chance.randint(1, 9))] for _ in range(6)]
        for choice in [*choices, list(range(len(there)))]:
            assert numpy.array_equal(source.frames(choice), numpy.stack([there[number] for number in choice])), choice


def test_a_clip_that_does_not_say_how_its_frames_are_reordered() -> None:
    """Its decoder guesses and learns, and drops what comes too late until it has learnt; every frame comes all the same."""
    pyramid = {"x264-params": "scenecut=0:b-pyramid=normal:b-adapt=0:bframes=7:ref=6:threads=1"}
    data = without_usability_information(rendered(frames=48, gop=24, b_frames=7, codec_options=pyramid))
    with source_of(data) as source:
        assert [frame_number(picture) for picture in source.frames(range(48))] == list(range(48))
        assert [frame_number(picture) for picture in source.frames([3, 29])] == [3, 29]


@pytest.mark.parametrize(("container", "lost"), [("mp4", 5), ("mp4", 9), ("mp4", 17), ("mp4", 33), ("mpegts", 33), ("matroska", 17)])
@pytest.mark.parametrize("pyramid", ["none", "normal"])
def test_a_clip_whose_packets_were_left_out(pyramid: str, container: str, lost: int) -> None:
    """What its decoder makes up for them is the same whatever else is wanted."""
    told = {"x264-params": f"scenecut=0:b-pyramid={pyramid}:b-adapt=0:bframes=3:ref=3:threads=1"}
    data = remuxed(rendered(frames=36, b_frames=3, codec_options=told), container, lambda kind, number, packet: number != lost)
    with source_of(data) as source:
        together = source.frames(range(35))
        assert all(numpy.array_equal(source.frame(number), together[number]) for number in range(35))


def test_several_threads_give_the_same() -> None:
    """Frame threads hold packets back; the end of each group brings what is left."""
    data = rendered(b_frames=3)
    with source_of(data, threads=4) as source:
        assert [frame_number(picture) for picture in source.frames([40, 7, 13])] == [40, 7, 13]


def packets(data: bytes, choice: list[int]) -> int:
    before = COUNTS.snapshot()["video_packets"]
    with source_of(data) as source:
        source.frames(choice)
    return COUNTS.snapshot()["video_packets"] - before


def test_only_what_is_needed_is_decoded() -> None:
    """From the keyframe before to the frame itself; a keyframe is one packet."""
    data = rendered(frames=48, gop=12)
    assert packets(data, [12, 36]) == 2
    assert packets(data, [14]) == 3
    assert packets(data, [14, 13, 14]) == 3


def test_a_clip_has_its_time() -> None:
    """The clock is looked at before each packet."""
    data = rendered()
    track = read_index(lambda at, size: data[at : at + size], len(data), "a.mp4").video
    steps = itertools.count()
    timer = ClipTimer(5.0, "a.mp4", "s3://b/0.tar", lambda: float(next(steps)))
    with pytest.raises(VideoTimeout, match=r"a\.mp4 in s3://b/0\.tar: .* 5 s"):
        list(decoded(track, track.needed([11]), lambda at, size: data[at : at + size], timer))


def damaged(data: bytes, number: int) -> bytes:
    """The clip with the second half of one sample's bytes inverted."""
    track = read_index(lambda at, size: data[at : at + size], len(data), "").video
    sample = int(track.order[number])
    begin, size = int(track.offsets[sample]), int(track.sizes[sample])
    middle = begin + size // 2
    return data[:middle] + bytes(byte ^ 255 for byte in data[middle : begin + size]) + data[begin + size :]


def test_a_damaged_frame_is_no_picture() -> None:
    """A decoder makes up what it cannot read; that is no frame of the clip. The groups beside are whole."""
    data = rendered(frames=48, gop=12)
    with source_of(damaged(data, 12), name="k.mp4", shard="s3://b/0.tar") as source:
        assert frame_number(source.frame(24)) == 24
        with pytest.raises(CorruptVideo, match=r"k\.mp4 in s3://b/0\.tar"):
            source.frames([12])


HASHES = "log-level=none:scenecut=0:hash=1:pools=none:frame-threads=1"
TELLING: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264, B-frames": {"b_frames": 3},
    "hevc, with hashes": {"codec": "libx265", "codec_options": {"x265-params": HASHES}},
    "av1": {"codec": "libsvtav1"},
    "mpeg-4 part 2": {"codec": "mpeg4"},
    "vp9": {"codec": "libvpx-vp9"},
}


@pytest.mark.parametrize("kind", TELLING)
def test_damage_in_a_frame_that_a_wanted_one_is_made_of(kind: str) -> None:
    """Nobody asked for it; what refers to it would be wrong all the same."""
    data = rendered(frames=48, gop=12, **TELLING[kind])
    with source_of(damaged(data, 16), name="k.mp4") as source:
        assert frame_number(source.frame(8)) == 8
        with pytest.raises(CorruptVideo, match=r"k\.mp4: "):
            source.frames([22])


def test_damage_behind_what_is_wanted_is_no_matter() -> None:
    """It is not decoded."""
    with source_of(damaged(rendered(frames=48, gop=12), 20)) as source:
        assert [frame_number(picture) for picture in source.frames([14, 19])] == [14, 19]


def test_a_damaged_picture_of_motion_jpeg() -> None:
    """Each stands alone, so only its own decoder can tell."""
    data = rendered(frames=12, codec="mjpeg")
    with source_of(damaged(data, 3)) as source:
        assert frame_number(source.frame(4)) == 4
        with pytest.raises(CorruptVideo):
            source.frame(3)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_keyframes_that_are_none(container: str) -> None:
    """With intra refresh the sample that is marked is where the refresh begins. Pictures come from an earlier one on, and are right."""
    refresh = {"x264-params": "intra-refresh=1:keyint=12:bframes=0:threads=1"}
    data = rendered(frames=48, container=container, codec_options=refresh)
    there = pictures_of(data)
    with source_of(data) as source:
        assert source.open().keyframes == (0, 12, 24, 36)
        for number in (12, 13, 40, 23, 47):
            assert numpy.array_equal(source.frame(number), there[number]), number


def test_a_frame_that_is_none() -> None:
    """By its number and how many there are."""
    with source_of(rendered(frames=48)) as source, pytest.raises(IndexError, match="frame 48 of 48"):
        source.frames([0, 48])
