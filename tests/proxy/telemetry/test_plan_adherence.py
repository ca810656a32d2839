"""What each reader did with its plan."""

from __future__ import annotations

import pytest
from support.house import reader

from forebay_proxy.core.events import FlightBoarded, ReaderWaited, ShardOpened
from forebay_proxy.telemetry import plan_adherence as adherence_module
from forebay_proxy.telemetry.plan_adherence import Followed, PlanAdherence


def test_openings_and_waits_are_counted_by_reader() -> None:
    """Each kind its own; other facts, and readers without a name, are nobody's."""
    adherence = PlanAdherence()
    for how in ("planned", "planned", "skipped", "repeated", "repeated", "unplanned", "by accident"):
        adherence.listen(ShardOpened(reader(1), how))
    for who in (reader(1), reader(2), None):
        adherence.listen(ReaderWaited("job", 1.5, who))
    adherence.listen(FlightBoarded())
    assert adherence.of(reader(1)) == Followed(planned=2, skipped=1, repeated=2, unplanned=1, waited_s=1.5)
    assert adherence.of(reader(2)) == Followed(waited_s=1.5)
    assert adherence.of(reader(3)) == Followed()
    assert repr(adherence) == "<PlanAdherence 2 readers>"


def test_the_one_unheard_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes up readers costs a fixed amount of memory."""
    monkeypatch.setattr(adherence_module, "MOST_READERS", 2)
    adherence = PlanAdherence()
    for worker in (1, 2, 1, 3):
        adherence.listen(ReaderWaited("job", 1.0, reader(worker)))
    assert [adherence.of(reader(worker)).waited_s for worker in (1, 2, 3)] == [2.0, 0.0, 1.0]
