"""benchmarks/video.py and memo_stores.py, small: what they find right or wrong, whatever the speeds."""

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
PARTS = ordinarily(0, of=5, what="parts of benchmarks/video.py")
LIMIT_S = 1100  # two minutes on a quiet machine, and a busy one takes five times as long


@pytest.mark.timeout(LIMIT_S + 100)
@pytest.mark.skipif(not PARTS, reason="minutes of processors: scripts/test --long runs it")
def test_no_limit_is_broken(tmp_path: Path) -> None:
    """Frames are those of the file and OpenCV's, kept ones those decoded, a cold clip's are a quarter of its bytes or less."""
    parts = ["cold", "keyframes", "sampling", "origin", "article"][:PARTS]
    command = [sys.executable, str(ROOT / "benchmarks/video.py"), "--quick", "--json", *parts]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stderr[-3000:])
    told = json.loads(done.stdout)
    assert (done.returncode, [figure for figure in told["figures"] if not figure["ok"]]) == (0, [])
    assert {figure["what"].partition(":")[0].partition(",")[0].split()[0] for figure in told["figures"]} >= {"cold"}


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(not PARTS, reason="it starts some two hundred processes: scripts/test --long runs it")
def test_each_store_is_read_by_many_and_has_many_entries(tmp_path: Path) -> None:
    """What docs/stores.py draws is all there: three stores, three kinds of entries, three numbers of readers."""
    command = [sys.executable, str(ROOT / "benchmarks/memo_stores.py"), "--quick", str(tmp_path / "stores.json")]
    subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=LIMIT_S - 50, check=True)
    told = json.loads((tmp_path / "stores.json").read_text("utf-8"))
    rates = [of_processor for kinds in told["reads_s"].values() for readers in kinds.values() for _, of_processor in readers]
    assert (len(rates), min(rates) > 0, sorted(told["many"])) == (27, True, ["hdf5", "lmdb", "npz"])
