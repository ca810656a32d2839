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
    connection_limit = ConnectionLimit(3, 3)
    assert [connection_limit.enter(Visitor()) for _ in range(3)] == [None] * 3
    assert len(connection_limit) == 3


def test_the_idle_one_unheard_for_longest_leaves() -> None:
    """Whoever asked lately, or is being answered, stays."""
    connection_limit = ConnectionLimit(3, 3)
    busy, first, second = Visitor(idle=False), Visitor(), Visitor()
    for visitor in (busy, first, second):
        connection_limit.enter(visitor)
    connection_limit.heard(first)
    assert connection_limit.enter(Visitor()) is second


def test_the_newcomer_leaves_where_all_are_busy() -> None:
    """Nobody who is being served pays for it."""
    connection_limit = ConnectionLimit(1, 1)
    connection_limit.enter(Visitor(idle=False))
    newcomer = Visitor()
    assert connection_limit.enter(newcomer) is newcomer


def test_a_stranger_takes_a_strangers_place_only() -> None:
    """However many idle ones of ours there are."""
    connection_limit = ConnectionLimit(10, 1)
    ours, stranger, another = Visitor(), Visitor(stranger=True), Visitor(stranger=True)
    connection_limit.enter(ours)
    connection_limit.enter(stranger)
    assert connection_limit.enter(another) is stranger


def test_one_who_is_vouched_for_is_no_stranger_any_more() -> None:
    """Its place is free for the next."""
    connection_limit = ConnectionLimit(10, 1)
    remote = Visitor(stranger=True)
    connection_limit.enter(remote)
    remote.stranger = False
    assert connection_limit.enter(Visitor(stranger=True)) is None


def test_leaving_twice_is_no_error() -> None:
    """Nor is being heard after it."""
    connection_limit = ConnectionLimit(1, 1)
    visitor = Visitor()
    connection_limit.enter(visitor)
    connection_limit.leave(visitor)
    connection_limit.leave(visitor)
    connection_limit.heard(visitor)
    assert len(connection_limit) == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_the_bounds_hold_whoever_comes(comers: list[tuple[bool, bool]]) -> None:
    """When everybody who has to leave does; and who is busy never has to, unless it is the newcomer."""
    connection_limit, here = ConnectionLimit(5, 2), set()
    for idle, stranger in comers:
        newcomer = Visitor(idle, stranger)
        here.add(newcomer)
        leaver = connection_limit.enter(newcomer)
        if leaver is not None:
            assert leaver is newcomer or leaver.idle  # type: ignore[attr-defined]
            connection_limit.leave(leaver)
            here.discard(leaver)
        assert len(connection_limit) == len(here) <= 5
        assert sum(visitor.stranger for visitor in here) <= 2
