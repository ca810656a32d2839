"""No mark is missed, however the two sides' steps fall between each other."""

from __future__ import annotations

import os
import select

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.movers.watermarks import Watermarks


def both_ends() -> tuple[Watermarks, Watermarks]:
    loop = Watermarks.create()
    return loop, Watermarks(os.dup(loop.table), os.dup(loop.bell))


def test_mark_is_seen_by_the_other_end_and_rings() -> None:
    loop, mover = both_ends()
    mover.move(7, 2**40)
    assert loop[7] == 2**40
    assert select.select([loop.bell], [], [], 0)[0]
    loop.heard()
    assert not select.select([loop.bell], [], [], 0)[0]
    loop.close()
    mover.close()


def test_bell_is_never_full() -> None:
    """As many rings as a socket would have refused are one look."""
    loop, mover = both_ends()
    for mark in range(20_000):
        mover.move(0, mark)
    loop.heard()
    assert loop[0] == 19_999
    loop.heard()  # nothing has rung since: it waits for nothing
    loop.close()
    mover.close()


@given(st.lists(st.booleans(), max_size=40))
def test_whatever_the_interleaving_the_last_mark_is_seen(turns: list[bool]) -> None:
    """Store, ring against hear, read: each side one step at a time. When nothing rings any more, the newest mark was read."""
    stored = rung = mark = seen = 0
    ringing = hearing = False
    for movers_turn in [*turns, *[True] * (len(turns) % 2)]:
        if movers_turn:
            if ringing:
                rung, ringing = 1, False
            else:
                mark, ringing = mark + 1, True
                stored = mark
        elif hearing:
            seen, hearing = stored, False
        elif rung:
            rung, hearing = 0, True
    if ringing:
        rung = 1
    while rung or hearing:  # the loop alone, to its rest
        if hearing:
            seen, hearing = stored, False
        else:
            rung, hearing = 0, True
    assert seen == stored
