"""The disk that a table of clips is written to is full: an error names the file, and what it held stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.disks import needs_mounts
from support.sidecar import environment

SCAN = """
import sys
from array import array
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata import __main__ as program
from forebay_loader.videos.metadata.scan import ClipToScan

INFO = ClipInfo(1000, array("d", range(1000)), 1000.0, 64, 48)
program.clips_of_shard = lambda url, suffixes: [ClipToScan(str(number), 1, "", None) for number in range(int(url))]
sys.exit(program.run(["t"], ['{"shard": "%s"}' % sys.argv[1]], sys.stdout, lambda where, audio: INFO))
"""
# Of 8 kB a clip: there is room for two, and not for twenty.
STEPS = """
mount -t tmpfs -o size=128k none "$0" && cd "$0"
$1 -c "$2" 2 | tail -n 1
$1 -c "$2" 20 | tail -n 1; ls -A
$1 -c "$2" 2 | tail -n 1
mount -o remount,size=1m "$0"
$1 -c "$2" 20 | tail -n 1; ls -A
"""


@needs_mounts
def test_a_full_disk_costs_nothing_that_was_found(tmp_path: Path) -> None:
    """It is all known, and with room the scan goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", STEPS, str(disk), sys.executable, SCAN]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=True)
    first, full, beside, again, last, left = done.stdout.splitlines()
    assert json.loads(first)["scanned"] == 2
    assert json.loads(full) == {"event": "stopped", "error": "[Errno 28] No space left on device: 't'"}
    assert (beside, json.loads(again)["known"]) == ("t", 2)
    ended = json.loads(last)
    assert (ended["event"], ended["scanned"] + ended["known"], left) == ("end", 20, "t")
    assert ended["known"] >= 2
