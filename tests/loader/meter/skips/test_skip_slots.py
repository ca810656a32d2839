"""What the workers of a rank count together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from forebay_loader.meter.skips.counts import SkipCounts
from forebay_loader.meter.skips.skip_slots import SkipSlots

ONE = SkipCounts(samples=10, decode=1)
LEFT_OPEN = """
from forebay_loader.identity.world import World
from forebay_loader.meter.skips.skip_pass import SkipWatch

reading = SkipWatch().begin(0, World())
reading.end_with_process()
"""


def in_child(body: object) -> int:
    """The pid of a process that ran ``body`` and was then killed; it counts as a worker of this one's by none of its numbers."""
    pid = os.fork()
    if not pid:
        try:
            body()  # type: ignore[operator]
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_after_a_break_nobody_is_waited_for_who_has_not_begun() -> None:
    """Who reads yet is."""
    slots = SkipSlots()
    rows = [slots.take(0, worker, 3) for worker in range(2)]
    assert not rows[0].end(ONE, over=False).last
    assert rows[1].end(ONE, over=False).last


def test_epochs_are_counted_apart_and_rows_are_used_again() -> None:
    """However long a run is, its memory is that of two epochs; one that is set back to (``set_epoch``) begins at nothing."""
    slots = SkipSlots()
    for epoch in (*range(20), 19, 5):
        row = slots.take(epoch, 0, 1)
        assert row.place < 3
        assert row.end(ONE, over=True).counts == ONE


def test_rows_of_another_training_process_are_not_counted() -> None:
    """Ranks that were forked from one process share the file, not the count; a dead one's rows are free."""
    slots = SkipSlots()
    in_child(lambda: slots.take(0, 0, 1).put(ONE))
    assert slots.take(0, 0, 1).place == 0
    assert slots.standing(0).counts == SkipCounts()


def test_a_pass_that_is_left_open_ends_with_its_process_in_silence() -> None:
    """Its rows are there as long as passes are."""
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
