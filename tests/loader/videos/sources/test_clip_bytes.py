"""The bytes of a clip in memory, in a file, of a member, of an object by ranges of one version."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer, ramp

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ShardChanged, ShardReadError
from forebay_loader.stream.range_reads import SPANS_AT_ONCE
from forebay_loader.videos.sources.clip_bytes import ClipBytes, FileClip, MemberClip, MemoryClip, ObjectClip

DATA = ramp(10_000)
TARGET = "/s3/bucket/a.mp4"


@pytest.fixture(params=["memory", "file", "member", "object"])
def clip(request: pytest.FixtureRequest, tmp_path: Path, proxy: FakeServer) -> ClipBytes:
    if request.param == "memory":
        return MemoryClip(DATA, "a.mp4")
    if request.param == "member":
        return MemberClip(lambda at, size: DATA[at : at + size], len(DATA), "a.mp4")
    if request.param == "file":
        (tmp_path / "a.mp4").write_bytes(DATA)
        return FileClip(tmp_path / "a.mp4")
    proxy.put(TARGET, DATA)
    return ObjectClip("s3://bucket/a.mp4")


def test_parts_of_a_clip(clip: ClipBytes) -> None:
    """Its length, any part, fewer bytes at the end only, none behind it."""
    assert clip.open() == len(DATA)
    for at, size in ((0, 10), (5000, 1234), (len(DATA) - 5, 5)):
        assert bytes(clip.read(at, size)) == DATA[at : at + size]
    assert bytes(clip.read(len(DATA) - 5, 100)) == DATA[-5:]
    assert bytes(clip.read(len(DATA) + 5, 100)) == b""
    clip.close()
    clip.close()


def test_it_travels_without_a_version(proxy: FakeServer) -> None:
    """A worker that starts later opens what the object is by then."""
    proxy.put(TARGET, DATA)
    clip = ObjectClip("s3://bucket/a.mp4")
    clip.open()
    proxy.put(TARGET, ramp(9_000, 2))
    assert pickle.loads(pickle.dumps(clip)).open() == 9_000


def test_an_object_is_one_version(proxy: FakeServer) -> None:
    """One that was replaced meanwhile is an error; opened again, it is the new one."""
    proxy.put(TARGET, DATA)
    clip = ObjectClip("s3://bucket/a.mp4")
    clip.open()
    proxy.put(TARGET, ramp(9_000, 2))
    with pytest.raises(ShardChanged):
        clip.read(0, 10)
    clip.close()
    assert clip.open() == 9_000


def test_bytes_by_ranges_are_counted(proxy: FakeServer) -> None:
    """As those of every other way in."""
    proxy.put(TARGET, DATA)
    clip = ObjectClip("s3://bucket/a.mp4")
    clip.open()
    clip.read(0, 100)
    assert COUNTS.snapshot()["bytes_proxy"] == 100


def test_little_of_an_object_is_asked_for_alone(proxy: FakeServer) -> None:
    """The sidecar hears it with each part: of what was said to be read next, else of the part itself."""
    proxy.put(TARGET, ramp(1 << 20))
    clip = ObjectClip("s3://bucket/a.mp4")
    length = clip.open()
    clip.read(0, 10)
    clip.read(0, length)
    clip.expect([(0, length)])
    clip.read(0, 10)
    clip.expect([(0, 10), (300_000, 300_010)])
    clip.read(0, 10)
    said = [asked.headers.get("Forebay-Sparse", "") for asked in proxy.asked(TARGET) if asked.method == "GET"]
    assert said == ["1", "", "", "1"]


def test_only_parts_that_come_from_far_are_asked_for_together(clip: ClipBytes) -> None:
    """What is here is read part by part."""
    clip.open()
    assert clip.expect([(0, 10), (5000, 5010)]) == (SPANS_AT_ONCE if isinstance(clip, ObjectClip) else 1)


def test_what_was_expected_ends_with_the_clip(proxy: FakeServer) -> None:
    """And does not travel."""
    proxy.put(TARGET, ramp(1 << 20))
    clip = ObjectClip("s3://bucket/a.mp4")
    clip.expect([(0, clip.open())])
    other = pickle.loads(pickle.dumps(clip))
    clip.close()
    for one in (clip, other):
        one.open()
        one.read(0, 10)
    assert [asked.headers.get("Forebay-Sparse", "") for asked in proxy.asked(TARGET) if asked.method == "GET"] == ["1", "1"]


def test_nothing_is_asked_before_it_is_opened(proxy: FakeServer) -> None:
    """A data set of a million clips costs nothing to build."""
    ObjectClip("s3://bucket/a.mp4")
    assert not proxy.requests


def test_what_the_sidecar_does_not_read() -> None:
    """A command that only webdataset knows."""
    with pytest.raises(ShardReadError, match="left to webdataset"):
        ObjectClip("pipe:my-own-tool a.mp4")


def test_a_file_is_closed_with_its_clip(tmp_path: Path) -> None:
    """No descriptor stays."""
    (tmp_path / "a.mp4").write_bytes(DATA)
    before = len(os.listdir("/proc/self/fd"))
    clip = FileClip(tmp_path / "a.mp4")
    clip.open()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del clip
    assert len(os.listdir("/proc/self/fd")) == before
