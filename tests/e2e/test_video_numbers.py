"""benchmarks/video.py on small clips: what it finds right or wrong, whatever the speeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.lengths import ordinarily

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


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
