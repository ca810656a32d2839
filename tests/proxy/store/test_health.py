"""Whether the cache disk may be written and read, by what its operations tell."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.house import FakeClock

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.store.facts import SpaceRefused
from forebay_proxy.store.health import (
    CALM_S,
    FIRST_PROBE_S,
    LAST_PROBE_S,
    MANY,
    WINDOW_S,
    DiskHealth,
)

EIO = DiskFailed("write", "EIO", "input/output error")
FULL = DiskFailed("allocate", "ENOSPC", "full")


def health_of() -> tuple[DiskHealth, FakeClock, list[Any]]:
    clock, facts, board = FakeClock(), list[Any](), Events()
    board.listen(facts.append)
    return DiskHealth(clock, board), clock, facts


def down(health: DiskHealth) -> None:
    for _ in range(MANY):
        health.failed(EIO)
    assert health.state == "down"


def probe(health: DiskHealth, error: DiskFailed | None = None) -> None:
    health.probe_begun()
    health.probed(error)


def changes(facts: list[Any]) -> list[str]:
    return [fact.state for fact in facts if isinstance(fact, DiskChanged)]


def test_one_failure_stops_nobody_else() -> None:
    """Unstable: the others are tried as before."""
    health, _, facts = health_of()
    health.failed(EIO)
    assert (health.state, health.usable, health.readable) == ("unstable", True, True)
    assert "EIO" in health.reason
    assert facts == [DiskOperationFailed("write", "EIO"), DiskChanged("unstable")]


def test_many_failures_at_once_are_an_outage() -> None:
    """Down: nothing is written any more, reading goes on."""
    health, _, facts = health_of()
    down(health)
    assert (health.usable, health.readable) == (False, True)
    assert changes(facts) == ["unstable", "down"]


def test_the_same_failures_far_apart_are_spots() -> None:
    """A disk with a bad spot is used for the rest."""
    health, clock, _ = health_of()
    for _ in range(3 * MANY):
        health.failed(EIO)
        clock.advance(WINDOW_S / (MANY - 2))
    assert health.state == "unstable"


@pytest.mark.parametrize("error", [DiskFailed("write", "EROFS", ""), DiskFailed("create", "ENOENT", ""), DiskFailed("look", "EIO", "")])
def test_what_no_other_operation_can_escape_is_enough_once(error: DiskFailed) -> None:
    """Read-only, or no folder to make files in: the next one would fail too. A single bad look is not of that kind."""
    health, _, _ = health_of()
    health.failed(error)
    assert health.state == ("unstable" if error.operation == "look" else "down")


def test_a_hung_disk_is_not_even_read() -> None:
    """Until a probe comes back."""
    health, clock, _ = health_of()
    health.failed(DiskFailed("write", "ETIMEDOUT", ""))
    assert (health.state, health.readable) == ("down", False)
    clock.advance(FIRST_PROBE_S)
    probe(health, DiskFailed("probe", "ETIMEDOUT", ""))
    assert not health.readable
    clock.advance(2 * FIRST_PROBE_S)
    probe(health)
    assert health.readable


@pytest.mark.parametrize("errno_name", ["ENOENT", "ENODATA", "ESTALE", "EBADF"])
def test_a_file_that_somebody_cut_or_deleted_is_not_the_disks_fault(errno_name: str) -> None:
    """However many: each is counted, none changes the state."""
    health, _, facts = health_of()
    for _ in range(100):
        health.failed(DiskFailed("read", errno_name, ""))
    assert health.state == "normal"
    assert len(facts) == 100


@pytest.mark.parametrize("operation", ["create", "grow", "write"])
def test_a_length_that_no_file_may_have_is_not_the_disks_fault(operation: str) -> None:
    """An origin made it up: others are stored as before, however many it makes up."""
    health, _, facts = health_of()
    for _ in range(2 * MANY):
        health.failed(DiskFailed(operation, "EFBIG", "file too large"))
    assert (health.state, changes(facts)) == ("normal", [])
    assert facts == [DiskOperationFailed(operation, "EFBIG")] * 2 * MANY
    health.failed(DiskFailed("index commit", "EFBIG", "file too large"))
    assert health.state != "normal"


def test_a_full_disk_is_a_smaller_cache() -> None:
    """Whoever knows the headroom is told of each refusal; the rest goes on, and sixteen at once are not an outage."""
    health, _, facts = health_of()
    for _ in range(16):
        health.failed(FULL)
    assert (health.state, facts.count(SpaceRefused(FULL))) == ("unstable", 16)


def test_an_index_that_finds_no_room_stops_everything() -> None:
    """Nothing may leave then, so trying to make room is in vain."""
    health, _, _ = health_of()
    for _ in range(MANY):
        health.failed(DiskFailed("index commit", "ENOSPC", ""))
    assert health.state == "down"


def test_probes_come_one_at_a_time_and_further_apart() -> None:
    """1, 2, 4 … 60 s."""
    health, clock, _ = health_of()
    down(health)
    pauses = []
    for _ in range(9):
        start = clock()
        while not health.probe_due:
            clock.advance(0.5)
        pauses.append(clock() - start)
        health.probe_begun()
        assert not health.probe_due, "one at a time"
        health.probed(EIO)
    assert pauses == [1, 2, 4, 8, 16, 32, LAST_PROBE_S, LAST_PROBE_S, LAST_PROBE_S]


def test_back_by_a_probe_and_a_calm_while() -> None:
    """down -> unstable -> normal, and the next outage is probed soon again."""
    health, clock, facts = health_of()
    down(health)
    clock.advance(FIRST_PROBE_S)
    probe(health)
    assert (health.state, health.usable) == ("unstable", True)
    health.worked()
    assert health.state == "unstable", "not calm for long enough"
    clock.advance(CALM_S)
    health.calm_down()
    assert (health.state, health.reason) == ("normal", "")
    assert changes(facts) == ["unstable", "down", "unstable", "normal"]
    down(health)
    clock.advance(FIRST_PROBE_S)
    assert health.probe_due


def test_a_failure_on_trial_is_enough() -> None:
    """A disk that takes probes and nothing else is tried less and less often."""
    health, clock, _ = health_of()
    down(health)
    clock.advance(FIRST_PROBE_S)
    probe(health)
    health.failed(EIO)
    assert health.state == "down"
    clock.advance(FIRST_PROBE_S)
    assert not health.probe_due
    clock.advance(FIRST_PROBE_S)
    assert health.probe_due


def test_an_unstable_disk_that_nobody_uses_is_probed() -> None:
    """Otherwise it would stay unstable for ever."""
    health, clock, _ = health_of()
    health.failed(EIO)
    assert not health.probe_due
    clock.advance(CALM_S)
    assert health.probe_due
    probe(health)
    assert health.state == "normal"


def test_a_probe_that_fails_while_unstable_is_an_outage() -> None:
    """Not even a small file can be written."""
    health, clock, _ = health_of()
    health.failed(EIO)
    clock.advance(CALM_S)
    probe(health, EIO)
    assert health.state == "down"


def test_a_lost_directory_is_down_once() -> None:
    """Told each second, changed once."""
    health, _, facts = health_of()
    for _ in range(5):
        health.lost("removed")
    assert changes(facts) == ["down"]
    assert health.reason == "removed"


def test_a_lost_directory_is_told_behind_what_failed_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """A file that could not be made is noticed before the directory is looked at: its reason is told once, and is the state's."""
    health, _, facts = health_of()
    health.failed(DiskFailed("create", "ENOENT", "told"))
    caplog.clear()
    with caplog.at_level(logging.ERROR, "forebay"):
        for _ in range(3):
            health.lost("removed")
    assert changes(facts) == ["down"]
    assert health.reason == "removed"
    assert len(caplog.records) == 1


def test_one_line_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures are two lines, and coming back is two."""
    health, clock, _ = health_of()
    with caplog.at_level(logging.INFO, "forebay"):
        for _ in range(1000):
            health.failed(EIO)
        assert len(caplog.records) == 2
        clock.advance(FIRST_PROBE_S)
        probe(health)
        clock.advance(CALM_S)
        for _ in range(5):
            health.worked()
    assert len(caplog.records) == 4
    assert all("EIO" in record.getMessage() for record in caplog.records[:2])
