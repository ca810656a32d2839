"""What each reader did with its plan."""

from __future__ import annotations

import pytest
from support.house import reader

from forebay_proxy.core.events import FlightBoarded, ReaderWaited, ShardOpened
from forebay_proxy.telemetry import plan_adherence as following_module
from forebay_proxy.telemetry.plan_adherence import Followed, PlanAdherence


def test_openings_and_waits_are_counted_by_reader() -> None:
    """Each kind its own; other facts, and readers without a name, are nobody's."""
    following = PlanAdherence()
    for how in ("planned", "planned", "skipped", "repeated", "repeated", "unplanned", "by accident"):
        following.listen(ShardOpened(reader(1), how))
    for who in (reader(1), reader(2), None):
        following.listen(ReaderWaited("job", 1.5, who))
    following.listen(FlightBoarded())
    assert following.of(reader(1)) == Followed(planned=2, skipped=1, repeated=2, unplanned=1, waited_s=1.5)
    assert following.of(reader(2)) == Followed(waited_s=1.5)
    assert following.of(reader(3)) == Followed()
    assert repr(following) == "<PlanAdherence 2 readers>"


def test_the_one_unheard_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes up readers costs a fixed amount of memory."""
    monkeypatch.setattr(following_module, "MOST_READERS", 2)
    following = PlanAdherence()
    for worker in (1, 2, 1, 3):
        following.listen(ReaderWaited("job", 1.0, reader(worker)))
    assert [following.of(reader(worker)).waited_s for worker in (1, 2, 3)] == [2.0, 0.0, 1.0]
