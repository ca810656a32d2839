"""What a sidecar says of the derived caches of its node's training processes."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.core.events import Events
from forebay_proxy.telemetry.derived_board import TOLD_S, DerivedBoard
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName


class Node:
    """Both boards, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock, events = FakeClock(), Events()
        self.derived = DerivedBoard(self.clock)
        events.listen(self.derived.listen, self.derived.kinds)
        self.meters = MeterBoard(events, self.clock)
        self.clock.advance(1000.0)

    def tell(self, wall_s: float, hits: int, *, opener: str = "7.0", folder: str = "frames@1.2", held: int = 10) -> None:
        told = {"memo": dict.fromkeys(("hits", "made", "kept", "dropped", "damaged", "off"), 0) | {"hits": hits}}
        body = MeterBody(wall_s, dict.fromkeys(CAUSES, 0.0), 1, derived=told, folders={"memo": {folder: (held, 100)}})
        self.meters.take(ReaderName("train", "0", "main", opener), body)


def test_counts_go_on_over_the_end_of_a_process() -> None:
    """What was told twice counts once; a successor's counts come on top; one that is older than the sidecar counts from now on."""
    node = Node()
    for wall_s, hits in ((10, 3), (20, 5), (20, 5)):
        node.tell(wall_s, hits)
    node.tell(1, 4, opener="8.0")
    node.tell(5000, 900, opener="9.0")
    node.tell(5010, 901, opener="9.0")
    assert [(row["job"], row["kind"], row["hits"]) for row in node.derived.rows()] == [("train", "memo", 10)]


def test_a_folder_counts_once() -> None:
    """However many processes tell of it; two of one name are two, and one that nobody tells of any more leaves after an hour."""
    node = Node()
    for opener in ("7.0", "8.0"):
        node.tell(10, 1, opener=opener, held=10)
    node.tell(20, 1, folder="frames@1.3", held=5)
    (row,) = node.derived.rows()
    assert (row["bytes"], row["limit_bytes"], [each["folder"] for each in row["folders"]]) == (15, 200, ["frames", "frames"])
    assert node.derived.levels() == {("memo", "train"): (15, 200)}
    node.clock.advance(TOLD_S + 1)
    (row,) = node.derived.rows()
    assert (row["hits"], row["bytes"], row["folders"]) == (2, 0, [])
