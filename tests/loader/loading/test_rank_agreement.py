"""What ranks say of their loaders: which differences count, and how those that belong together are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forebay_loader.base.errors import StepsError
from forebay_loader.loading import rank_agreement
from forebay_loader.loading.rank_agreement import Agreement, Said, difference, site, watched

RANKS = [4, 6]


class Store:
    """A process group's store in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked = 0
        self.dead = False

    def set(self, key: str, value: str) -> None:
        if self.dead:
            raise RuntimeError("Connection reset by peer")
        self.kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        if self.dead:
            raise RuntimeError("Connection reset by peer")
        return all(key in self.kept for key in keys)


def pair(store: Store, *said: Said) -> list[Agreement]:
    made = [Agreement(store, RANKS, place) for place in range(2)]
    for one, words in zip(made, said, strict=False):
        one.say(words)
    return made


def test_no_difference() -> None:
    """Two parts of two, and all else the same."""
    assert difference([Said(part, 2, 10, None, 6, 0, None) for part in range(2)], RANKS) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batches", "batches an epoch (with_epoch, batches_per_epoch): none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("samples", "samples an epoch (with_epoch on the data set): none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("shards", "shards listed: none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("seed", "seed: none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("epoch", "epoch=: none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("size", "ranks that share the data: 2 on rank 4, 7 on rank 6. Give all ranks the same"),
    ],
)
def test_each_value_is_compared(name: str, text: str) -> None:
    """The message names the value of both ranks."""
    assert difference([Said(0, 2), Said(1, 2)._replace(**{name: 7})], RANKS) == text


def test_parts_that_nobody_reads() -> None:
    """Two ranks that were told to be the same one; with more ranks than parts some may share one, but none may be left out."""
    assert difference([Said(0, 2), Said(0, 2)], RANKS).startswith("rank 4 and rank 6 both read as rank 0 of 2, and nobody reads as rank 1")
    tensor_parallel = [Said(0, 2), Said(0, 2), Said(1, 2), Said(1, 2)]
    assert difference(tensor_parallel, [0, 1, 2, 3]) == ""
    assert difference([Said(0, 2)] * 4, [0, 1, 2, 3]) != ""


def test_a_part_of_more_than_the_group() -> None:
    """A process group on each node, and parts over all of them: what the others read is not known here."""
    assert difference([Said(2, 8), Said(3, 8)], RANKS) == ""


def test_all_ranks_hear_it() -> None:
    """Only once all have spoken, and then on each of them."""
    store = Store()
    first, second = pair(store, Said(0, 2, 3))
    first.look()
    assert not first.decided
    second.say(Said(1, 2, 4))
    for one in (first, second):
        one._next_look_s = 0.0
        with pytest.raises(StepsError, match=r"batches_per_epoch\): 3 on rank 4, 4 on rank 6"):
            one.look()


def test_a_store_that_died(caplog: pytest.LogCaptureFixture) -> None:
    """It ends with rank 0 or its launcher: nothing is compared any more, nothing raises, and who cannot leave word says so."""
    store = Store()
    first, second = pair(store, Said(0, 2, 3))
    store.dead = True
    first.look()
    second.say(Said(1, 2, 4))
    assert first.decided
    assert second.decided
    assert "the store of the process group does not answer" in caplog.text


def test_a_rank_alone_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else comes: every batch is handed over, after one wait; from there on the store is asked now and then."""
    monkeypatch.setattr(rank_agreement, "PAUSE_S", 3600.0)
    store = Store()
    alone, _ = pair(store, Said(0, 2))
    batches: Iterator[Any] = watched(iter(range(1000)), alone, 0.01)
    assert next(batches) == 0
    asked = store.asked
    assert list(batches) == list(range(1, 1000))
    assert asked >= 1
    assert store.asked == asked


def test_loaders_are_told_apart_by_where_they_are_built() -> None:
    """The same line called from elsewhere is another place; a loop stays at its place."""

    def build() -> str:
        return site()

    looped = {build() for _ in range(3)}
    assert len(looped) == 1
    assert len({build(), *looped}) == 2
