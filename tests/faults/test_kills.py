"""kill -9, again and again, in the middle of everything: no wrong byte, no false claim, no leaked file, no sample lost or read twice."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import pytest
from support.kills import Kills
from support.lengths import LONG, ordinarily

KILLS = ordinarily(4, of=20, what="kills of a sidecar")


@pytest.mark.timeout(400)
async def test_killed_again_and_again() -> None:
    """Fetching, evicting, warming, starting: whatever it was at, the next start serves what was claimed, at once, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="forebay-kills-") as directory:
        report = await Kills(Path(directory), seed=21).run(KILLS)
    print(f"{report.kills} kills; kept {report.kept}; start {statistics.median(report.start_s):.2f} s (median); done {report.done}")
    assert report.faults == dict.fromkeys(report.faults, 0), report.notes
    assert report.kills >= KILLS
    assert report.kills_at_start > 0
    assert sum(kept > 0 for kept in report.kept) > len(report.kept) * (0.7 if LONG else 0.3), report.kept  # four kills may come early
    assert statistics.median(report.kept[2:]) >= (4 if LONG else 2), "kills that come before anything is stored say little"
    assert report.epochs >= 1
    assert report.bytes_compared > KILLS * 5 * 10**7
