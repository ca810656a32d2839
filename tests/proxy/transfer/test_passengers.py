"""Whom a body that passes through memory waits for, and until when what is kept for readers stays."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from forebay_proxy.transfer.passengers import Abandoned, Passengers

from forebay_proxy.transfer import passengers as passengers_module


def aboard(**positions: int) -> Passengers:
    made = Passengers()
    for reader, position in positions.items():
        made.board(reader, position)
    return made


@pytest.mark.parametrize(("once", "position"), [(False, 30), (True, 10)])
def test_the_pace_is_the_fastest_readers_or_the_slowest_ones(once: bool, position: int) -> None:
    """The slowest one's where its bytes cannot be asked for a second time."""
    assert aboard(slow=10, fast=30, other=20).pacemaker(once=once) == position


async def test_a_reader_that_stops_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the next one makes the pace; it is waited for again once it reads on."""
    monkeypatch.setattr(passengers_module, "STOPPED_S", 0.01)
    made = aboard(slow=10, fast=30)
    await made.somebody_moves(once=True)
    assert made.pacemaker(once=True) == 30
    made.moved("slow", 11)
    assert made.pacemaker(once=True) == 11


@pytest.mark.parametrize("what", ["boards", "moves", "leaves"])
async def test_each_change_is_told(what: str) -> None:
    """To a writer that waits for one, each time that it does."""
    made = aboard(one=10, two=20)
    for _ in range(2):
        waiting = asyncio.create_task(made.somebody_moves(once=False))
        await asyncio.sleep(0)
        match what:
            case "boards":
                made.board(object(), 0)
            case "moves":
                made.moved("one", 15)
            case _:
                made.leave("one" if len(made) == 2 else "two")
        await asyncio.wait_for(waiting, 60)


async def test_nobody_who_boards_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment."""
    monkeypatch.setattr(passengers_module, "BOARDING_S", 0.01)
    with pytest.raises(Abandoned):
        await Passengers().somebody()


def test_what_is_kept_goes_with_the_last_reader() -> None:
    """Not before."""
    gone: list[str] = []
    made, held = aboard(one=0), ExitStack()
    held.callback(gone.append, "window")
    made.keep(held)
    made.let_go()
    assert gone == []
    made.leave("one")
    made.let_go()
    assert gone == ["window"]
