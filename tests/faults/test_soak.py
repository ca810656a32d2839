"""The soak of the benchmark, cut down to a minute: nothing wrong, nothing over the bound, nothing left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.lengths import ordinarily

ROOT = Path(__file__).resolve().parents[2]
MINUTES = ordinarily(0.17, of=0.75, what="minutes of soaking")
# Memory still fills up to its level in the first minutes: of a short run only the level is judged (256 MiB, by the script), not the slope.
RSS_LIMIT = 100_000
WHOLE_LIMIT = 95  # percent: of 165 reads two that the origin's faults cut are 98.8
LAG_LIMIT_MS = 10_000  # beside eight busy programs anybody is woken seconds late; a loop that blocks on a name server is later than this


@pytest.mark.needs("curl")
def test_a_short_soak_breaks_no_limit(tmp_path: Path) -> None:
    """64 readers, random faults, evictions, plans, deaths and stopped processes."""
    limits = ("--rss-limit", str(RSS_LIMIT), "--lag-limit", str(LAG_LIMIT_MS), "--whole-limit", str(WHOLE_LIMIT))
    command = [sys.executable, str(ROOT / "benchmarks/soak.py"), "--minutes", str(MINUTES), "--json", *limits]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    print(done.stderr[-3000:])
    told = json.loads(done.stdout)
    broken = [figure for figure in told["figures"] if not figure["ok"]]
    assert (done.returncode, broken) == (0, []), done.stderr[-3000:]
    value = {figure["what"]: figure["value"] for figure in told["figures"]}
    assert value["shards read"] > 400 * MINUTES, "so few reads soak nothing"
    assert value["readers that died in a body"] > 0
    assert value["reader processes stopped by SIGSTOP"] > 0
