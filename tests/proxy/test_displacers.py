"""Who displaced what, and how much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.displacers import DISPLACED_PER_READER, Displacers


def test_a_reader_may_displace_two() -> None:
    """And one more for each that is read or gone."""
    displacers = Displacers()
    for index in range(DISPLACED_PER_READER):
        assert displacers.may("r")
        displacers.note("k", index, "r")
    assert not displacers.may("r")
    assert displacers.may("s")
    displacers.settle("k", 0)
    assert displacers.may("r")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from(["r", "s", None]))))
def test_counts_are_those_of_the_segments_that_stand(steps: list[tuple[bool, int, str | None]]) -> None:
    """After any sequence, also where a segment is noted twice or settled twice, and for nobody in particular."""
    displacers, model = Displacers(), dict[int, str | None]()
    for noted, index, reader in steps:
        if noted:
            displacers.note("k", index, reader)
            model[index] = reader
        else:
            displacers.settle("k", index)
            model.pop(index, None)
    standing = list(model.values())
    assert displacers.counts() == {reader: standing.count(reader) for reader in standing}
    assert len(displacers) == len(model)
