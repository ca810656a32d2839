"""task.py: what a task holds in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.seams import swapped
from support.tars import tar_shard

from forebay_stage import task as task_module
from forebay_stage.destination import Destination, destination_of
from forebay_stage.plan import Piece
from forebay_stage.task import AssembleTask, run_task

SAMPLE = 512 + 1024 + 512 + 512  # two files


@dataclass
class Watched:
    """A destination that counts the bytes that were asked for and are not written yet."""

    inner: Destination
    asked: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self.lock:
            self.asked.append(offset)
        return self.inner.read(name, offset, length)


@pytest.mark.parametrize(("ahead", "most"), [(SAMPLE, 1), (3 * SAMPLE, 3)])
def test_large_samples_are_not_read_far_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, most: int) -> None:
    """So many bytes at once, and one sample where that alone is more; each is written, in order."""
    destination = destination_of(str(tmp_path / "out"))
    destination.put("part", tar_shard(0, 9, 1000))
    watched, seen = Watched(destination), list[int]()
    whole = task_module.samples_of_piece

    def counted(name: str, content: bytes) -> Any:
        for sample in whole(name, content):
            with watched.lock:
                seen.append(len(watched.asked) - len(seen))
            yield sample

    swapped(monkeypatch, task_module, destination_of=lambda _: watched, samples_of_piece=counted, _AHEAD_BYTES=ahead)
    pieces = tuple(Piece("part", number * SAMPLE, SAMPLE) for number in range(9))
    made = run_task(AssembleTask("00000.tar", pieces, str(tmp_path / "out"), None))
    assert made.samples == 9
    assert sorted(watched.asked) == [piece.offset for piece in pieces]
    assert max(seen) <= most
