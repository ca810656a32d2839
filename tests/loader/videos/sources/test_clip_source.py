"""A clip as a source: opened where it is used, the same in a worker, by ranges of what is needed."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import pytest
from av.error import FFmpegError
from support.clips import frame_number, rendered
from support.fake_proxy import FakeServer
from support.seams import swapped

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode.frames import Buffer, ClipTimer
from forebay_loader.videos.decode.tracks import tracks_of
from forebay_loader.videos.errors import CorruptVideo, VideoError, VideoTimeout
from forebay_loader.videos.sources import clip_source
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.clip_bytes import MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_loader.videos.sources.video_source import memory_bytes

TARGET = "/s3/bucket/a.mp4"


@pytest.mark.parametrize("kind", [IndexError, OverflowError, TypeError, RuntimeError, struct.error, av.error.PermissionError])
@pytest.mark.parametrize("call", ["open", "frames", "audio"])
def test_whatever_a_decoder_raises(kind: type[Exception], call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is an error of the clip, which names it; so are a file's in its own words, and a process without memory is none."""

    def fails(*_: Any) -> None:
        raise error

    error: Exception = kind(13, "no") if issubclass(kind, FFmpegError) else kind("no")
    source = ClipSource(MemoryClip(rendered(), "a.mp4", "s3://b/0.tar"))
    tracks = tracks_of(source._clip.read, source._clip.open(), "", ClipTimer(None, ""))
    swapped(monkeypatch, clip_source, tracks_of=fails if call == "open" else lambda *_: replace(tracks, sound=fails), decoded=fails)
    ask = {"open": source.open, "frames": partial(source.frames, [0]), "audio": partial(source.audio, 0.0, 1.0)}[call]
    with pytest.raises(CorruptVideo, match=rf"^a\.mp4 in s3://b/0\.tar: its decoder fails: {kind.__name__}: .*no"):
        ask()
    for error in (MemoryError("no"), PermissionError("no"), OwnError("no")):
        with pytest.raises(type(error), match="no") as caught:
            ask()
        assert caught.value is error


class OwnError(Exception):
    """Of a signal's handler: it may come at any time."""


@pytest.mark.parametrize("container", ["flv", "mpegts", "mp4", "matroska", "avi"])
def test_a_damaged_byte(container: str) -> None:
    """Gives frames, or an error of the clip: also where a stream appears on the way, by the kind of an FLV's tag."""
    codec, audio = ("mpeg4", "") if container == "avi" else ("libx264", "aac")
    whole, chance = rendered(frames=100, container=container, codec=codec, audio=audio), random.Random(1)
    changes = [(chance.randrange(len(whole)), chance.randrange(256)) for _ in range(40)]
    if container == "flv":
        changes.append((len(whole) - 4 - int.from_bytes(whole[-4:], "big"), 18))
    for at, value in changes:
        data = whole[:at] + bytes([value]) + whole[at + 1 :]
        with suppress(VideoError), source_of(data) as source:
            source.frames(range(0, source.open().frames, 50))


def test_no_frames_at_all() -> None:
    """An empty choice is no error."""
    with source_of(rendered()) as source:
        assert source.frames([]).shape == (0, 96, 128, 3)


def test_it_opens_by_itself_and_again() -> None:
    """Closed, it is as it was made."""
    source = source_of(rendered())
    assert frame_number(source.frame(3)) == 3
    source.close()
    source.close()
    assert source.open().frames == 48


def ranges(proxy: FakeServer) -> list[tuple[int, int]]:
    found = [request.headers["Range"].removeprefix("bytes=").split("-") for request in proxy.asked(TARGET) if "Range" in request.headers]
    return [(int(first), int(last) + 1) for first, last in found]


@pytest.mark.parametrize("moov_first", [True, False])
def test_only_the_bytes_of_the_wanted_groups_travel(proxy: FakeServer, moov_first: bool) -> None:
    """Index and eight of 300 frames: a quarter of the clip at most, in few requests."""
    data = rendered(frames=300, gop=10, width=320, height=240, moov_first=moov_first)
    proxy.put(TARGET, data)
    with source_of("s3://bucket/a.mp4") as source:
        found = source.frames([0, 40, 80, 120, 160, 200, 240, 280])
    assert [frame_number(picture) for picture in found] == [0, 40, 80, 120, 160, 200, 240, 280]
    asked = ranges(proxy)
    assert sum(end - first for first, end in asked) <= 0.25 * len(data)
    assert len(asked) <= 8 + 4


def test_frames_that_lie_together_are_one_request(proxy: FakeServer) -> None:
    """The sound between them costs less than another."""
    proxy.put(TARGET, rendered(frames=96, gop=12, audio="aac", moov_first=True))
    with source_of("s3://bucket/a.mp4") as source:
        source.open()
        before = len(ranges(proxy))
        source.frames(range(96))
    assert len(ranges(proxy)) - before == 1


class Slow(MemoryClip):
    """Each part of it takes a second of its own clock."""

    now_s = 0.0

    def read(self, at: int, size: int) -> Any:
        Slow.now_s += 1.0
        return super().read(at, size)


def test_a_time_limit_is_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading counts: of eight groups few are reached."""
    monkeypatch.setattr(clip_source, "ClipTimer", partial(ClipTimer, clock=lambda: Slow.now_s))
    source = ClipSource(Slow(rendered(frames=480, gop=2), "a.mp4", "s3://b/0.tar"), time_limit_s=5.0)
    assert [len(source.frames([number])) for number in range(0, 60, 6)] == [1] * 10
    with pytest.raises(VideoTimeout, match=r"a\.mp4 in s3://b/0\.tar"):
        source.frames(range(0, 480, 60))


class Watched(MemoryClip):
    """How many threads its process has while it is read."""

    threads = 0

    def read(self, at: int, size: int) -> Buffer:
        self.threads = max(self.threads, len(os.listdir("/proc/self/task")))
        return super().read(at, size)


def threads_of(threads: int) -> int:
    """While the second and third group are read, after the first was decoded."""
    with ClipSource(clip := Watched(rendered(frames=60, gop=10)), threads=threads) as source:
        source.frames([3, 33, 55])
    return clip.threads


def test_a_decoder_begins_no_thread_unless_it_is_told_to() -> None:
    """Workers are the parallelism."""
    before = len(os.listdir("/proc/self/task"))
    assert threads_of(fb.video("uniform(8)").asked.threads) <= before
    assert threads_of(3) >= before + 2


def test_an_error_names_its_clip_once() -> None:
    """Whatever depth it comes from."""
    with source_of(rendered()[:200], name="a.mp4", shard="s3://b/0.tar") as source, pytest.raises(CorruptVideo) as error:
        source.open()
    assert str(error.value).count("a.mp4") == 1
    assert (error.value.clip, error.value.shard) == ("a.mp4", "s3://b/0.tar")


def test_what_is_given_is_counted() -> None:
    """Frames, and the bytes that were read for them."""
    with source_of(rendered(frames=48, gop=12)) as source:
        source.frames([0, 0, 12])
    counts = COUNTS.snapshot()
    assert (counts["video_frames"], counts["video_packets"]) == (3, 2)
    assert 0 < counts["video_bytes"] < len(rendered(frames=48, gop=12))


class Told(MemoryClip):
    """Writes down what it is told to expect, and what is read of it then."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.told: list[list[tuple[int, int]]] = []
        self.asked: list[tuple[int, int]] = []

    def expect(self, spans: Sequence[tuple[int, int]]) -> int:
        self.told.append(list(spans))
        self.asked = []
        return 1

    def read(self, at: int, size: int) -> Buffer:
        self.asked.append((at, at + size))
        return super().read(at, size)


@pytest.mark.parametrize("what", ["frames", "audio"])
def test_a_clip_is_told_what_is_read_next(what: str) -> None:
    """All of it, before the first of it: by that it decides how to ask."""
    clip = Told(rendered(frames=60, gop=10, audio="aac"))
    with ClipSource(clip) as source:
        source.open()
        if what == "frames":
            source.frames([3, 33, 55])
        else:
            source.audio(0.5, 1.0)
        (spans,) = clip.told
        assert clip.asked == spans


MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1048576\n"}, 1 << 20),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 4096),
        ({"proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.max": "8192\n"}, 8192),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/x/memory.max": "8192\n"}, 8192),
        ({"proc/self/cgroup": "4:memory:/j\n0::/\n", "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "12288\n"}, 12_288),
        ({"proc/self/cgroup": "4:cpu,memory:/j\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ({"proc/self/cgroup": "of another system", "sys/fs/cgroup/memory.max": "1"}, MACHINE),
    ],
    ids=["none", "max", "its own", "the one around", "a container", "a way up", "version 1", "without a limit", "no group"],
)
def test_the_smallest_counts(tmp_path: Path, files: dict[str, str], found: int) -> None:
    """Of the machine and each group."""
    put(tmp_path, files)
    assert memory_bytes(tmp_path) == found
