"""What of a declared set is here, counted in slices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.house import shard_of

from forebay_proxy.background import set_census as module
from forebay_proxy.background.set_census import Here, SetCensus
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, Version
from forebay_proxy.policy.plans.sets.shard_sets import PatternSet, ShardSet

SETS: dict[str, ShardSet] = {"a": PatternSet.of("https://o/{0..9}.tar"), "b": PatternSet.of("https://o/{5..14}.tar")}


def stored(number: int, count: int, length: int | None) -> Entry:
    """An entry of which the first ``count`` segments are stored."""
    entry = Entry(str(number), shard_of(f"https://o/{number}.tar"), Version("etag:1", Pin(), length), DEFAULT_LAYOUT, ranged=True)
    for index in range(count):
        entry.segments.land(index, 1)
    return entry


def counted(entries: Sequence[Entry], steps: int = 1) -> SetCensus:
    made = SetCensus(lambda: entries)
    for _ in range(steps):
        made.step(SETS)
    return made


def test_a_shard_counts_in_every_set_that_holds_it() -> None:
    """Whole, in part, of unknown length, and not at all."""
    length = 2 * SEGMENT_BYTES + 5
    found = counted([stored(0, 3, length), stored(7, 1, length), stored(12, 0, length), stored(13, 2, None), stored(99, 3, length)])
    assert found.of("a") == Here(1, length + SEGMENT_BYTES)
    assert found.of("b") == Here(0, 3 * SEGMENT_BYTES)
    assert found.of("c") is None


def test_a_login_page_is_no_shard() -> None:
    """Its bytes are here, and count as such."""
    page = stored(1, 1, 10)
    page.trust.no_tar = "a web page"
    assert counted([page]).of("a") == Here(0, 10)


def test_a_round_takes_as_many_steps_as_it_has_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told before its end, then the whole; an empty cache is counted too."""
    monkeypatch.setattr(module, "SLICE", 2)
    entries = [stored(number, 1, 10) for number in range(5)]
    assert counted(entries, 2).of("a") is None
    assert counted(entries, 3).of("a") == Here(5, 50)
    assert counted([]).of("a") == Here()
