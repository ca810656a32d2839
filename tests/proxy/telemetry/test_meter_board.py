"""What is kept of the totals that training processes tell."""

from __future__ import annotations

from typing import Any

import pytest
from support.house import FakeClock

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import MeterTold
from forebay_proxy.telemetry.meter_board import MOST_METERS, SHOWN_S, SILENCE_S, MeterBoard
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName


class Node:
    """A board on a clock that stands still, and what it says has come on top."""

    def __init__(self) -> None:
        self.clock, events = FakeClock(), Events()
        self.grown: list[MeterBody] = []
        events.on(MeterTold, lambda fact: self.grown.append(fact.grown))
        self.board = MeterBoard(events, self.clock)
        self.clock.advance(1000.0)

    def tell(self, wall_s: float, origin_s: float, *, rank: str = "0", opener: str = "7.0", **more: Any) -> None:
        stall_s = {**dict.fromkeys(CAUSES, 0.0), "origin": origin_s}
        self.board.take(ReaderName("train", rank, "main", opener), MeterBody(wall_s, stall_s, int(wall_s), **more))


@pytest.fixture
def node() -> Node:
    return Node()


def test_counters_go_on(node: Node) -> None:
    """Sums add up to what was told last, whatever was lost, told twice, or told by a successor."""
    for wall_s, origin_s in ((10, 1), (20, 3), (20, 3), (50, 6)):
        node.tell(wall_s, origin_s)
    node.tell(5, 0.5, opener="8.0")
    assert sum(each.stall_s["origin"] for each in node.grown) == 6.5
    assert sum(each.steps for each in node.grown) == 55


def test_what_is_waited_for_now_is_of_lately(node: Node) -> None:
    """As what it looks like, though no sum has it yet: an outage is seen in its first seconds."""
    node.tell(60, 1, pending_s=20.0, pending="disk")
    assert {cause: s for cause, s in node.board.rows()[0]["lately"]["stall_s"].items() if s} == {"origin": 1, "disk": 20.0}
    assert node.board.rows()[0]["stall_s"]["disk"] == 0
    node.tell(61, 1, pending_s=21.0)
    assert node.board.rows()[0]["lately"]["stall_s"]["other"] == 21.0


def test_after_a_long_silence_it_goes_on_from_where_it_was(node: Node) -> None:
    """A trainer that wrote a checkpoint for ten minutes is not counted twice; meanwhile it is not shown."""
    node.tell(10, 1)
    node.clock.advance(SILENCE_S + 540)
    assert node.board.rows() == []
    node.tell(620, 2)
    assert [each.stall_s["origin"] for each in node.grown] == [1, 1]
    assert len(node.board.rows()) == 1


def test_a_training_that_was_killed_stands_there_as_long_as_one_that_ended(node: Node) -> None:
    """Behind those that train, with a sentence, for a quarter of an hour; who ended said so, and has none, nor has who left its loop."""
    node.tell(10, 1, rank="0", step_s=0.2)
    node.tell(10, 1, rank="1", step_s=0.2)
    node.tell(10, 1, rank="3", ended_s=0.5)
    node.board.end(ReaderName("train", "1", "main", "7.0"))
    node.clock.advance(SILENCE_S + 180)
    node.tell(10, 1, rank="2")
    rows = node.board.rows(within_s=SHOWN_S)
    assert [(row["rank"], row["ended"], row["silent"]) for row in rows] == [
        ("2", False, ""), ("3", False, ""), ("0", False, "silent for 4 min: killed, or hung?"), ("1", True, "")
    ]  # fmt: skip
    assert [row["rank"] for row in node.board.rows()] == ["2"]  # of these the verdict is made
    node.clock.advance(SHOWN_S)
    assert [row["rank"] for row in node.board.rows(within_s=SHOWN_S)] == ["2"]


def test_what_was_before_this_sidecar_is_not_counted(node: Node) -> None:
    """A restarted sidecar is told of hours: its counters begin where it began."""
    node.tell(5000, 900)
    node.tell(5010, 901)
    assert [(each.wall_s, each.stall_s["origin"]) for each in node.grown] == [(0, 0), (10, 1)]


def test_lately_is_the_last_minute(node: Node) -> None:
    """And all there is before a minute has passed."""
    node.tell(10, 5)
    assert node.board.rows()[0]["lately"]["stall_s"]["origin"] == 5
    for _ in range(12):
        node.clock.advance(10.0)
        node.tell(node.clock() % 1000 + 10, 5 + (node.clock() % 1000) / 100)
    (row,) = node.board.rows()
    assert (row["wall_s"], row["lately"]["wall_s"]) == (130, 60)
    assert row["lately"]["stall_s"]["origin"] == pytest.approx(0.6)


def test_ranks_stand_in_their_order_and_jobs_apart(node: Node) -> None:
    """Rank 10 behind rank 9; ``rows(job)`` has that job's only."""
    for rank in ("10", "9", "1"):
        node.tell(1, 0, rank=rank)
    assert [row["rank"] for row in node.board.rows("train")] == ["1", "9", "10"]
    assert node.board.rows("other") == []


def test_a_shard_is_shown_without_what_may_be_a_secret(node: Node) -> None:
    """No query, no password, and no more than a line of it."""
    for shard in ("https://u:p4ss@h/a.tar?sig=p4ss", "s3://b/k?sig=p4ss", "x" * 2000):
        node.tell(1, 0, slowest_shard=shard)
        shown = node.board.rows()[0]["slowest_shard"]
        assert "p4ss" not in shown
        assert len(shown) <= 201


# What two ranks of a job told last, and whether rank 0 waits for rank 1: the loader, its passes and steps, then step_s or ended_s.
STOOD = {"loader": 0, "loader_passes": 1, "loader_steps": 10, "step_s": 40.0}
ENDED = {"loader": 0, "loader_passes": 1, "loader_steps": 9, "ended_s": 40.0}


@pytest.mark.parametrize(
    ("stood", "ended", "waits"),
    [
        ({}, {}, True),
        ({"loader_steps": 19, "loader_passes": 2}, {"loader_steps": 18, "loader_passes": 2}, True),
        ({"loader_steps": 9}, {}, False),  # slow, and has no batch more
        ({"step_s": 9.0}, {}, False),  # not for long
        ({"loader": 1}, {}, False),  # validates
        ({"loader_passes": 2}, {}, False),  # is in another pass, as after a restart
        ({"step_s": None}, {}, False),  # waits for a batch
        ({}, {"ended_s": 4.0}, False),  # about to begin its next pass
        ({}, {"ended_s": None, "step_s": 40.0}, False),  # left its loop, or stands too
        ({"loader": None}, {"loader": None, "ended_s": None}, False),
    ],
)
def test_a_rank_that_waits_for_one_without_batches_is_told(node: Node, stood: dict[str, Any], ended: dict[str, Any], waits: bool) -> None:
    """Only where it has more batches of the same loader than the other ever had, and neither of them moves."""
    node.tell(1, 0, rank="1", **ENDED | ended)
    node.tell(50, 0, rank="0", **STOOD | stood)
    told = {row["rank"]: row["unequal"] for row in node.board.rows()}
    assert (told["0"] is not None, told["1"]) == (waits, None)


def test_a_rank_that_has_ended_may_be_gone(node: Node) -> None:
    """Its last word counts when it is shown no longer; another job's ranks, and steps as long as this one, do not."""
    node.tell(1, 0, rank="1", **ENDED)
    node.clock.advance(SILENCE_S + 500)
    node.tell(540, 0, rank="2", **STOOD | {"step_s": 500.0, "loader_steps": 11})
    node.tell(540, 0, rank="0", **STOOD | {"step_s": 500.0})
    told = [row["unequal"] for row in node.board.rows()]
    assert [text is None for text in told] == [False, True] or [text is None for text in told] == [True, False]
    text = next(filter(None, told))
    assert "rank 1 has had no more batches for 600 s, after 9;" in text
    assert "(and 1 more) stands in step 1" in text
    node.board.take(ReaderName("other", "0", "main", "9.0"), MeterBody(50.0, dict.fromkeys(CAUSES, 0.0), 10, **STOOD))
    assert node.board.rows("other")[0]["unequal"] is None


def test_a_process_that_ends_is_shown_so_until_it_speaks_again(node: Node) -> None:
    """Of one that was never heard nothing is known."""
    teller = ReaderName("train", "0", "main", "7.0")
    node.tell(1.0, 0.0)
    ended = [node.board.rows()[0]["ended"]]
    for act in (node.board.end, node.board.end, lambda reader: node.tell(2.0, 0.0)):
        act(teller)
        ended.append(node.board.rows()[0]["ended"])
    assert ended == [False, True, True, False]
    node.board.end(ReaderName("nobody", "0", "main", "1.0"))
    assert len(node.board.rows()) == 1


def test_a_bounded_number_is_kept(node: Node) -> None:
    """The one unheard for longest makes room."""
    for number in range(MOST_METERS + 5):
        node.tell(1, 0, opener=f"{number}.0")
    assert len(node.board.rows()) == MOST_METERS
    assert not any(row["reader"].endswith("/0.0") for row in node.board.rows())
