"""Where plans are handed in."""

from __future__ import annotations

from typing import Any

from support.house import FakeClock, reader, shard_of

from forebay_proxy.events import Events, PlanChanged
from forebay_proxy.plan import Plans
from forebay_proxy.plandesk import PlanDesk


def test_what_changes_is_taken_told_and_looked_at() -> None:
    """Replaced, extended, withdrawn; withdrawing nothing is no change."""
    facts, woken, events = list[Any](), list[int](), Events()
    events.listen(facts.append)

    class Prefetcher:
        def wake(self) -> None:
            woken.append(1)

    plans = Plans(FakeClock())
    prefetcher: Any = Prefetcher()
    desk = PlanDesk(plans, prefetcher, events)
    shards = [shard_of(f"https://o/{number}.tar") for number in range(3)]
    desk.replace(reader(), shards[:1], epoch=1, set_name="s")
    desk.append(reader(), shards[1:])
    assert [shard.name for _, _, shard in plans.nearest()] == [shard.name for shard in shards]
    assert (desk.withdraw(reader()), desk.withdraw(reader())) == (True, False)
    assert facts == [PlanChanged("job", what) for what in ("replaced", "extended", "withdrawn")]
    assert len(woken) == 3
