"""Who has how much lead, and who owes what of which room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.eviction.facts import DebtSettled
from forebay_proxy.policy.eviction.prefetch_debt import DISPLACED_PER_READER, PrefetchDebts


def test_a_reader_may_displace_two() -> None:
    """And one more for each that is gone."""
    displacers = PrefetchDebts()
    for index in range(DISPLACED_PER_READER):
        assert displacers.may("r", SEGMENT_BYTES)
        displacers.note("k", index, "r", owed={"r": SEGMENT_BYTES})
    assert not displacers.may("r", SEGMENT_BYTES)
    assert displacers.may("s", SEGMENT_BYTES)
    displacers.settle("k", 0)
    assert displacers.may("r", SEGMENT_BYTES)


def test_a_demanded_segment_is_one_of_the_two() -> None:
    """It stands where a needed one stood like any other; where nothing needed left for it, it is nobody's concern."""
    displacers = PrefetchDebts()
    displacers.note("k", 0, "r", owed={"r": SEGMENT_BYTES}, is_lead=False)
    displacers.note("k", 1, "r", 5, {"r": SEGMENT_BYTES})
    displacers.note("k", 2, "r", is_lead=False)
    assert not displacers.may("r", SEGMENT_BYTES)
    assert (len(displacers), displacers.unread_bytes) == (2, 5)


def test_debts_are_in_bytes() -> None:
    """Two halves are one segment: the third half is refused only where it is more than two segments."""
    displacers, half = PrefetchDebts(), SEGMENT_BYTES // 2
    for index in range(3):
        displacers.note("k", index, "r", owed={"r": half}, is_lead=False)
    assert not displacers.may("r", SEGMENT_BYTES)
    assert displacers.may("r", half)


def test_lead_of_any_kind_leaves_no_right_to_displace() -> None:
    """Who has two segments ahead in room that nobody needed gets no more at the cost of what is still needed."""
    displacers = PrefetchDebts()
    for index in range(DISPLACED_PER_READER):
        displacers.note("k", index, "r", 1)
    assert not displacers.may("r", SEGMENT_BYTES)
    displacers.settle("k", 0)
    assert displacers.may("r", SEGMENT_BYTES)


moves = st.sampled_from(["lead", "demand", "read", "hit", "settle", "forget"])


@given(st.lists(st.tuples(moves, st.integers(0, 3), st.sampled_from("rst"))))
def test_sums_are_those_of_the_segments_that_stand(steps: list[tuple[str, int, str]]) -> None:
    """After any sequence, also where a segment is noted twice or settled twice, and with one owner's debt on another's segment."""
    displacers, model = PrefetchDebts(), dict[int, dict[str, int]]()
    for what, index, reader in steps:
        match what:
            case "lead" | "demand":
                owed = {reader: index + 1, "r": 7}
                displacers.note("k", index, reader, 3, owed, is_lead=what == "lead")
                model[index] = owed
            case "read":
                displacers.read("k", index)
            case "hit":
                displacers.read("k", index)
                displacers.hit("k", index)
                model.pop(index, None)
            case "settle":
                displacers.settle("k", index)
                model.pop(index, None)
            case "forget":
                displacers.forget(reader)
                for owed in model.values():
                    owed.pop(reader, None)
        displacers.check()
    assert displacers.owed() == {reader: total for reader in "rst" if (total := sum(owed.get(reader, 0) for owed in model.values()))}


def test_unread_bytes_are_those_of_all_that_was_prefetched() -> None:
    """Displacing or not, until each is read or gone; and whoever may displace again is told."""
    events, freed = Events(), list[object]()
    events.on(DebtSettled, lambda fact: freed.append(fact.reader))
    displacers = PrefetchDebts(events)
    displacers.note("k", 0, "r", 10)
    displacers.note("k", 1, "r", 7)
    displacers.note("k", 1, "s", 5, {"s": 4, "t": 2})
    assert (displacers.unread_bytes, displacers.owed(), len(displacers)) == (15, {"s": 4, "t": 2}, 2)
    assert displacers.owed_on("k", 1) == {"s": 4, "t": 2}
    assert displacers.owed_on("k", 2) == {}
    displacers.settle("k", 0)
    displacers.settle("k", 1)
    assert (displacers.unread_bytes, displacers.owed(), freed) == (0, {}, ["r", "r", "s", "t"])


def test_what_a_reader_passed_by_counts_no_more() -> None:
    """A reader that skips, or looks into a shard only, would use up its two for ever. What it owes ends where that is needed again."""
    displacers = PrefetchDebts()
    displacers.note("past", 0, "r", 1, {"r": 1})
    displacers.note("past", 1, "r", 1, {"r": 1})
    displacers.note("past", 2, "s", 1, {"s": 1})
    displacers.note("ahead", 0, "r", 1)
    displacers.passed("r", lambda key: key == "ahead")
    assert (displacers.may("r", SEGMENT_BYTES), displacers.unread_bytes, displacers.owed()) == (True, 2, {"r": 2, "s": 1})
    displacers.passed("nobody", lambda key: False)
    displacers.passed("r", lambda key: False)
    assert displacers.unread_bytes == 1
    assert sorted(displacers.debts("r")) == [("past", 0), ("past", 1)]


def test_what_was_read_still_stands_where_a_needed_one_stood() -> None:
    """Its room is owed until it leaves or is read again; it is nobody's lead meanwhile, and does not go because its reader moves on."""
    displacers = PrefetchDebts()
    displacers.note("k", 0, "r", 8, {"r": 8})
    displacers.note("k", 1, "r", 8)
    displacers.hit("k", 0)
    for index in range(3):
        displacers.read("k", index)
    assert (displacers.unread_bytes, displacers.owed(), displacers.debts("r"), len(displacers)) == (0, {"r": 8}, [("k", 0)], 1)
    assert not displacers.is_lead("k", 0)
    displacers.passed("r", lambda key: False)
    assert displacers.owed() == {"r": 8}
    displacers.hit("k", 0)
    assert not displacers.owed()


def test_a_reader_that_is_gone_owes_nothing() -> None:
    """Its debts end, and its lead; those of others stay."""
    displacers = PrefetchDebts()
    displacers.note("k", 0, "r", 8, {"r": 8, "s": 1})
    displacers.note("k", 1, "s", 8, {"r": 8})
    displacers.note("k", 2, "r", owed={"s": 3}, is_lead=False)
    displacers.forget("r")
    assert (displacers.unread_bytes, displacers.owed(), len(displacers)) == (8, {"s": 4}, 3)


def test_what_was_granted_for_an_opening_is_its_segments() -> None:
    """Lead or demand, once the shard has a key and the segment a size."""
    displacers = PrefetchDebts()
    for is_lead in (True, False):
        displacers.note("opening", 0, "r", 8, {"r": 8}, is_lead=is_lead)
        displacers.move(("opening", 0), "k", 1, 5)
        assert (displacers.is_lead("k", 1), displacers.unread_bytes, displacers.owed(), len(displacers)) == (
            is_lead, 5 if is_lead else 0, {"r": 8}, 1,
        )  # fmt: skip
        displacers.settle("k", 1)
    displacers.move(("nothing", 0), "k", 1, 5)
    assert not displacers
