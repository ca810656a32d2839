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
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    for index in range(DISPLACED_PER_READER):
        assert prefetch_debts.may("r", SEGMENT_BYTES)
        prefetch_debts.note("k", index, "r", owed={"r": SEGMENT_BYTES})
    assert not prefetch_debts.may("r", SEGMENT_BYTES)
    assert prefetch_debts.may("s", SEGMENT_BYTES)
    prefetch_debts.drop("k", 0)
    assert prefetch_debts.may("r", SEGMENT_BYTES)


def test_a_demanded_segment_is_one_of_the_two() -> None:
    """It stands where a needed one stood like any other; where nothing needed left for it, it is nobody's concern."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    prefetch_debts.note("k", 0, "r", owed={"r": SEGMENT_BYTES}, is_lead=False)
    prefetch_debts.note("k", 1, "r", 5, {"r": SEGMENT_BYTES})
    prefetch_debts.note("k", 2, "r", is_lead=False)
    assert not prefetch_debts.may("r", SEGMENT_BYTES)
    assert (len(prefetch_debts), prefetch_debts.unread_bytes) == (2, 5)


def test_debts_are_in_bytes() -> None:
    """Two halves are one segment: the third half is refused only where it is more than two segments."""
    prefetch_debts, half = PrefetchDebts(SEGMENT_BYTES), SEGMENT_BYTES // 2
    for index in range(3):
        prefetch_debts.note("k", index, "r", owed={"r": half}, is_lead=False)
    assert not prefetch_debts.may("r", SEGMENT_BYTES)
    assert prefetch_debts.may("r", half)


def test_lead_of_any_kind_leaves_no_right_to_displace() -> None:
    """Who has two segments ahead in room that nobody needed gets no more at the cost of what is still needed."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    for index in range(DISPLACED_PER_READER):
        prefetch_debts.note("k", index, "r", 1)
    assert not prefetch_debts.may("r", SEGMENT_BYTES)
    prefetch_debts.drop("k", 0)
    assert prefetch_debts.may("r", SEGMENT_BYTES)


moves = st.sampled_from(["lead", "demand", "read", "hit", "clear", "forget"])


@given(st.lists(st.tuples(moves, st.integers(0, 3), st.sampled_from("rst"))))
def test_sums_are_those_of_the_segments_that_stand(steps: list[tuple[str, int, str]]) -> None:
    """After any sequence, also where a segment is noted twice or cleared twice, and with one owner's debt on another's segment."""
    prefetch_debts, model = PrefetchDebts(SEGMENT_BYTES), dict[int, dict[str, int]]()
    for what, index, reader in steps:
        match what:
            case "lead" | "demand":
                owed = {reader: index + 1, "r": 7}
                prefetch_debts.note("k", index, reader, 3, owed, is_lead=what == "lead")
                model[index] = owed
            case "read":
                prefetch_debts.read("k", index)
            case "hit":
                prefetch_debts.read("k", index)
                prefetch_debts.hit("k", index)
                model.pop(index, None)
            case "clear":
                prefetch_debts.drop("k", index)
                model.pop(index, None)
            case "forget":
                prefetch_debts.forget(reader)
                for owed in model.values():
                    owed.pop(reader, None)
        prefetch_debts.check()
    assert prefetch_debts.owed() == {reader: total for reader in "rst" if (total := sum(owed.get(reader, 0) for owed in model.values()))}


def test_unread_bytes_are_those_of_all_that_was_prefetched() -> None:
    """Displacing or not, until each is read or gone; and whoever may displace again is told."""
    events, freed = Events(), list[object]()
    events.on(DebtSettled, lambda fact: freed.append(fact.reader))
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES, events)
    prefetch_debts.note("k", 0, "r", 10)
    prefetch_debts.note("k", 1, "r", 7)
    prefetch_debts.note("k", 1, "s", 5, {"s": 4, "t": 2})
    assert (prefetch_debts.unread_bytes, prefetch_debts.owed(), len(prefetch_debts)) == (15, {"s": 4, "t": 2}, 2)
    assert prefetch_debts.owed_on("k", 1) == {"s": 4, "t": 2}
    assert prefetch_debts.owed_on("k", 2) == {}
    prefetch_debts.drop("k", 0)
    prefetch_debts.drop("k", 1)
    assert (prefetch_debts.unread_bytes, prefetch_debts.owed(), freed) == (0, {}, ["r", "r", "s", "t"])


def test_what_a_reader_passed_by_counts_no_more() -> None:
    """A reader that skips, or looks into a shard only, would use up its two for ever. What it owes ends where that is needed again."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    prefetch_debts.note("past", 0, "r", 1, {"r": 1})
    prefetch_debts.note("past", 1, "r", 1, {"r": 1})
    prefetch_debts.note("past", 2, "s", 1, {"s": 1})
    prefetch_debts.note("ahead", 0, "r", 1)
    prefetch_debts.passed("r", lambda key: key == "ahead")
    assert (prefetch_debts.may("r", SEGMENT_BYTES), prefetch_debts.unread_bytes, prefetch_debts.owed()) == (True, 2, {"r": 2, "s": 1})
    prefetch_debts.passed("nobody", lambda key: False)
    prefetch_debts.passed("r", lambda key: False)
    assert prefetch_debts.unread_bytes == 1
    assert sorted(prefetch_debts.debts("r")) == [("past", 0), ("past", 1)]


def test_what_was_read_still_stands_where_a_needed_one_stood() -> None:
    """Its room is owed until it leaves or is read again; it is nobody's lead meanwhile, and does not go because its reader moves on."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    prefetch_debts.note("k", 0, "r", 8, {"r": 8})
    prefetch_debts.note("k", 1, "r", 8)
    prefetch_debts.hit("k", 0)
    for index in range(3):
        prefetch_debts.read("k", index)
    assert (prefetch_debts.unread_bytes, prefetch_debts.owed(), prefetch_debts.debts("r"), len(prefetch_debts)) == (
        0,
        {"r": 8},
        [("k", 0)],
        1,
    )
    assert not prefetch_debts.is_lead("k", 0)
    prefetch_debts.passed("r", lambda key: False)
    assert prefetch_debts.owed() == {"r": 8}
    prefetch_debts.hit("k", 0)
    assert not prefetch_debts.owed()


def test_a_reader_that_is_gone_owes_nothing() -> None:
    """Its debts end, and its lead; those of others stay."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    prefetch_debts.note("k", 0, "r", 8, {"r": 8, "s": 1})
    prefetch_debts.note("k", 1, "s", 8, {"r": 8})
    prefetch_debts.note("k", 2, "r", owed={"s": 3}, is_lead=False)
    prefetch_debts.forget("r")
    assert (prefetch_debts.unread_bytes, prefetch_debts.owed(), len(prefetch_debts)) == (8, {"s": 4}, 3)


def test_what_was_granted_for_an_opening_is_its_segments() -> None:
    """Lead or demand, once the shard has a key and the segment a size."""
    prefetch_debts = PrefetchDebts(SEGMENT_BYTES)
    for is_lead in (True, False):
        prefetch_debts.note("opening", 0, "r", 8, {"r": 8}, is_lead=is_lead)
        prefetch_debts.move(("opening", 0), "k", 1, 5)
        assert (prefetch_debts.is_lead("k", 1), prefetch_debts.unread_bytes, prefetch_debts.owed(), len(prefetch_debts)) == (
            is_lead, 5 if is_lead else 0, {"r": 8}, 1,
        )  # fmt: skip
        prefetch_debts.drop("k", 1)
    prefetch_debts.move(("nothing", 0), "k", 1, 5)
    assert not prefetch_debts
