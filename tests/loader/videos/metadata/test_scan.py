"""The scan: every clip once, in parallel, stopped and gone on with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.clip_infos import steady
from support.painted_source import Opened, PaintedSource, scan_here

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.metadata import scan
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.decoder_processes import DecoderDied
from forebay_loader.videos.metadata.scan import ClipToScan, ScanProgress


class Clips:
    """Clips by number; ``opened`` tells which were looked at."""

    def __init__(self, **broken: Exception) -> None:
        self.opened: list[str] = []
        self.broken = broken
        self.version = "v1"

    def some(self, *numbers: int) -> Iterator[ClipToScan[Opened]]:
        for number in numbers:
            yield ClipToScan(f"c{number}", 100 + number, self.version, lambda number=number: self._open(number))  # type: ignore[misc]

    def _open(self, number: int) -> AbstractContextManager[Any]:
        self.opened.append(f"c{number}")
        return self._source(number)

    @contextmanager
    def _source(self, number: int) -> Iterator[Any]:
        if f"c{number}" in self.broken:
            raise self.broken[f"c{number}"]
        yield PaintedSource(steady(number + 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.clips"


def test_every_clip_is_in_the_table(path: Path) -> None:
    """With its motion."""
    done = scan_here(Clips().some(*range(20)), path, workers=3)
    assert (done.scanned, done.known, done.failed) == (20, 0, {})
    assert done.clip_bytes == sum(range(100, 120))
    table = ClipTable(path)
    assert [table.find(f"c{number}").frames for number in range(20)] == list(range(1, 21))  # type: ignore[union-attr]
    assert table.find("c3").motion is not None  # type: ignore[union-attr]


def test_a_broken_clip_is_named_and_passed_over(path: Path) -> None:
    """The others are scanned, and it is tried again the next time."""
    clips = Clips(c1=CorruptVideo("no picture", "c1", "s3://b/1.tar"))
    done = scan_here(clips.some(0, 1, 2), path)
    assert done.scanned == 2
    assert done.failed == {"c1": "c1 in s3://b/1.tar: no picture"}
    assert ClipTable(path).find("c1") is None
    clips.broken = {}
    assert scan_here(clips.some(0, 1, 2), path).scanned == 1


@pytest.mark.parametrize("error", [IndexError("list index out of range"), OSError(5, "Input/output error")])
def test_an_error_that_nobody_thought_of_is_the_clips(path: Path, error: Exception) -> None:
    """A scan that ended there would end there each time."""
    done = scan_here(Clips(c1=error).some(0, 1, 2), path)
    assert (done.scanned, done.failed) == (2, {"c1": f"{type(error).__name__}: {error}"})

    def opened() -> AbstractContextManager[Any]:
        raise error

    assert scan_here([ClipToScan("d", 1, "", opened)], path).failed == {"d": f"{type(error).__name__}: {error}"}


@pytest.mark.parametrize("by_clip", [True, False])
def test_a_clip_that_kills_its_decoder_is_tried_once(path: Path, by_clip: bool) -> None:
    """Later scans name it again and leave it alone, until the file that says so is removed. One whose process was ended is tried again."""
    died = DecoderDied("its process died, signal 11")
    died.by_clip = by_clip
    clips = Clips(c1=died)
    first, second = scan_here(clips.some(0, 1, 2), path), scan_here(clips.some(0, 1, 2), path)
    assert (first.scanned, second.known, second.failed) == (2, 2, first.failed)
    again = f"; it is tried again once {path}.deaths is removed" if by_clip else ""
    assert first.failed == {"c1": f"its process died, signal 11{again}"}
    assert clips.opened.count("c1") == (1 if by_clip else 2)
    path.with_name("set.clips.deaths").unlink(missing_ok=True)
    clips.broken = {}
    assert scan_here(clips.some(1), path).scanned == 1


def test_known_clips_are_not_looked_at(path: Path) -> None:
    """Of the same length and version; others of the table stay in it."""
    scan_here(Clips().some(0, 1), path)
    clips = Clips()
    done = scan_here(clips.some(1, 2), path)
    assert clips.opened == ["c2"]
    assert (done.scanned, done.known) == (1, 1)
    assert len(ClipTable(path)) == 3


def test_another_version_is_looked_at_again(path: Path) -> None:
    """Its shard was replaced."""
    scan_here(Clips().some(0), path)
    clips = Clips()
    clips.version = "v2"
    assert scan_here(clips.some(0), path).scanned == 1
    assert ClipTable(path).record("c0").version == "v2"  # type: ignore[union-attr]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_stopped_scan_goes_on(path: Path, stop: type[BaseException]) -> None:
    """What was found is kept."""

    def stopped(progress: ScanProgress) -> None:
        if progress.scanned == 5:
            raise stop

    first, second = Clips(), Clips()
    with pytest.raises(stop):
        scan_here(first.some(*range(50)), path, workers=1, progress=stopped)
    assert len(ClipTable(path)) == 5
    done = scan_here(second.some(*range(50)), path)
    assert done.known == 5
    assert done.known + done.scanned == 50
    assert len(ClipTable(path)) == 50


def test_it_runs_in_parallel(path: Path) -> None:
    """Two clips wait for each other."""
    meeting = threading.Barrier(2, timeout=30)

    @contextmanager
    def source() -> Iterator[Any]:
        meeting.wait()
        yield PaintedSource(steady(2))

    assert scan_here([ClipToScan(name, 1, "", source) for name in "ab"], path, workers=2).scanned == 2


def test_few_clips_are_asked_for_ahead(path: Path) -> None:
    """The list of a million is not read into memory."""
    clips, ahead = Clips(), []
    asked = 0

    def counted() -> Iterator[ClipToScan[Opened]]:
        nonlocal asked
        for clip in clips.some(*range(100)):
            asked += 1
            yield clip

    scan_here(counted(), path, workers=2, progress=lambda done: ahead.append(asked - done.clips))
    assert max(ahead) <= 5


def test_what_is_in_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Films are read one at a time, however many workers there are; one that is larger than all that is allowed has it for itself."""
    monkeypatch.setattr(scan, "_MOST_HELD", 100)
    held, most, alone = 0, 0, threading.Lock()

    @contextmanager
    def source(size: int) -> Iterator[Any]:
        nonlocal held
        yield PaintedSource(steady(2))
        with alone:
            held -= size

    def opened(size: int) -> AbstractContextManager[Any]:
        nonlocal held, most
        with alone:
            held += size
            most = max(most, held)
        return source(size)

    sizes = (60, 30, 60, 250, 10, 10)
    clips = [ClipToScan(str(number), size, "", lambda size=size: opened(size), size) for number, size in enumerate(sizes)]
    assert scan_here(clips, path, workers=4).scanned == len(sizes)
    assert most == 250


def test_sound_that_was_left_unread_is_no_reason_to_pass(path: Path) -> None:
    """Whoever scans with it has the clips looked at again; whoever scans without it then has them known."""
    clips = [ClipToScan("a", 1, "v", lambda: nullcontext(PaintedSource(steady(9, audio_rate_hz=1000))))]
    assert scan_here(clips, path, audio=False).scanned == 1
    assert scan_here(clips, path).scanned == 1
    assert scan_here(clips, path, audio=False).known == 1
