"""What a person looks for who comes later."""

from __future__ import annotations

from typing import Any

from forebay_proxy.telemetry.happenings import KEPT, Happenings


def meter_of(rank: str, *, ended: bool = False, silent: str = "") -> dict[str, Any]:
    return {"reader": f"train/{rank}/main/7.0", "job": "train", "rank": rank, "ended": ended, "silent": silent}


class Node:
    """Looks at how things stand; ``told`` since the last time, the oldest first."""

    def __init__(self) -> None:
        self.at, self.seen = 0.0, 0
        self.happenings = Happenings(lambda: self.at)

    def told(self, *meters: dict[str, Any], progress: Any = (), failing: Any = None, disk: str = "normal") -> list[str]:
        self.at += 5
        self.happenings.look(meters, progress, failing or {}, disk, "EIO at a write")
        new = [str(row["what"]) for row in self.happenings.rows() if float(str(row["at"])) == self.at]
        return new[::-1]


def test_a_job_begins_is_killed_and_ends() -> None:
    """One line a job, however many ranks; each thing once."""
    node, ranks = Node(), [meter_of(str(rank)) for rank in range(6)]
    assert node.told(*ranks) == ["job train began: ranks 0, 1, 2, 3 and 2 more"]
    assert node.told(*ranks) == []
    gone = [*ranks[:5], meter_of("5", silent="silent for 1 min: killed, or hung?")]
    assert node.told(*gone) == ["job train, rank 5: silent for a minute, and did not end: killed, or hung?"]
    assert node.told(*gone) == []
    assert node.told(*ranks) == ["job train, rank 5: heard again"]
    assert node.told(*ranks[1:], meter_of("0", ended=True)) == []
    assert node.told(*(meter_of(str(rank), ended=True) for rank in range(6))) == ["job train ended"]
    assert Node().told(meter_of("0", ended=True)) == ["job train began: rank 0", "job train ended"]  # within one look


def test_what_is_announced_an_outage_and_the_disk() -> None:
    """Their begin and their end; of a hiccup nothing."""
    node, plan = Node(), {"job": "train", "epoch": 1, "length": 1200}
    assert node.told(progress=[plan]) == ["job train announced 1,200 shards of epoch 1"]
    assert node.told(progress=[plan, {**plan, "epoch": None, "length": 3}]) == ["job train announced 3 shards"]
    assert node.told(failing={"https://o": (4.0, "503")}) == []
    assert node.told(failing={"https://o": (9.0, "503")}) == ["every request to https://o has failed for 9.0 s: 503"]
    assert node.told(failing={"https://o": (14.0, "503")}) == []
    assert node.told() == ["https://o gives bytes again, after 14 s or more"]
    assert node.told(disk="down") == ["the cache disk is down: EIO at a write; shards pass through memory"]
    assert node.told() == ["the cache disk is well again"]


def test_it_is_bounded() -> None:
    """The oldest lines leave."""
    node = Node()
    for count in range(3 * KEPT):
        node.happenings.note(str(count))
    assert [row["what"] for row in node.happenings.rows()] == [str(count) for count in range(3 * KEPT - 1, 2 * KEPT - 1, -1)]
