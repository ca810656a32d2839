"""resolver.py: names to addresses, every answer judged."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import place_of
from forebay_proxy.origins.net.guard import Guard, Hop, Refused
from forebay_proxy.origins.net.resolver import GuardedResolver, travelling


class Names:
    """A name server of two answers."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        self.asked.append(host)
        return [(socket.AF_INET, address) for address in self.addresses]


TRIP = Hop(place_of("http://data.example/"))


MADE: list[GuardedResolver] = []


def guarded(*arguments: Any, **how: Any) -> GuardedResolver:
    """A resolver that is closed when its test ends: it has a thread."""
    MADE.append(GuardedResolver(*arguments, **how))
    return MADE[-1]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while MADE:
        await MADE.pop().close()


async def test_bad_answers_are_left_out() -> None:
    """The HTTP client never sees an address that may not be dialled."""
    resolver = guarded(Guard(), look_up=Names("127.0.0.1", "8.8.8.8", "169.254.169.254"))
    with travelling(TRIP):
        assert [found["host"] for found in await resolver.resolve("data.example", 80)] == ["8.8.8.8"]


async def test_no_good_answer_is_a_refusal() -> None:
    """A name that leads only to loopback is refused with the flag that would allow it."""
    resolver = guarded(Guard(), look_up=Names("127.0.0.1"))
    with pytest.raises(Refused) as refused:
        await resolver.admit(TRIP)
    assert refused.value.next_step == "--allow-origin http://data.example allows it"


async def test_admission_tells_the_most_public_class() -> None:
    """One public answer makes a host public, so its redirects may not lead inward."""
    resolver = guarded(Guard(), look_up=Names("10.0.0.1", "8.8.8.8"))
    assert await resolver.admit(TRIP) is AddressClass.PUBLIC


async def test_answers_are_kept_for_a_moment_and_judged_each_time() -> None:
    """Admission and dialling see the same addresses; another hop judges them anew."""
    now = [0.0]
    names = Names("10.0.0.1")
    resolver = guarded(Guard(), look_up=names, clock=lambda: now[0])
    await resolver.admit(TRIP)
    with pytest.raises(Refused):
        await resolver.admit(Hop(TRIP.place, came_from=AddressClass.PUBLIC))
    assert len(names.asked) == 1
    now[0] = 11.0
    await resolver.admit(TRIP)
    assert len(names.asked) == 2


async def test_nothing_is_looked_up_for_a_name_refused_beforehand() -> None:
    """Strict origins leak no name to a name server."""
    names = Names("8.8.8.8")
    with pytest.raises(Refused):
        await guarded(Guard(strict_origins=True), look_up=names).admit(TRIP)
    assert names.asked == []


async def test_a_look_up_outside_a_request_is_refused() -> None:
    """Without a hop there is nothing to judge by."""
    with pytest.raises(Refused):
        await guarded(Guard(), look_up=Names("8.8.8.8")).resolve("x", 80)


# Look-ups of its own


class Slow(Names):
    """A name server that answers when it is told to."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(*addresses)
        self.answer = threading.Event()

    def __call__(self, host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        found = super().__call__(host, port)
        self.answer.wait(30)
        return found


async def test_who_asks_for_one_name_at_once_asks_once() -> None:
    """Sixty-four connections to one host are one look-up, and one of them that leaves takes nothing from the others."""
    names = Slow("8.8.8.8")
    resolver = guarded(Guard(), look_up=names)
    asking = [asyncio.create_task(resolver.admit(TRIP)) for _ in range(64)]
    await asyncio.sleep(0)
    asking[0].cancel()
    names.answer.set()
    assert (await asyncio.gather(*asking, return_exceptions=True))[1:] == [AddressClass.PUBLIC] * 63
    assert names.asked == ["data.example"]
    await resolver.close()


async def test_a_name_that_hangs_holds_up_no_other() -> None:
    """A name server that is silent about one name is asked for the next in another thread."""
    silent = Slow("8.8.8.8")

    def look_up(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        return silent(host, port) if host == "data.example" else [(socket.AF_INET, "8.8.4.4")]

    resolver = guarded(Guard(), look_up=look_up)
    hanging = asyncio.create_task(resolver.admit(TRIP))
    assert await resolver.admit(Hop(place_of("http://other.example/"))) is AddressClass.PUBLIC
    silent.answer.set()
    await hanging
    await resolver.close()


async def test_a_failed_look_up_is_not_kept() -> None:
    """The next request asks again: a name server comes back."""
    answers: list[list[tuple[socket.AddressFamily, str]]] = [[(socket.AF_INET, "8.8.8.8")]]

    def look_up(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        if len(answers) == 1:
            answers.append([])
            raise socket.gaierror(socket.EAI_AGAIN, "later")
        return answers[0]

    resolver = guarded(Guard(), look_up=look_up)
    with pytest.raises(socket.gaierror):
        await resolver.admit(TRIP)
    assert await resolver.admit(TRIP) is AddressClass.PUBLIC
    await resolver.close()


# Behind a proxy

THROUGH = Hop(TRIP.place, proxy=place_of("http://10.0.0.1:3128"))


async def test_behind_a_proxy_every_answer_must_be_good() -> None:
    """The proxy chooses among them, not we."""
    assert await guarded(Guard(), look_up=Names("8.8.8.8", "10.0.0.1")).admit(THROUGH) is AddressClass.PUBLIC
    with pytest.raises(Refused, match="metadata"):
        await guarded(Guard(), look_up=Names("8.8.8.8", "169.254.169.254")).admit(THROUGH)


async def test_behind_a_proxy_an_unknown_name_counts_as_public_and_is_asked_again_later() -> None:
    """For a minute nobody is asked; then the name may mean something."""
    now = [0.0]
    names = Names()

    def look_up(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        found = names(host, port)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return found

    resolver = guarded(Guard(), look_up=look_up, clock=lambda: now[0])
    for _ in range(3):
        assert await resolver.admit(THROUGH) is AddressClass.PUBLIC
    assert len(names.asked) == 1
    now[0], names.addresses = 61.0, ("10.0.0.9",)
    assert await resolver.admit(THROUGH) is AddressClass.PRIVATE
    await resolver.close()


async def test_a_literal_needs_no_name_server() -> None:
    """Behind a proxy an address is judged as it stands."""
    names = Names("8.8.8.8")
    hop = Hop(place_of("http://10.9.9.9/"), proxy=THROUGH.proxy)
    assert await guarded(Guard(), look_up=names).admit(hop) is AddressClass.PRIVATE
    assert names.asked == []
