"""Clips that go through FFmpeg's demuxers: what is made of those that recorders and cutters leave."""

from __future__ import annotations

import itertools

import numpy
import pytest
from support.clips import frame_number, pictures_of, rendered
from support.remuxing import joined, remuxed

from forebay_loader.videos.decode.demux import demuxed
from forebay_loader.videos.decode.frames import ClipTimer
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoTimeout
from forebay_loader.videos.sources.choice import source_of

FOREVER = ClipTimer(None, "")


@pytest.mark.parametrize("container", ["mpegts", "matroska"])
@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
@pytest.mark.parametrize("cut", [12, 9])
def test_a_clip_that_was_cut_within_an_open_group(codec: str, container: str, cut: int) -> None:
    """What nothing can decode is no frame of it; the clip begins with the first that can, and its sound with that."""
    whole = rendered(codec=codec, b_frames=2, open_gop=True, container=container)
    data = remuxed(whole, container, lambda kind, number, packet: number >= cut)
    there = pictures_of(data)
    with source_of(data) as source:
        assert source.open().frames == len(there) > 20
        assert source.open().begin_s == 0.0
        assert numpy.array_equal(source.frames(range(len(there))), numpy.stack(there))


def test_leading_pictures_that_stand_alone_stay() -> None:
    """HEVC marks those that need nothing from before their keyframe."""
    radl = {
        "x265-params": "log-level=none:scenecut=0:open-gop=0:radl=2:bframes=3:b-adapt=0:keyint=12:min-keyint=12:pools=none:frame-threads=1"
    }
    data = rendered(codec="libx265", container="matroska", b_frames=3, codec_options=radl)
    there = pictures_of(data)
    with source_of(data) as source:
        assert source.open().frames == len(there)
        assert [frame_number(picture) for picture in source.frames(range(48))] == list(range(48))


def test_metadata_of_another_encoding() -> None:
    """Nobody reads it."""
    data = rendered(container="matroska").replace(b"Lavf", b"L\xe9vf")
    assert b"L\xe9vf" in data
    with source_of(data) as source:
        assert source.open().frames == 48


def test_pictures_of_a_codec_that_nobody_knows() -> None:
    """Told as such."""
    data = rendered(container="matroska").replace(b"V_MPEG4/ISO/AVC", b"V_XXXXX/ISO/XXX")
    with source_of(data, name="a.mkv") as source, pytest.raises(UnsupportedVideo, match=r"a\.mkv: no decoder for its pictures"):
        source.open()


def test_opening_has_its_time() -> None:
    """Each packet is one step of it."""
    steps = itertools.count()
    with pytest.raises(VideoTimeout, match=r"a\.mkv in s3://b/0\.tar: .* 5 s"):
        demuxed(rendered(container="matroska"), ClipTimer(5.0, "a.mkv", "s3://b/0.tar", lambda: float(next(steps))))


def test_a_packet_that_lies_in_the_clip_is_not_copied() -> None:
    """Of a Matroska clip none is; of a transport stream those that it cut in pieces."""
    data = rendered(container="matroska")
    store = demuxed(data, FOREVER).read
    assert {type(store.part(number)) for number in range(48)} == {memoryview}  # type: ignore[attr-defined]
    pieces = demuxed(rendered(container="mpegts"), FOREVER).read
    assert {type(pieces.part(number)) for number in range(48)} >= {bytes}  # type: ignore[attr-defined]


@pytest.mark.parametrize("frames", [12, 36])
def test_transport_streams_that_were_joined_by_cat(frames: int) -> None:
    """Their pictures have the same times, and would come out mixed; with new times they are one clip."""
    one = rendered(container="mpegts", frames=frames)
    with (
        source_of(one + one, name="a.ts") as source,
        pytest.raises(UnsupportedVideo, match=rf"a\.ts: its clock goes back at packet {frames}"),
    ):
        source.open()
    with source_of(joined(one, one, 2.0)) as source:
        assert [frame_number(picture) for picture in source.frames(range(2 * frames))] == [*range(frames), *range(frames)]


def test_no_picture_at_all() -> None:
    """A track whose packets were left out."""
    data = remuxed(rendered(container="matroska", audio="aac"), "matroska", lambda kind, number, packet: kind == "audio")
    with source_of(data) as source, pytest.raises(CorruptVideo, match="no picture"):
        source.open()
