"""What is known of clips, and found out of those that no scan has seen."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.clip_infos import steady
from support.painted_source import PaintedSource, scan_here

from forebay_loader.base.counters import counters
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.metadata.clip_metadata import ClipMetadata
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord
from forebay_loader.videos.metadata.scan import ClipToScan

INFO = steady(100)


def nothing() -> AbstractContextManager[PaintedSource]:
    raise AssertionError("it is measured again")


@contextmanager
def flickers() -> Iterator[PaintedSource]:
    yield PaintedSource(INFO, lambda number: number % 2 * 255)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.clips"


def scanned(path: Path, motion: float) -> None:
    ClipTable(path).add([ClipRecord("a", 9, "", steady(100, motion=array("f", [motion])))])


def motion(info: ClipInfo) -> float:
    return max(info.motion or [-1.0])


def test_a_scanned_clip_is_looked_up(path: Path) -> None:
    """And nothing of it is read; what its own index says stays."""
    scanned(path, 0.5)
    found = ClipMetadata(path).completed(INFO, "a", 9, nothing)
    assert motion(found) == 0.5
    assert found.times_s == INFO.times_s


def test_an_unknown_one_is_measured_once(path: Path) -> None:
    """In this process, in the next, and in a copy that travels."""
    metadata = ClipMetadata(path)
    first = metadata.completed(INFO, "a", 9, flickers)
    assert motion(first) > 0.1
    for other in (metadata, ClipMetadata(path), pickle.loads(pickle.dumps(metadata))):
        assert other.completed(INFO, "a", 9, nothing) == first
    assert counters()["video_scanned"] == 1


def test_a_name_of_odd_bytes(path: Path) -> None:
    """As a tar of another century has them: found out, kept, scanned and looked up like any other."""
    odd = "s3://b/1.tar\nclip-\udce9.mp4"
    ClipMetadata(path).completed(INFO, odd, 9, flickers)
    assert scan_here([ClipToScan(odd, 9, "", nothing)], path).known == 1
    assert motion(ClipMetadata(path).completed(INFO, odd, 9, nothing)) > 0.1


def test_another_length_is_another_clip(path: Path) -> None:
    """Whoever measured it, and whenever."""
    scanned(path, 0.0)
    metadata = ClipMetadata(path)
    assert motion(metadata.completed(INFO, "a", 9, nothing)) == 0.0
    for clip_bytes in (10, 11):
        assert motion(metadata.completed(INFO, "a", clip_bytes, flickers)) > 0.1
    assert counters()["video_scanned"] == 2


@pytest.mark.parametrize("other", [steady(100, 25.0), steady(100, gop=10), steady(100, audio_rate_hz=1000), replace(INFO, width=32)])
def test_a_clip_in_the_place_of_another(path: Path, other: ClipInfo) -> None:
    """A shard was written anew, and a clip of its happens to be as long as the one of its name before."""

    @contextmanager
    def looked_at() -> Iterator[PaintedSource]:
        yield PaintedSource(other, lambda number: number % 2 * 255)

    scanned(path, 0.0)
    metadata = ClipMetadata(path)
    assert motion(metadata.completed(other, "a", 9, looked_at)) > 0.1
    assert motion(ClipMetadata(path).completed(other, "a", 9, nothing)) > 0.1
    assert counters()["video_scanned"] == 1


def test_sound_that_was_left_unread_is_listened_to(path: Path) -> None:
    """A scan without it leaves samplers by sound without an answer."""
    heard = steady(100, audio_rate_hz=1000)
    scan_here([ClipToScan("a", 9, "", lambda: nullcontext(PaintedSource(heard)))], path, audio=False)
    found = ClipMetadata(path).completed(heard, "a", 9, lambda: nullcontext(PaintedSource(heard)))
    assert max(found.audio_energy or [0.0]) > 0.1


def test_what_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    """A folder that is not there: the training goes on."""
    metadata = ClipMetadata(tmp_path / "none" / "set.clips")
    assert motion(metadata.completed(INFO, "a", 9, flickers)) > 0.1
    assert motion(metadata.completed(INFO, "a", 9, nothing)) > 0.1


def test_a_broken_clip_is_an_error_each_time(path: Path) -> None:
    """It is not remembered as still."""

    @contextmanager
    def broken() -> Iterator[PaintedSource]:
        raise CorruptVideo("no picture")
        yield

    for _ in range(2):
        with pytest.raises(CorruptVideo):
            ClipMetadata(path).completed(INFO, "a", 9, broken)
