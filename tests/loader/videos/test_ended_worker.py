"""Decoding that is ended from outside, in its middle: nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clips import rendered

TIMED_OUT = """
import gc, itertools, os, sys
from forebay_loader.videos.decode.frames import ClipTimer
from forebay_loader.videos.errors import VideoTimeout
from forebay_loader.videos.sources.clip_bytes import MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource

data = open(sys.argv[1], "rb").read()
steps, seen = itertools.count(), []

def threads():
    return len(os.listdir("/proc/self/task"))

def clock():
    seen.append(threads())
    return float(next(steps))

before = threads()
try:
    with ClipSource(MemoryClip(data, "a.mp4"), threads=4, timer=ClipTimer(30.0, "a.mp4", clock=clock)) as source:
        source.frames(range(48))
except VideoTimeout:
    print("timed out", max(seen) - before, end=" ")
gc.collect()
print(threads() - before)
"""

DECODING = """
import sys
from forebay_loader.videos.stage import video

data = open(sys.argv[1], "rb").read()
stage = video(audio=True, threads=2)
while True:
    stage(".mp4", data)
    print("one", flush=True)
"""


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "a.mp4"
    path.write_bytes(rendered(frames=96, audio="aac", b_frames=2))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    return made


def test_a_decoder_that_ran_out_of_time_leaves_no_thread(clip: Path, folder: Path) -> None:
    """Its own end with it, though they had begun."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED_OUT, str(clip)], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, check=True
    )
    *told, begun, left = done.stdout.split()
    assert (told, left) == (["timed", "out"], "0")
    assert int(begun) > 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_worker_that_is_ended_leaves_no_file_and_no_process(clip: Path, folder: Path, how: signal.Signals) -> None:
    """In the middle of a clip: all that there was of it is its memory."""
    worker = subprocess.Popen(
        [sys.executable, "-c", DECODING, str(clip)], env={**os.environ, "TMPDIR": str(folder)}, cwd=folder, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"one\n"
        assert list(folder.iterdir()) == []
        worker.send_signal(how)
        assert worker.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(worker.pid, 0)
    assert list(folder.iterdir()) == []
