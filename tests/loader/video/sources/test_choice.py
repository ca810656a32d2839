"""What names which source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay_loader.video.sources.camera_source import CameraSource
from forebay_loader.video.sources.choice import source_of
from forebay_loader.video.sources.clip_source import ClipSource
from forebay_loader.video.sources.frames_source import FramesSource
from forebay_loader.video.sources.live_source import LiveSource


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
    ],
)
def test_a_name_leads_to_its_source(what: Any, kind: type, shown: str) -> None:
    """By scheme, nothing is opened, and nothing secret is shown."""
    source = source_of(what)
    assert type(source) is kind
    assert repr(source) == f"<{kind.__name__} {shown}>"


@pytest.mark.parametrize("what", ["", None, 7, b"".join])
def test_what_names_nothing(what: Any) -> None:
    with pytest.raises(TypeError):
        source_of(what)


@pytest.mark.parametrize("url", ["lmdb:///data", "lmdb:///data?clip=a&rate=3", "lmdb:///data?clip=a&fps=0"])
def test_an_lmdb_needs_a_clip(url: str) -> None:
    """And knows its rate and nothing else."""
    with pytest.raises(ValueError, match=r"clip=NAME|fps takes"):
        source_of(url)
