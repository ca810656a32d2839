"""How many bytes of a reader's future are here or on their way."""

from __future__ import annotations

from forebay_proxy.policy.schedule.cursors import ReaderLead


def lead_of(*sizes: int) -> ReaderLead:
    lead = ReaderLead()
    for index, size in enumerate(sizes):
        lead.count(index, size)
    return lead


def test_what_lies_before_a_shard() -> None:
    """That one included, in whatever order cursors passed them."""
    lead = ReaderLead()
    for index in (2, 0, 1):
        lead.count(index, 10**index)
    assert [lead.bytes_before(index) for index in range(4)] == [1, 11, 111, 111]


def test_what_is_looked_at_anew_does_not_count() -> None:
    """Nor does a shard that was never counted."""
    lead = lead_of(1, 10, 100)
    lead.uncount(1)
    lead.uncount(7)
    assert (lead.bytes, lead.bytes_before(1)) == (101, 1)


def test_what_lies_behind_the_reader_does_not_count() -> None:
    """Whether it went on by one shard or by many."""
    for position in (2, 2_000_000_000):
        lead = lead_of(1, 10, 100)
        lead.drop_between(0, position)
        assert lead.bytes == (100 if position == 2 else 0)


def test_a_guess_is_no_lead_to_compare() -> None:
    """Until the shard is looked at anew; and there is never less than none."""
    lead = lead_of(1, 10)
    lead.guessed(1, 8)
    assert (lead.bytes, lead.known_before(1, 5)) == (11, 8)
    lead.guessed(1, 80)
    assert lead.known_before(1, 5) == 0
    lead.uncount(1)
    assert lead.known_before(1, 5) == 6
