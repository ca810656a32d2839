"""benchmarks/video.py on small clips: what it finds right or wrong, whatever the speeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.lengths import ordinarily

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from video import Compared
from video_clips import long_clip

ROOT = Path(__file__).resolve().parents[2]
PARTS = ordinarily(0, of=4, what="parts of benchmarks/video.py")
LIMIT_S = 1100  # two minutes on a quiet machine, and a busy one takes five times as long


@pytest.mark.timeout(LIMIT_S + 100)
@pytest.mark.skipif(not PARTS, reason="minutes of processors: scripts/test --long runs it")
def test_no_limit_is_broken(tmp_path: Path) -> None:
    """Frames are those of the file and OpenCV's, a cold clip's are a quarter of its bytes or less."""
    parts = ["cold", "keyframes", "sampling", "origin"][:PARTS]
    command = [sys.executable, str(ROOT / "benchmarks/video.py"), "--quick", "--json", *parts]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stderr[-3000:])
    told = json.loads(done.stdout)
    assert (done.returncode, [figure for figure in told["figures"] if not figure["ok"]]) == (0, [])
    assert {figure["what"].partition(":")[0].partition(",")[0].split()[0] for figure in told["figures"]} >= {"cold"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return long_clip(tmp_path_factory.mktemp("long") / "a.mp4", 20_000, gop=5, width=128, height=96).pictures


def broken(compared: Compared, pictures: tuple[Any, ...]) -> list[str]:
    return [figure.what for figure in compared.judged("k", pictures) if not figure.ok]


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
