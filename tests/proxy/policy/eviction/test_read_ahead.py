"""Which segments came ahead for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.eviction.read_ahead import FEW, ReadAhead

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
