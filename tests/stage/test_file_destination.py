"""file_destination.py: full and read-only file systems, files left by a kill, and bytes that the disk lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.disks import needs_mounts

from forebay_stage import file_destination
from forebay_stage.destination import destination_of
from forebay_stage.errors import DestinationFailed
from forebay_stage.file_destination import HALF
from forebay_stage.stage_lock import SPEC

SMALL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from forebay_stage.destination import destination_of
from forebay_stage.errors import DestinationFailed
place = Path(sys.argv[1])
destination, said = destination_of(str(place / "out")), []
(place.parent / "shard").write_bytes(bytes(1_500_000))
def put(name):
    try:
        destination.put_file(name, place.parent / "shard")
        said.append("")
    except DestinationFailed as failed:
        said.append(f"{failed} | {failed.step}")
put("0.tar"); put("1.tar")
names = list(destination.names())
subprocess.run(["mount", "-o", "remount,size=8m", place], check=True)
put("1.tar")
subprocess.run(["mount", "-o", "remount,ro", place], check=True)
put("2.tar")
print(json.dumps([said, names, list(destination.names()), os.listdir(place / "out/_stage/half")]))
"""


@needs_mounts
def test_a_full_and_a_read_only_disk(tmp_path: Path) -> None:
    """Each is told with what to do; nothing half is under a name, nor left; with more room the same call works."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=2m none "$0" && exec "$@" "$0"'
    command = ["unshare", "-m", "sh", "-c", mounted, str(disk), sys.executable, "-c", SMALL_DISK]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    (first, full, roomy, read_only), names, later, left = json.loads(done.stdout)
    assert (first, roomy) == ("", "")
    assert "1.tar: No space left on device | make room there" in full
    assert "2.tar: Read-only file system | give this user the right" in read_only
    assert (names, later, left) == (["0.tar"], ["0.tar", "1.tar"], [])


def test_half_written_files(tmp_path: Path) -> None:
    """What a kill left is no object; the next holder of the lock deletes it."""
    destination = destination_of(str(tmp_path))
    (tmp_path / HALF).mkdir(parents=True)
    (tmp_path / HALF / "torn").write_bytes(b"half")
    assert list(destination.names()) == []
    destination.put(SPEC, b"{}")
    destination.lock().take()
    assert list((tmp_path / HALF).iterdir()) == []


def test_bytes_that_the_disk_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back finds them, and the name stays as it was."""
    destination = destination_of(str(tmp_path / "out"))
    (tmp_path / "shard").write_bytes(bytes(100))

    def copy_wrong(source: Any, copy: Any, length: int) -> None:
        copy.write(source.read()[:-1] + b"x")

    monkeypatch.setattr(file_destination.shutil, "copyfileobj", copy_wrong)
    with pytest.raises(DestinationFailed, match=r"0\.tar: bytes 0 to 99 are not those that were written"):
        destination.put_file("0.tar", tmp_path / "shard")
    assert list(destination.names()) == []


def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them makes a new object all the same, and once."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    destination = destination_of(str(tmp_path))
    barrier, made = threading.Barrier(4), list[bool]()

    def put() -> None:
        barrier.wait()
        made.append(destination.put("a", b"1", only_new=True))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sorted(made), destination.get("a")) == ([False, False, False, True], b"1")


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """A destination that is a file is an error with its name."""
    (tmp_path / "out").touch()
    with pytest.raises(DestinationFailed, match="out/a: Not a directory"):
        destination_of(str(tmp_path / "out")).put("a", b"")
