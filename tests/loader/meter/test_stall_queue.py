"""What a stall's time went for, by what the due worker's page says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.meter.clock.books import PageAccount
from forebay_loader.meter.clock.stall_queue import attributed
from forebay_proxy.wire.protocol.meter import CAUSES


def test_by_what_the_worker_did() -> None:
    """Before it could be seen: its start."""
    told = PageAccount(120, [(120, 150, "origin"), (150, 190, "decode"), (190, 400, "transfer")])
    assert attributed(100, 200, told) == {"start": 20, "origin": 30, "decode": 40, "transfer": 10}


def test_what_no_span_covers_is_as_the_rest() -> None:
    assert attributed(0, 100, PageAccount(0, [(60, 70, "map"), (70, 100, "read")])) == {"map": 25, "read": 75}
    assert attributed(0, 100, PageAccount(0, [])) == {"other": 100}
    assert attributed(0, 100, None) == {"other": 100}


def test_the_end_of_a_pass_is_that_of_its_workers() -> None:
    """They end after what their pages tell."""
    assert attributed(0, 100, PageAccount(0, [(0, 30, "read")]), ended=True) == {"read": 30, "start": 70}


spans = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(CAUSES)), max_size=8)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 200), spans, st.booleans())
def test_no_time_is_lost_or_made(start: int, length: int, begun: int, steps: list[tuple[int, str]], ended: bool) -> None:
    """The parts are all of the stall."""
    at, found = begun, []
    for step, cause in steps:
        found.append((at, at + step, cause))
        at += step
    parts = attributed(start, start + length, PageAccount(begun, found), ended=ended)
    assert sum(parts.values()) == length
    assert all(part > 0 for part in parts.values())
