"""Saying things once."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from forebay_loader.base.counters import COUNTS, counters
from forebay_loader.base.notices import Notices


def stamp(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "forebay-warned"


def test_one_warning_a_node(tmp_path: Path) -> None:
    """Of many processes one warns; the stamp between them is private."""
    assert Notices().node("gone")
    assert not Notices().node("gone")
    assert stamp(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("ago_s", [61, -3600])
def test_next_minute(tmp_path: Path, ago_s: float) -> None:
    """After the interval the node is warned again; where the clock was set back an hour meanwhile, it is so too."""
    Notices().node("gone")
    past = time.time() - ago_s
    os.utime(stamp(tmp_path), (past, past))
    assert Notices().node("gone")
    assert not Notices().node("gone")


def test_stamp_that_cannot_be_had(tmp_path: Path) -> None:
    """Where the stamp is no file of ours, each process speaks for itself."""
    stamp(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert Notices().node("gone")
    assert not (tmp_path / "elsewhere").exists()


def test_once(caplog: pytest.LogCaptureFixture) -> None:
    """A notice is given once for each key."""
    notices = Notices()
    for key in ("a", "b", "a"):
        notices.once(key, f"notice {key}")
    assert [record.getMessage() for record in caplog.records] == ["notice a", "notice b"]


def _counts_in_child(outbox: object) -> None:
    outbox.send(counters())  # type: ignore[attr-defined]


def test_a_forked_child_counts_from_zero() -> None:
    """Sums over processes are right because a child does not count its parent's events again."""
    COUNTS.add("opened", 3)
    inbox, outbox = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_counts_in_child, args=(outbox,))
    child.start()
    assert inbox.recv()["opened"] == 0
    child.join()
    inbox.close()
    outbox.close()
    assert counters()["opened"] == 3
