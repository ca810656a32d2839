"""The bound holds, whatever happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.policy.eviction.ledger import OVERHEAD_STEP_BYTES, Grant, Ledger, Victim

MIB = 2**20


def ledger_of(capacity: int, stored: int = 0) -> Ledger[str]:
    ledger: Ledger[str] = Ledger(capacity)
    ledger.found(stored)
    return ledger


def test_victims_are_taken_in_order_and_no_more_than_needed() -> None:
    """The first ones that suffice; their bytes are doomed until they are gone."""
    ledger = ledger_of(100, 90)
    offered = [Victim("a", 30), Victim("b", 30), Victim("c", 30)]
    grant = ledger.reserve(50, lambda: iter(offered))
    assert [victim.subject for victim in grant.victims] == ["a", "b"]
    assert (ledger.stored_bytes, ledger.doomed_bytes, ledger.reserved_bytes) == (30, 60, 10)
    ledger.vacated(grant)
    assert (ledger.stored_bytes, ledger.doomed_bytes, ledger.reserved_bytes) == (30, 0, 50)


def test_a_refusal_changes_nothing() -> None:
    """Too few may leave: the numbers are said, and all is as before."""
    ledger = ledger_of(100, 90)
    with pytest.raises(CacheFull, match="90 of 100 bytes are in use, and 30 of them may leave now"):
        ledger.reserve(50, lambda: [Victim("a", 30)])
    with pytest.raises(CacheFull, match="and nothing of that may leave now"):
        ledger.reserve(50, list)
    assert (ledger.stored_bytes, ledger.doomed_bytes, ledger.reserved_bytes) == (90, 0, 0)


def test_a_grant_ends_once_and_after_its_victims() -> None:
    """Anything else is a fault of ours, and shows."""
    ledger = ledger_of(100, 90)
    grant = ledger.reserve(50, lambda: [Victim("a", 60)])
    with pytest.raises(AssertionError):
        ledger.release(grant)
    ledger.vacated(grant)
    ledger.release(grant)
    with pytest.raises(AssertionError):
        ledger.commit(grant)


def test_nothing_is_granted_while_a_shrunk_capacity_is_worked_off() -> None:
    """The excess is what stands above it and is not leaving yet."""
    ledger = ledger_of(100, 90)
    ledger.capacity_bytes = 50
    assert ledger.excess_bytes() == 40
    with pytest.raises(CacheFull):
        ledger.reserve(1, list)
    ledger.doom(40)
    assert ledger.excess_bytes() == 0
    ledger.gone(40)
    assert ledger.used_bytes == 50


def test_overhead_keeps_ahead_of_a_large_commit() -> None:
    """What one commit may add is set aside before it comes; a small one fits into the step that is there."""
    ledger = ledger_of(100 * MIB)
    for ahead in (0, 1, OVERHEAD_STEP_BYTES - 1, OVERHEAD_STEP_BYTES, 7 * OVERHEAD_STEP_BYTES + 5):
        ledger.measured_overhead(MIB, ahead=ahead)
        assert max(ahead, OVERHEAD_STEP_BYTES) <= ledger.overhead_bytes - MIB <= ahead + 2 * OVERHEAD_STEP_BYTES


def test_the_peak_is_told_once() -> None:
    """The next one starts at what is held then."""
    ledger = ledger_of(100)
    ledger.release(ledger.reserve(80, list))
    assert (ledger.pop_peak(), ledger.pop_peak()) == (80, 0)


def test_the_peak_is_of_what_is_on_the_disk() -> None:
    """An overhead that is set aside in a full cache has nobody think that the disk holds more than the bound."""
    ledger = ledger_of(10 * MIB)
    ledger.measured_overhead(0)
    ledger.commit(ledger.reserve(ledger.free_bytes, list))
    assert ledger.pop_peak() == 8 * MIB
    ledger.measured_overhead(MIB)
    assert ledger.used_bytes == 11 * MIB
    assert ledger.pop_peak() == 9 * MIB
    ledger.measured_overhead(3 * MIB)
    assert ledger.pop_peak() > ledger.capacity_bytes


class Model:
    """What is on the disk, and what was promised."""

    def __init__(self) -> None:
        self.ledger: Ledger[int] = Ledger(1000)
        self.stored: dict[int, int] = {}
        self.open: list[Grant[int]] = []
        self.serial = itertools.count(1)  # one that was doomed may come back: no key is used twice

    def reserve(self, size: int) -> None:
        try:
            grant = self.ledger.reserve(size, lambda: (Victim(key, held) for key, held in self.stored.items()))
        except CacheFull:
            return
        for victim in grant.victims:
            del self.stored[victim.subject]
        self.open.append(grant)

    def end(self, number: int) -> None:
        """The ``number`` also says how: who stays, stored or released."""
        if not self.open:
            return
        grant = self.open.pop(number % len(self.open))
        stayed = grant.victims[: number % 3]
        for victim in stayed:
            self.ledger.stayed(grant, victim)
            self.stored[victim.subject] = victim.bytes
        self.ledger.vacated(grant)
        if number % 2 or stayed:
            self.ledger.release(grant)
            return
        self.ledger.commit(grant)
        self.stored[next(self.serial)] = grant.bytes

    def remove(self, number: int) -> None:
        for key, size in list(self.stored.items())[:1]:
            self.ledger.doom(size)
            if number % 2:
                self.ledger.gone(size)
                del self.stored[key]
            else:
                self.ledger.spared(size)

    def resize(self, number: int) -> None:
        self.ledger.capacity_bytes = max(self.ledger.used_bytes, 600 + number)  # a smaller one is worked off first


STEPS = st.tuples(st.sampled_from([Model.reserve, Model.reserve, Model.end, Model.remove, Model.resize]), st.integers(0, 400))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_the_invariant_holds_after_any_sequence(steps: list[tuple[Callable[[Model, int], None], int]]) -> None:
    """Every byte is in one sum, none is promised twice, and all together they keep to the capacity."""
    model = Model()
    ledger = model.ledger
    for step, number in steps:
        step(model, number)
        assert ledger.stored_bytes == sum(model.stored.values())
        assert ledger.reserved_bytes == sum(grant.bytes - grant.owed for grant in model.open)
        assert ledger.doomed_bytes == sum(victim.bytes for grant in model.open for victim in grant.victims)
        assert ledger.used_bytes <= ledger.capacity_bytes


def test_what_is_promised_is_not_on_the_disk_until_it_is_allocated() -> None:
    """The disk counts it as free until then; whatever becomes of a grant, nothing of it stays in that figure."""
    ledger: Ledger[str] = Ledger(100)
    ledger.found(60)
    kept, given_back, displaced = ledger.reserve(20, list), ledger.reserve(10, list), ledger.reserve(20, lambda: [Victim("v", 15)])
    assert (ledger.used_bytes, ledger.unallocated_bytes, ledger.held_bytes) == (100, 40, 60 - 15)
    ledger.allocated(kept)
    assert ledger.held_bytes == 80 - 15
    ledger.vacated(displaced)
    assert ledger.held_bytes == 80 - 15
    ledger.commit(kept)
    ledger.release(given_back)
    ledger.release(displaced)
    assert ledger.unallocated_bytes == 0
    assert ledger.held_bytes == ledger.used_bytes == 65


def test_what_the_disk_holds_at_least_while_it_is_watched() -> None:
    """What is being given or taken back does not count, also when that is over."""
    ledger: Ledger[str] = Ledger(100)
    ledger.found(60)
    ledger.watch()
    grant = ledger.reserve(20, list)
    ledger.allocated(grant)
    assert (ledger.least_bytes, ledger.held_bytes) == (60, 80)
    ledger.doom(15)
    ledger.gone(15)
    ledger.watch()
    assert ledger.least_bytes == 65
    ledger.freeing(grant)
    ledger.release(grant)
    assert ledger.least_bytes == 45
    ledger.measured_overhead(8, swept=3)
    ledger.watch()
    assert ledger.least_bytes == 50
