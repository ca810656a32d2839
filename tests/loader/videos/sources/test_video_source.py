"""No room is made that this process cannot have."""

from __future__ import annotations

import pytest
from support.clips import rendered
from support.mp4_boxes import patched, places

from forebay_loader.videos.errors import UnsupportedVideo
from forebay_loader.videos.sources import video_source
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.video_source import room_for


def test_more_than_a_container_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the machine has it: the kernel would end the process."""
    monkeypatch.setattr(video_source, "memory_bytes", lambda: 1_000_000)
    with pytest.raises(UnsupportedVideo, match=r"10 frames of 256 x 256 pixels take 0\.0 GB, and there are 0\.0 GB here"):
        room_for(10, (256, 256, 3))


def test_a_clip_that_asks_for_more() -> None:
    """Named with its shard."""
    with (
        source_of(rendered(), size=(8192, 8192), name="a.mp4", shard="s3://b/0.tar") as source,
        pytest.raises(UnsupportedVideo, match=r"^a\.mp4 in s3://b/0\.tar: 900000 frames of 8192 x 8192 pixels"),
    ):
        source.frames([0] * 900_000)


def declared(width: int, height: int) -> bytes:
    clip = rendered()
    return patched(clip, places(clip, b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1")[0][0] + 32, ">HH", width, height)


def test_what_a_header_says_makes_no_room() -> None:
    """Frames have the size that they have."""
    with source_of(declared(9000, 9000)) as source:
        assert source.frames([0, 30]).shape == (2, 96, 128, 3)


def test_an_absurd_size_is_refused() -> None:
    """Named, before a decoder sees it."""
    with (
        source_of(declared(65535, 65535), name="a.mp4", shard="s3://b/0.tar") as source,
        pytest.raises(UnsupportedVideo, match=r"^a\.mp4 in s3://b/0\.tar: its frames have 65535 x 65535 pixels"),
    ):
        source.frames([0])
