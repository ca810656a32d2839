"""One sentence on how it goes, word by word."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginBytes
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.verdict import verdict
from forebay_proxy.telemetry.waits import OPENING, Waits

O = "https://o"  # noqa: E741


class Node:
    """Waits and origins on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = Waits(Events(), self.clock)
        self.board = OriginBoard(self.clock)

    def verdict(self, in_flight: int = 0, *, readers: int = 1, meters: tuple[dict[str, Any], ...] = ()) -> str:
        flying = {O: in_flight} if in_flight else {}
        return verdict(self.waits, self.board, readers=readers, disk_state="normal", disk_reason="", in_flight=flying, meters=meters)

    def minute(self, waited_s: float) -> None:
        """A minute of one reader that waits for so long of it."""
        with self.waits.waiting(reader(), f"{O}/a.tar", O, OPENING):
            self.clock.advance(waited_s)
        for _ in range(60):
            self.waits.look(1)


def test_readers_of_one_origin_are_counted_and_the_longest_is_told() -> None:
    """Those of another origin, and those that began just now, are not among them."""
    node = Node()
    with ExitStack() as held:
        held.enter_context(node.waits.waiting(reader(), f"{O}/a.tar", O, OPENING))
        node.clock.advance(2)
        held.enter_context(node.waits.waiting(reader(1), f"{O}/b.tar", O, OPENING))
        held.enter_context(node.waits.waiting(reader(2), "https://p/c.tar", "https://p", OPENING))
        node.clock.advance(3)
        held.enter_context(node.waits.waiting(reader(3), f"{O}/d.tar", O, OPENING))
        assert node.verdict() == f"a reader waits for {O}, 5 s by now: no answer yet"
        node.clock.advance(2)
        assert node.verdict() == f"2 readers wait for {O}, 7 s by now: no answer yet"


@pytest.mark.parametrize(
    ("waited_s", "told"),
    [
        (1.2, "data arrives as fast as it is read: readers waited 2.0 % of the last minute"),
        (2.94, "data arrives as fast as it is read: readers waited 4.9 % of the last minute"),
        (3.0, "readers waited 5.0 % of the last minute"),
        (6.0, "readers waited 10 % of the last minute"),
        (24.6, "readers waited 41 % of the last minute"),
    ],
)
def test_a_twentieth_of_the_time_is_much(waited_s: float, told: str) -> None:
    """Below it all is well; a share below a tenth has a digit more."""
    node = Node()
    node.minute(waited_s)
    assert node.verdict() == told


@pytest.mark.parametrize(("size", "in_flight", "told"), [(10, 0, True), (9, 0, False), (9, 1, True), (0, 0, False)])
def test_the_busiest_origin_is_named_where_it_does_something(size: int, in_flight: int, told: bool) -> None:
    """A byte a second, or a request in the air."""
    node = Node()
    node.minute(30)
    node.board.listen(OriginBytes(O, size, "demand"))
    found = f"; {O} brings {size // 10} B/s now, {in_flight} requests in the air" if told else ""
    assert node.verdict(in_flight) == f"readers waited 50 % of the last minute{found}"


def test_nobody_reads() -> None:
    """Nobody is there, and nobody was; one who is there and never waited is served."""
    assert Node().verdict(readers=0) == "nobody has read in the last minute"
    assert Node().verdict(readers=1).endswith("readers waited 0.0 % of the last minute")
    node = Node()
    node.waits.look(1)
    assert node.verdict(readers=0).startswith("data arrives")


def metered(rank: int, wall_s: float, **stall_s: float) -> dict[str, Any]:
    lately = {"wall_s": wall_s, "stall_s": {"origin": 0.0, **stall_s}}
    return {"job": "train", "rank": str(rank), "slowest_worker": 1, "slowest_shard": "s3://b/7.tar", "lately": lately}


def test_why_training_waits_comes_first() -> None:
    """Of the rank that waits most: how much, for what, and which worker and shard."""
    node = Node()
    node.minute(0.1)
    said = node.verdict(meters=(metered(0, 60, decode=1.0), metered(3, 60, decode=12.0, map=0.5), metered(4, 0)))
    assert said.startswith(
        "training waited 21 % of the last minute, 96 % of that for decode (train rank 3, worker 1, s3://b/7.tar); data arrives"
    )


@pytest.mark.parametrize(("ended", "silent_s"), [(True, 1.0), (False, 16.0)])
def test_who_has_ended_does_not_lead(ended: bool, silent_s: float) -> None:
    """Neither who said so, nor who is silent, as a process that waits is not; one in a long step leads where nobody else trains."""
    node = Node()
    node.minute(0.1)
    gone = metered(0, 60, decode=50.0) | {"ended": ended, "silent_s": silent_s}
    assert "training waited 20 %" in node.verdict(meters=(gone, metered(1, 60, origin=12.0) | {"ended": False, "silent_s": 9.0}))
    assert f"{'training has ended; it' if ended else 'training'} waited 83 % of the last minute" in node.verdict(meters=(gone,))


def test_waits_that_training_does_not_feel_are_said_to_be_hidden() -> None:
    """Readers waited 73 % of the time, and the trainer 1.2 %."""
    node = Node()
    node.minute(43.8)
    said = node.verdict(meters=(metered(0, 60, origin=0.72),))
    assert said.startswith("readers waited 73 % of the last minute")
    assert said.endswith("; training waited 1.2 %")
    assert "training" not in node.verdict(meters=(metered(0, 0),))


def test_the_shared_tier_is_named_where_readers_wait() -> None:
    """Its trouble may be why; where nobody waits, it is in the rows only."""
    for waited_s, named in ((0.0, False), (6.0, True)):
        node = Node()
        node.minute(waited_s)
        said = verdict(node.waits, node.board, readers=1, disk_state="normal", disk_reason="", in_flight={}, shared_trouble="no answer")
        assert said.endswith("; the shared tier is not used for a while: no answer") == named
