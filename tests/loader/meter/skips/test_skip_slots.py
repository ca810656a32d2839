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


def test_counts_of_all_workers_are_one_sum() -> None:
    """Whoever asks."""
    slots = SkipSlots()
    rows = [slots.take(0, worker, 2) for worker in range(2)]
    for row in rows:
        row.put(ONE)
    assert slots.standing(0).counts == SkipCounts(samples=20, decode=2)


def test_the_last_to_end_is_told_so() -> None:
    """Once, when all that there are have begun and ended."""
    slots = SkipSlots()
    first = slots.take(0, 0, 2)
    assert not first.end(ONE, over=True).last  # the other has not begun
    second = slots.take(0, 1, 2)
    assert second.end(ONE, over=True) == (SkipCounts(samples=20, decode=2), True, False)


def test_one_that_left_early_is_told_too() -> None:
    """The rank's line says so."""
    slots = SkipSlots()
    first, second = (slots.take(0, worker, 2) for worker in range(2))
    first.end(ONE, over=False)
    assert second.end(ONE, over=True).early


def test_after_a_break_nobody_is_waited_for_who_has_not_begun() -> None:
    """Who reads yet is."""
    slots = SkipSlots()
    rows = [slots.take(0, worker, 3) for worker in range(2)]
    assert not rows[0].end(ONE, over=False).last
    assert rows[1].end(ONE, over=False).last


def test_epochs_are_counted_apart_and_rows_are_used_again() -> None:
    """However long a run is, its memory is that of two epochs."""
    slots = SkipSlots()
    for epoch in range(20):
        row = slots.take(epoch, 0, 1)
        assert row.place < 3
        assert row.end(ONE, over=True).counts == ONE


def test_an_epoch_that_is_set_back_begins_at_nothing() -> None:
    """``set_epoch`` to the one that was read."""
    slots = SkipSlots()
    slots.take(5, 0, 1).end(ONE, over=True)
    assert slots.take(5, 0, 1).end(ONE, over=True).counts == ONE


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
