"""Containers that say how long they are."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.clips import frame_number, rendered
from support.remuxing import remuxed

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode import tracks
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
@pytest.mark.parametrize("share", [0.35, 0.7, 0.97])
def test_a_clip_that_was_cut(kind: str, share: float) -> None:
    """Named, before a frame of it is given."""
    data = rendered(**KINDS[kind])
    with (
        source_of(data[: int(share * len(data))], name="a", shard="s3://b/0.tar") as source,
        pytest.raises(CorruptVideo, match="cut short"),
    ):
        source.open()


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


def counted() -> int:
    return COUNTS.snapshot()["video_cut"]


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(tracks, "notice_once", lambda key, text: found.append(text))
    return found


def ogg() -> bytes:
    """VP8 in Ogg, two seconds."""
    return rendered(container="ogg", codec="libvpx")


def pages_before(data: bytes, last: int) -> bytes:
    """Without its last pages."""
    return data[: [found.start() for found in re.finditer(b"OggS", data)][-last]]


def asf_cut() -> bytes:
    """Two thirds of one: whole packets of it."""
    data = rendered(container="asf")
    return data[: len(data) * 2 // 3 // 3200 * 3200 + 1000]


def longer(data: bytes, seconds: float) -> bytes:
    """A Matroska that says that it lasts so long: its Duration, an eight-byte float."""
    at = data.index(b"\x44\x89\x88") + 3
    return data[:at] + struct.pack(">d", seconds * 1000) + data[at + 8 :]


def flv_of(frames: int, says: int) -> bytes:
    """Whole tags, of as many frames; written as if more came."""
    whole = rendered(container="flv", frames=says)
    part = remuxed(whole, "flv", lambda kind, number, packet: number < frames)
    at, there = part.index(b"duration\0") + 9, whole.index(b"duration\0") + 9
    return part[:at] + whole[there : there + 8] + part[at + 8 :]


CUT: dict[str, tuple[Callable[[], bytes], str, int]] = {
    "Matroska that says more": (
        lambda: longer(rendered(container="matroska"), 20.0),
        r"lasts 20\.0 s, and what is in it ends at 2\.0 s",
        48,
    ),
    "FLV that says more": (lambda: flv_of(24, 144), r"lasts 6\.\d s, and what is in it ends at 1\.0 s", 24),
    "ASF, cut": (asf_cut, r"it says that it has \d+ bytes, and there are \d+", 20),
    "Ogg, without its last page": (lambda: pages_before(ogg(), 1), "its last page is not marked as such", 30),
    "transport stream, within a packet": (lambda: rendered(container="mpegts")[:-100], "its last packet has 88 of 188 bytes", 48),
}
WHOLE: dict[str, Callable[[], bytes]] = {
    "Matroska": lambda: rendered(container="matroska"),
    "Matroska with longer sound": lambda: rendered(container="matroska", audio="aac", audio_s=12.0),
    "Matroska of unknown length": lambda: rendered(container="matroska", container_options={"live": "1"}),
    "WebM": lambda: rendered(container="webm", codec="libvpx-vp9"),
    "FLV": lambda: rendered(container="flv"),
    "FLV, with sound": lambda: rendered(container="flv", audio="aac", audio_s=12.0),
    "transport stream": lambda: rendered(container="mpegts"),
    "Ogg": ogg,
    "ASF": lambda: rendered(container="asf", audio="aac"),
    "AVI": lambda: rendered(container="avi", codec="mpeg4"),
    "AVI, padded as in a tar": lambda: rendered(container="avi", codec="mpeg4") + bytes(512),
    "Matroska, padded": lambda: rendered(container="matroska") + bytes(512),
}


@pytest.mark.parametrize("name", CUT)
def test_a_clip_that_may_have_been_cut(name: str, noticed: list[str]) -> None:
    """Its frames, and a word of it."""
    make, why, frames = CUT[name]
    before = counted()
    with source_of(make(), name="a.clip") as source:
        assert [frame_number(one) for one in source.frames(range(min(frames, 40)))] == list(range(min(frames, 40)))
    assert counted() == before + 1
    (said,) = noticed
    assert said.startswith("a.clip may have been cut: ")
    assert re.search(why, said), said


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_clip_of_early_end(name: str, noticed: list[str]) -> None:
    """Nothing is said of it."""
    before = counted()
    with source_of(WHOLE[name]()) as source:
        assert source.open().frames == 48
    assert (counted(), noticed) == (before, [])
