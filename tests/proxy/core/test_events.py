"""Who hears which facts, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.core.events import Events, Fact
from forebay_proxy.core.facts.origins import FetchJoined


@dataclass(frozen=True, slots=True)
class Moved(Fact):
    """A fact of a room's own."""

    to: int


def test_a_listener_hears_only_the_kind_it_named() -> None:
    """Of a fact that nobody counts no listener of another kind is called."""
    events, heard = Events(), list[object]()
    events.on(Moved, heard.append)
    events.emit(FetchJoined())
    events.emit(Moved(3))
    assert heard == [Moved(3)]


def test_any_number_listen_in_the_order_in_which_they_came() -> None:
    """Whoever listens to everything takes its turn among those that named a kind, before or after them."""
    events, heard = Events(), list[str]()
    events.listen(lambda _: heard.append("all, first"))
    events.on(Moved, lambda _: heard.append("one"))
    events.on(Moved, lambda _: heard.append("another"))
    events.listen(lambda _: heard.append("all, last"))
    events.emit(Moved(1))
    assert heard == ["all, first", "one", "another", "all, last"]
