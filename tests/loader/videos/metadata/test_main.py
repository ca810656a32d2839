"""The scan's program: JSON lines in, JSON lines out, an exit code. With real shards: e2e/test_video_index.py."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clip_infos import steady
from support.painted_source import Opened, PaintedSource, look_here
from support.seams import swapped

from forebay_loader.base.errors import ShardReadError
from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.metadata import __main__ as program
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord
from forebay_loader.videos.metadata.scan import ClipToScan


@contextmanager
def source(frames: int) -> Iterator[PaintedSource]:
    if not frames:
        raise CorruptVideo("no picture")
    yield PaintedSource(steady(frames, audio_rate_hz=1000))


def clip(name: str, frames: int) -> ClipToScan[Opened]:
    return ClipToScan(name, 100, "", lambda: source(frames))


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shard "a" has two clips, "b" a broken one; there is no other. "c" is a clip."""

    def of_shard(url: str, suffixes: Any) -> Iterator[ClipToScan[Opened]]:
        if url not in ("a", "b"):
            raise ShardReadError(f"shard {url}: 404")
        yield from [clip("a\n1", 3), clip("a\n2", 4)] if url == "a" else [clip("b\n1", 0)]

    swapped(monkeypatch, program, clips_of_shard=of_shard, lone_clip=lambda url: clip(url, 5))


def run(path: Path, *lines: dict[str, str], more: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    code = program.run([str(path), *more], [json.dumps(line) for line in lines], out, look_here)  # type: ignore[arg-type]
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.usefixtures("shards")
def test_what_is_named_is_scanned(tmp_path: Path) -> None:
    """Shards, and clips by themselves; the last line counts."""
    code, events = run(tmp_path / "t", {"shard": "a"}, {"clip": "c"})
    assert code == 0
    assert events[-1] == {"event": "end", "shards": 2, "scanned": 3, "known": 0, "failed": 0, "clip_bytes": 300}
    assert len(ClipTable(tmp_path / "t")) == 3


@pytest.mark.usefixtures("shards")
def test_what_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    """A shard by the name that came with it, a clip by its own; the others are scanned."""
    code, events = run(tmp_path / "t", {"shard": "secret", "name": "x.tar"}, {"shard": "b"}, {"shard": "a"})
    assert code == 0
    failed = [event for event in events if event["event"] == "failed"]
    assert failed == [
        {"event": "failed", "name": "x.tar", "error": "shard secret: 404"},
        {"event": "failed", "name": "b/1", "error": "no picture"},
    ]
    assert (events[-1]["scanned"], events[-1]["failed"]) == (2, 1)


@pytest.mark.usefixtures("shards")
def test_sound_may_be_left_unread(tmp_path: Path) -> None:
    """It is half of the work, where nobody asks for it."""
    run(tmp_path / "t", {"clip": "c"}, more=("--no-audio", "--workers", "1"))
    info = ClipTable(tmp_path / "t").find("c")
    assert info is not None
    assert info.audio_energy is None


@pytest.mark.usefixtures("shards")
def test_a_table_that_is_none_stops_it(tmp_path: Path) -> None:
    """In one line, with an exit code."""
    (tmp_path / "t").write_text("my thesis")
    code, events = run(tmp_path / "t", {"shard": "a"})
    assert code == 1
    assert [event["event"] for event in events] == ["stopped"]
    assert "is no table of clips" in events[0]["error"]


@pytest.mark.usefixtures("shards")
def test_progress_is_told_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of a million clips."""
    monkeypatch.setattr(program.time, "monotonic", lambda: 1.0)
    _, events = run(tmp_path / "t", *[{"shard": "a"}] * 50)
    assert [event["event"] for event in events] == ["progress", "end"]


def test_a_table_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is one; else an error, and no table is made."""
    out = io.StringIO()
    ClipTable(tmp_path / "a.clips").add([ClipRecord("a.mp4", 7, "", steady(3))])
    assert program.main([str(tmp_path / "a.clips"), "--list", "--json"], (), out) == 0
    assert json.loads(out.getvalue())["frames"] == 3
    assert program.main([str(tmp_path / "none.clips"), "--list"], (), out) == 1
    assert "none.clips" in capsys.readouterr().err
    assert not (tmp_path / "none.clips").exists()
