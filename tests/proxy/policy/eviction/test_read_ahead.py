"""Which segments came ahead for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.events import Events
from forebay_proxy.policy.eviction.read_ahead import FEW, ReadAhead, ReaderCaughtUp


def test_a_reader_has_few_below_two() -> None:
    """And again when one of them is read or gone, which is told once."""
    events, told = Events(), list[object]()
    events.on(ReaderCaughtUp, lambda fact: told.append(fact.reader))
    read_ahead = ReadAhead(events)
    for index in range(FEW):
        assert read_ahead.has_few("r")
        read_ahead.note("k", index, "r", 10)
    assert (read_ahead.has_few("r"), read_ahead.has_few("s"), read_ahead.unread_bytes) == (False, True, 20)
    read_ahead.end("k", 0)
    read_ahead.end("k", 0)
    assert (read_ahead.has_few("r"), read_ahead.unread_bytes, told) == (True, 10, ["r"])


def test_an_opening_is_noted_under_another_name_until_its_key_is_known() -> None:
    """With its real size then; one that was not noted stays so."""
    read_ahead = ReadAhead()
    read_ahead.note("opening 1", 0, "r", 100)
    read_ahead.move(("opening 1", 0), "k", 3, 7)
    read_ahead.move(("opening 2", 0), "k", 4, 7)
    assert (len(read_ahead), read_ahead.unread_bytes) == (1, 7)


moves = st.sampled_from(["note", "end", "passed", "forget"])


@given(st.lists(st.tuples(moves, st.integers(0, 3), st.sampled_from("rst"), st.sampled_from("kl"))))
def test_sums_are_those_of_what_stands(steps: list[tuple[str, int, str, str]]) -> None:
    """After any sequence, also where a segment is noted twice or ended twice."""
    read_ahead, model = ReadAhead(), dict[tuple[str, int], str]()
    for what, index, reader, key in steps:
        match what:
            case "note":
                read_ahead.note(key, index, reader, 1 + index)
                model[key, index] = reader
            case "end":
                read_ahead.end(key, index)
                model.pop((key, index), None)
            case "passed":
                read_ahead.passed(reader, lambda each, key=key: each == key)  # type: ignore[misc]
                model = {place: of for place, of in model.items() if of != reader or place[0] == key}
            case "forget":
                read_ahead.forget(reader)
                model = {place: of for place, of in model.items() if of != reader}
        read_ahead.check()
        assert (len(read_ahead), read_ahead.unread_bytes) == (len(model), sum(1 + index for _, index in model))
        assert [read_ahead.has_few(each) for each in "rst"] == [list(model.values()).count(each) < FEW for each in "rst"]
