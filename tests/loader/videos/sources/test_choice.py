"""What names which source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_loader.videos.sources.frames_source import FramesSource
from forebay_loader.videos.sources.live_source import CameraSource, LiveSource


@pytest.mark.parametrize(
    ("what", "kind", "shown"),
    [
        (b"", ClipSource, "in memory"),
        (memoryview(b""), ClipSource, "in memory"),
        ("a/b.mp4", ClipSource, "b.mp4"),
        (Path("a/b.webm"), ClipSource, "b.webm"),
        ("s3://bucket/a.mp4", ClipSource, "s3://bucket/a.mp4"),
        ("https://host/a.mp4?token=secret", ClipSource, "https://host/a.mp4"),
        ("pipe:aws s3 cp s3://bucket/a.mp4 -", ClipSource, "s3://bucket/a.mp4"),
        ("rtsp://me:secret@host/live?secret", LiveSource, "rtsp://host/live"),
        ("live+https://host/a.m3u8", LiveSource, "https://host/a.m3u8"),
        ("/dev/video0", CameraSource, "/dev/video0"),
        ("v4l2:///dev/video1", CameraSource, "/dev/video1"),
        ("avfoundation://0", CameraSource, "0"),
        ("lmdb:///data/frames?clip=a&fps=12.5", FramesSource, "a in /data/frames"),
        ({"url": "s3://bucket/a.mp4", "size": [48, 64]}, ClipSource, "s3://bucket/a.mp4"),
        ({"url": "https://host/gate", "kind": "live"}, LiveSource, "https://host/gate"),
        ({"url": "/data/frames", "clip": "a", "fps": 12.5}, FramesSource, "a in /data/frames"),
        ({"url": "/srv/odd-name", "kind": "camera", "options": {"framerate": "30"}}, CameraSource, "/srv/odd-name"),
    ],
)
def test_a_name_or_a_table_of_settings_leads_to_its_source(what: Any, kind: type, shown: str) -> None:
    """By scheme, or by what the table says; nothing is opened, and nothing secret is shown."""
    source = source_of(what)
    assert type(source) is kind
    assert repr(source) == f"<{kind.__name__} {shown}>"


def test_what_a_table_says_counts_more_than_the_arguments() -> None:
    with source_of({"url": "lavfi://testsrc=size=64x48:rate=25", "size": 24}, size=12) as source:
        assert source.frame(0).shape == (24, 32, 3)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({}, "no url"),
        ({"url": 7}, "no url"),
        ({"url": "a.mp4", "sise": 7}, "sise"),
        ({"url": "a.mp4", "kind": "film"}, "one of clip, frames, live, camera; got 'film'"),
        ({"url": "a.mp4", "kind": "clip", "clip": "a"}, "clip names a clip in an LMDB"),
        ({"url": "/data", "fps": 3}, "clip names a clip in an LMDB"),
        ({"url": "a.mp4", "size": 0}, "size takes sides"),
    ],
)
def test_a_table_that_says_nothing_sensible(table: dict[str, object], match: str) -> None:
    """Named before anything is opened."""
    with pytest.raises(ValueError, match=match):
        source_of(table)


@pytest.mark.parametrize("what", ["", None, 7, b"".join])
def test_what_names_nothing(what: Any) -> None:
    with pytest.raises(TypeError):
        source_of(what)


@pytest.mark.parametrize("url", ["lmdb:///data?clip=a&rate=3", "lmdb:///data?clip=a&fps=0"])
def test_an_lmdb_has_a_clip_and_a_rate(url: str) -> None:
    """And nothing else."""
    with pytest.raises(ValueError, match=r"clip=NAME|fps takes"):
        source_of(url)
