"""benchmarks/video.py on small clips: what it finds right or wrong, whatever the speeds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.lengths import ordinarily

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from video import main
from video_batches import passed
from video_bench import farthest
from video_clips import long_clip
from video_keyframes import Compared

ROOT = Path(__file__).resolve().parents[2]
PARTS = ordinarily(0, of=5, what="parts of benchmarks/video.py")
LIMIT_S = 1100  # two minutes on a quiet machine, and a busy one takes five times as long


@pytest.mark.timeout(LIMIT_S + 100)
@pytest.mark.skipif(not PARTS, reason="minutes of processors: scripts/test --long runs it")
def test_no_limit_is_broken(tmp_path: Path) -> None:
    """Frames are those of the file and OpenCV's, a cold clip's are a quarter of its bytes or less."""
    parts = ["cold", "keyframes", "sampling", "batches", "origin"][:PARTS]
    sizes = ("--quick", "--clips", "2", "--clip-frames", "40", "--height", "96", "--limit-s", str(LIMIT_S))
    command = [sys.executable, str(ROOT / "benchmarks/video.py"), *sizes, "--json", *parts]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stderr[-3000:])
    told = json.loads(done.stdout)
    assert (done.returncode, [figure for figure in told["figures"] if not figure["ok"]]) == (0, [])
    assert {figure["what"].partition(":")[0].partition(",")[0].split()[0] for figure in told["figures"]} >= {"cold"}


def test_a_part_that_finds_no_time_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FOREBAY_JOB", "numbers")
    assert main(["--quick", "--json", "--limit-s", "-1", "cold"]) == 1
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    assert (figure["what"], figure["value"], figure["ok"]) == ("parts left out", 1, False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return long_clip(tmp_path_factory.mktemp("long") / "a.mp4", 20_000, gop=5, width=128, height=96).pictures


def broken(compared: Compared, pictures: tuple[Any, ...]) -> list[str]:
    return [figure.what for figure in compared.judged("k", pictures) if not figure.ok]


def test_the_same_frames_break_nothing(pictures: tuple[Any, ...]) -> None:
    assert broken(Compared([*pictures], [*pictures], [*pictures]), pictures) == []


def test_another_keyframe_is_seen(pictures: tuple[Any, ...]) -> None:
    """Ours, OpenCV's, and that the two differ."""
    one, two = pictures[:2]
    found = broken(Compared([two], [one], [one]), pictures)
    assert found == ["k: frames that are not those of the file, bit for bit", "k: mean difference to OpenCV's, where it is largest"]
    assert "k: OpenCV's frames that are others" in broken(Compared([one], [two], [one]), pictures)


def test_one_wrong_pixel_is_seen(pictures: tuple[Any, ...]) -> None:
    one = pictures[0].copy()
    one[3, 4, 1] ^= 1
    assert broken(Compared([one], [pictures[0]], [pictures[0]]), pictures) == ["k: frames that are not those of the file, bit for bit"]


def test_pictures_of_other_sizes_are_far_apart() -> None:
    assert farthest([numpy.zeros((2, 2, 3), numpy.uint8)], [numpy.zeros((2, 3, 3), numpy.uint8)]) == math.inf


def test_no_group_of_a_long_clip_follows_its_own_kind(tmp_path: Path) -> None:
    """So a frame of the group before is another picture."""
    groups = long_clip(tmp_path / "a.mp4", 200_000, gop=2, width=128, height=96).groups
    assert len(groups) > 5
    assert all(one != two for one, two in pairwise(groups))


def test_a_trainer_that_waits_for_half_its_time_is_half_busy() -> None:
    """From the first batch's arrival on, each of which takes as long as the step."""

    def slowly() -> Any:
        for _ in range(4):
            time.sleep(0.2)
            yield [None] * 8

    found = passed(slowly(), 0.2, 0)
    assert (found.clips, found.steps) == (32, 3)
    assert 30 < found.busy <= 50
    assert found.batch_s >= 0.4


def test_the_first_batches_of_workers_say_nothing() -> None:
    """They come together: with two workers and two batches there is nothing to be busy with."""
    assert math.isnan(passed(iter([[None], [None]]), 0.0, 2).busy)
