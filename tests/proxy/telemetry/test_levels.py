"""What the sidecar knows of the last minute."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import Evicted
from forebay_proxy.core.facts.origins import OriginAnswered, OriginBytes, OriginFailed, SegmentFetched
from forebay_proxy.telemetry.levels import Lately, levels_of
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.waits import OPENING, Waits
from forebay_proxy.wire.protocol.verdict import Levels

O = "https://o"  # noqa: E741


class Node:
    """Waits and origins on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = Waits(Events(), self.clock)
        self.board = OriginBoard(self.clock)
        self.lately = Lately(self.clock)

    def levels(self, *, readers: int = 1, meters: tuple[dict[str, Any], ...] = (), plans: int = 1) -> Levels:
        return levels_of(
            self.waits, self.board, self.lately, readers=readers, disk="", in_flight={O: 2}, plans=plans, passes=False, meters=meters
        )


def test_readers_of_one_origin_are_counted_and_the_longest_is_told() -> None:
    """Those of another origin, and those that began just now, are not among them."""
    node = Node()
    with ExitStack() as held:
        held.enter_context(node.waits.waiting(reader(), f"{O}/a.tar?sig=S3CRET", O, OPENING))
        node.clock.advance(2)
        held.enter_context(node.waits.waiting(reader(1), f"{O}/b.tar", O, OPENING))
        held.enter_context(node.waits.waiting(reader(2), "https://p/c.tar", "https://p", OPENING))
        node.clock.advance(3)
        held.enter_context(node.waits.waiting(reader(3), f"{O}/d.tar", O, OPENING))
        assert node.levels().waiting == (1, 5.0, f"{O}/a.tar")
        node.clock.advance(2)
        assert node.levels().waiting == (2, 7.0, f"{O}/a.tar")


def test_since_when_an_origin_fails() -> None:
    """From the first error that nothing good has followed; a 404 says how one shard is."""
    node = Node()
    with node.waits.waiting(reader(), f"{O}/a.tar", O, OPENING):
        node.board.listen(OriginFailed(O, "status", "404"))
        node.clock.advance(10)
        origin = node.levels().origin
        assert origin is not None
        assert origin.failing_s is None
        node.board.listen(OriginFailed(O, "reset", "reset by peer"))
        node.clock.advance(30)
        node.board.listen(OriginFailed(O, "unavailable", "503"))
        node.clock.advance(7)
        origin = node.levels().origin
        assert origin is not None
        assert (origin.failing_s, origin.error) == (37.0, "503")
        node.board.listen(OriginAnswered(O, "GET", 206, 0.1))
        origin = node.levels().origin
        assert origin is not None
        assert origin.failing_s is None


def metered(rank: int, wall_s: float, **stall_s: float) -> dict[str, Any]:
    lately = {"wall_s": wall_s, "stall_s": {"origin": 0.0, **stall_s}}
    return {"job": "train", "rank": str(rank), "slowest_worker": 1, "slowest_shard": "s3://b/7.tar", "lately": lately, "workers": 4}


def test_the_rank_that_waits_most_is_told_of() -> None:
    levels = Node().levels(meters=(metered(0, 60, decode=1.0), metered(3, 60, decode=12.0, map=0.5), metered(4, 0)))
    assert (levels.who, levels.wall_s, levels.workers) == ("train rank 3, worker 1, s3://b/7.tar", 60, 4)


def test_idle_cores_are_shared_by_ranks_that_wait_alike() -> None:
    """One that hardly waits, or has ended, wants none."""
    ranks = [metered(number, 60, decode=waits) | {"idle_cores": 6.0} for number, waits in enumerate((20.0, 15.0, 1.0))]
    assert Node().levels(meters=(*ranks, ranks[0] | {"ended": True})).idle_cores == 3.0
    assert Node().levels(meters=(metered(0, 60, decode=9.0),)).idle_cores is None


def test_another_job_that_waits_is_named() -> None:
    """Not another rank of the same job, nor one that hardly waits."""
    ranks = (metered(0, 60, decode=30.0), metered(1, 60, decode=20.0))
    assert Node().levels(meters=ranks).others == ""
    jobs = (metered(0, 60, origin=15.0) | {"job": "b"}, metered(0, 60, origin=1.0) | {"job": "c"})
    assert Node().levels(meters=(*ranks, *jobs)).others == "job b waits 25 %, too"


def test_who_is_silent_is_told_of_unless_the_job_goes_on() -> None:
    """A rank that died while others live; not one that was started again, as another process."""
    gone = metered(0, 60, decode=30.0) | {"silent": "silent for 4 min: killed, or hung?", "silent_s": 240.0}
    levels = Node().levels(meters=(gone,))
    assert (levels.silent, levels.wall_s) == ("train rank 0 is silent for 4 min: killed, or hung?", 0.0)
    assert Node().levels(meters=(metered(1, 60), gone)).silent
    assert not Node().levels(meters=(metered(0, 60), gone)).silent


def test_what_is_judged_of_a_young_training() -> None:
    assert Node().levels(meters=(metered(0, 20, decode=5.0),)).span == "of the last 20 s"
    assert Node().levels(meters=(metered(0, 60, decode=5.0),)).span == "of the last minute"


def test_the_first_start_of_workers_is_no_stall() -> None:
    """Of a process that has only begun; each later one is."""
    young = metered(0, 10, start=6.0, decode=1.0) | {"wall_s": 10}
    levels = Node().levels(meters=(young,))
    assert (levels.wall_s, levels.stall_s) == (4.0, {"origin": 0.0, "decode": 1.0})
    assert Node().levels(meters=(young | {"wall_s": 300},)).stall_s["start"] == 6.0


@pytest.mark.parametrize(("ended", "silent_s"), [(True, 1.0), (False, 16.0)])
def test_who_has_ended_does_not_lead(ended: bool, silent_s: float) -> None:
    """Neither who said so, nor who is silent, as a process that waits is not; one in a long step leads where nobody else trains."""
    gone = metered(0, 60, decode=50.0) | {"ended": ended, "silent_s": silent_s}
    present = metered(1, 60, origin=12.0) | {"ended": False, "silent_s": 9.0}
    assert Node().levels(meters=(gone, present)).who.startswith("train rank 1")
    alone = Node().levels(meters=(gone,))
    assert (alone.who[:12], alone.ended) == ("train rank 0", ended)


def test_sums_of_the_last_minute() -> None:
    """How much of a segment's time passes before its first byte; how much leaves for want of room. Older seconds count no more."""
    node = Node()
    assert (node.lately.latency_share(), node.lately.turnover()) == (0.0, 0.0)
    for _ in range(3):
        node.lately.listen(OriginAnswered(O, "GET", 206, 0.3))
        node.lately.listen(OriginAnswered(O, "GET", 503, 9.0))
        node.lately.listen(SegmentFetched(0.4, stored=True, prefetched=True))
        node.lately.listen(OriginBytes(O, 1000, "demand"))
        node.lately.listen(Evicted(500, "plan", 1.0, used=True))
        node.lately.listen(Evicted(500, "stale", 1.0, used=True))
        node.clock.advance(1)
    assert node.lately.latency_share() == pytest.approx(0.75)
    assert node.lately.turnover() == pytest.approx(0.5)
    node.clock.advance(70)
    assert (node.lately.latency_share(), node.lately.turnover()) == (0.0, 0.0)


def test_whether_anything_is_announced() -> None:
    """Nobody reads: then nothing is missing."""
    assert not Node().levels(plans=0).announced
    assert Node().levels(plans=0, readers=0).announced
    assert Node().levels(plans=1).announced
