"""Containers that say how long they are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from support.clips import rendered

from forebay_loader.videos.decode.clip_end import check_end
from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.sources.choice import source_of

KINDS: dict[str, dict[str, Any]] = {
    "matroska": {"container": "matroska"},
    "webm": {"container": "webm", "codec": "libvpx-vp9"},
    "matroska of unknown size": {"container": "matroska", "container_options": {"live": "1"}},
    "avi": {"container": "avi", "codec": "mpeg4"},
    "flv": {"container": "flv", "audio": "aac"},
    "ogg": {"container": "ogg", "codec": "libvpx"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_clip(kind: str) -> None:
    """And one that has bytes behind its end, as a tar pads."""
    data = rendered(**KINDS[kind])
    check_end(data)
    check_end(data + bytes(512))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.35, 0.7, 0.97])
def test_a_clip_that_was_cut(kind: str, share: float) -> None:
    """Named, before a frame of it is given."""
    data = rendered(**KINDS[kind])
    with (
        source_of(data[: int(share * len(data))], name="a", shard="s3://b/0.tar") as source,
        pytest.raises(CorruptVideo, match="cut short"),
    ):
        source.open()


def test_a_cut_transport_stream_is_none() -> None:
    """It says nothing of its length: what is there is given."""
    data = rendered(container="mpegts")
    check_end(data[: len(data) // 2])


def test_a_size_that_was_never_filled_in() -> None:
    """A recorder that was switched off left zeros there."""
    data = rendered(container="avi", codec="mpeg4")
    check_end(data[:4] + bytes(4) + data[8:])


@pytest.mark.parametrize(
    "junk", [b"\x1aE\xdf\xa3", b"\x1aE\xdf\xa3\x80\x00", b"\x1aE\xdf\xa3\x01" + b"\xff" * 7 + b"\xff" * 40, b"RIFF", b"FLV", b"OggS"]
)
def test_a_head_and_nothing_of_sense(junk: bytes) -> None:
    """Left to the demuxer, or cut: never another error."""
    with suppress(CorruptVideo):
        check_end(junk)
