"""Which container a clip is in is seen by its first bytes, whatever its name."""

from __future__ import annotations

import pytest
from support.clips import frame_number, rendered, sound_only

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError
from forebay_loader.videos.sources.choice import source_of


@pytest.mark.parametrize("how", [{"container": "webm", "codec": "libvpx-vp9"}, {}], ids=["webm", "mp4"])
def test_a_wrong_suffix_is_no_matter(how: dict[str, str]) -> None:
    """A webm that is named mp4, and the other way round."""
    with source_of(rendered(**how), name="a.mp4" if how else "a.webm") as source:
        assert frame_number(source.frame(13)) == 13


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\0" * 4096, b"<!DOCTYPE html>" * 30, b"\x1aE\xdf\xa3" + b"\xff" * 500])
def test_what_is_no_clip(data: bytes) -> None:
    """Told with its name and shard; a member of no byte is a common end of a broken upload."""
    kind, why = (VideoError, "") if data else (CorruptVideo, ": .*no byte")
    with source_of(data, name="a.mp4", shard="s3://b/0.tar") as source, pytest.raises(kind, match=rf"a\.mp4 in s3://b/0\.tar{why}"):
        source.open()


def test_sound_alone() -> None:
    """It has no frame to give."""
    with source_of(sound_only(), name="a.ogg") as source:
        assert source.open().frames == 0
        assert source.audio(0.0, 1.0)[1] == 48_000
        with pytest.raises(UnsupportedVideo, match=r"a\.ogg: there is no video"):
            source.frames([0])
