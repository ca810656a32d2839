"""Whether the cache disk may be written and read, by what its operations tell."""

from __future__ import annotations

from typing import Any

import pytest
from support.house import FakeClock

from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.store.facts import SpaceRefused
from forebay_proxy.store.health import MANY, PAUSE_S, WINDOW_S, DiskHealth

EIO = DiskFailed("write", "EIO", "input/output error")
FULL = DiskFailed("allocate", "ENOSPC", "full")


def health_of() -> tuple[DiskHealth, FakeClock, list[Any]]:
    clock, facts, board = FakeClock(), list[Any](), Events()
    board.listen(facts.append)
    return DiskHealth(clock, board), clock, facts


def changes(facts: list[Any]) -> list[str]:
    return [fact.state for fact in facts if isinstance(fact, DiskChanged)]


def test_many_failures_at_once_are_an_outage() -> None:
    """Down: nothing is written for a while, reading goes on; then it is tried again."""
    health, clock, facts = health_of()
    for _ in range(MANY):
        assert health.usable
        health.failed(EIO)
    assert (health.state, health.usable) == ("down", False)
    assert "EIO" in health.reason
    health.must_answer()
    clock.advance(PAUSE_S - 1)
    health.look()
    assert not health.usable
    clock.advance(1)
    health.look()
    assert (health.usable, health.reason) == (True, "")
    assert changes(facts) == ["down", "normal"]


def test_the_same_failures_far_apart_are_spots() -> None:
    """A disk with a bad spot is used for the rest."""
    health, clock, _ = health_of()
    for _ in range(3 * MANY):
        health.failed(EIO)
        clock.advance(1.01 * WINDOW_S / (MANY - 1))
    assert health.usable


@pytest.mark.parametrize(
    "error",
    [
        DiskFailed("write", "EROFS", "read-only"), DiskFailed("create", "ENOENT", "no folder"), DiskFailed("look", "ESTALE", "gone"), FULL,
        DiskFailed("index commit", "ENOSPC", "full"), DiskFailed("write", "EDQUOT", "quota"), DiskFailed("create", "ENOSPC", "no inodes"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_other_operation_can_escape_is_enough_once(error: DiskFailed) -> None:
    """Full, read-only, or no folder to make files in: the next one would fail too. Each further one renews the pause."""
    health, clock, facts = health_of()
    health.failed(error)
    clock.advance(PAUSE_S - 1)
    health.failed(error)
    clock.advance(PAUSE_S - 1)
    health.look()
    assert not health.usable
    assert facts.count(SpaceRefused(error)) == (2 if error.errno_name in ("ENOSPC", "EDQUOT") else 0)


def test_a_hung_disk_is_not_even_read() -> None:
    """Until the pause is over."""
    health, clock, _ = health_of()
    health.failed(DiskFailed("read", "ETIMEDOUT", "no answer"))
    with pytest.raises(CacheError, match="does not answer"):
        health.must_answer()
    clock.advance(PAUSE_S)
    health.look()
    health.must_answer()


@pytest.mark.parametrize(
    ("operation", "errno_name"),
    [("read", "ENOENT"), ("read", "ENODATA"), ("read", "ESTALE"), ("read", "EBADF"), ("create", "EFBIG"), ("grow", "EFBIG")],
)
def test_what_is_of_one_file_is_not_the_disks_fault(operation: str, errno_name: str) -> None:
    """Cut or deleted by somebody, or of a length that an origin made up. However many: each is counted, none changes the state."""
    health, _, facts = health_of()
    for _ in range(2 * MANY):
        health.failed(DiskFailed(operation, errno_name, "told"))
    assert facts == [DiskOperationFailed(operation, errno_name)] * 2 * MANY


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_lost_directory_is_down_for_good(caplog: pytest.LogCaptureFixture, failed_before: bool) -> None:
    """Told once, also after what had failed of it; its reason is the state's."""
    health, clock, facts = health_of()
    if failed_before:
        health.failed(DiskFailed("create", "ENOENT", "no folder"))
    for _ in range(3):
        health.lose("the directory was removed")
        clock.advance(PAUSE_S)
        health.look()
    assert (health.state, health.reason, changes(facts)) == ("down", "the directory was removed", ["down"])
    assert sum("was removed" in record.getMessage() for record in caplog.records) == 1
