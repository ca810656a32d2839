"""Who has to leave when one more comes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.server.net.connection_limit import ConnectionLimit


@dataclass(eq=False)
class Visitor:
    idle: bool = True
    stranger: bool = False


def test_nobody_leaves_while_there_is_room() -> None:
    """Up to the bound, which counts the newcomer."""
    crowd = ConnectionLimit(3, 3)
    assert [crowd.enter(Visitor()) for _ in range(3)] == [None] * 3
    assert len(crowd) == 3


def test_the_idle_one_unheard_for_longest_leaves() -> None:
    """Whoever asked lately, or is being answered, stays."""
    crowd = ConnectionLimit(3, 3)
    busy, first, second = Visitor(idle=False), Visitor(), Visitor()
    for visitor in (busy, first, second):
        crowd.enter(visitor)
    crowd.heard(first)
    assert crowd.enter(Visitor()) is second


def test_the_newcomer_leaves_where_all_are_busy() -> None:
    """Nobody who is being served pays for it."""
    crowd = ConnectionLimit(1, 1)
    crowd.enter(Visitor(idle=False))
    newcomer = Visitor()
    assert crowd.enter(newcomer) is newcomer


def test_a_stranger_takes_a_strangers_place_only() -> None:
    """However many idle ones of ours there are."""
    crowd = ConnectionLimit(10, 1)
    ours, stranger, another = Visitor(), Visitor(stranger=True), Visitor(stranger=True)
    crowd.enter(ours)
    crowd.enter(stranger)
    assert crowd.enter(another) is stranger


def test_one_who_is_vouched_for_is_no_stranger_any_more() -> None:
    """Its place is free for the next."""
    crowd = ConnectionLimit(10, 1)
    remote = Visitor(stranger=True)
    crowd.enter(remote)
    remote.stranger = False
    assert crowd.enter(Visitor(stranger=True)) is None


def test_leaving_twice_is_no_error() -> None:
    """Nor is being heard after it."""
    crowd = ConnectionLimit(1, 1)
    visitor = Visitor()
    crowd.enter(visitor)
    crowd.leave(visitor)
    crowd.leave(visitor)
    crowd.heard(visitor)
    assert len(crowd) == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_the_bounds_hold_whoever_comes(comers: list[tuple[bool, bool]]) -> None:
    """When everybody who has to leave does; and who is busy never has to, unless it is the newcomer."""
    crowd, here = ConnectionLimit(5, 2), set()
    for idle, stranger in comers:
        newcomer = Visitor(idle, stranger)
        here.add(newcomer)
        leaver = crowd.enter(newcomer)
        if leaver is not None:
            assert leaver is newcomer or leaver.idle  # type: ignore[attr-defined]
            crowd.leave(leaver)
            here.discard(leaver)
        assert len(crowd) == len(here) <= 5
        assert sum(visitor.stranger for visitor in here) <= 2
