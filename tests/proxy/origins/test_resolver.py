"""resolver.py: names to addresses, every answer judged."""

from __future__ import annotations

import socket

import pytest

from forebay_proxy.origins.addresses import AddressClass
from forebay_proxy.origins.allow import place_of
from forebay_proxy.origins.guard import Guard, Refused, Trip
from forebay_proxy.origins.resolver import GuardedResolver, travelling


class Names:
    """A name server of two answers."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
        self.asked.append(host)
        return [(socket.AF_INET, address) for address in self.addresses]


TRIP = Trip(place_of("http://data.example/"))


async def test_bad_answers_are_left_out() -> None:
    """The HTTP client never sees an address that may not be dialled."""
    resolver = GuardedResolver(Guard(), look_up=Names("127.0.0.1", "8.8.8.8", "169.254.169.254"))
    with travelling(TRIP):
        assert [found["host"] for found in await resolver.resolve("data.example", 80)] == ["8.8.8.8"]


async def test_no_good_answer_is_a_refusal() -> None:
    """A name that leads only to loopback is refused with the flag that would allow it."""
    resolver = GuardedResolver(Guard(), look_up=Names("127.0.0.1"))
    with pytest.raises(Refused) as refused:
        await resolver.admit(TRIP)
    assert refused.value.next_step == "--allow-origin http://data.example allows it"


async def test_admission_tells_the_most_public_class() -> None:
    """One public answer makes a host public, so its redirects may not lead inward."""
    resolver = GuardedResolver(Guard(), look_up=Names("10.0.0.1", "8.8.8.8"))
    assert await resolver.admit(TRIP) is AddressClass.PUBLIC


async def test_answers_are_kept_for_a_moment_and_judged_each_time() -> None:
    """Admission and dialling see the same addresses; another hop judges them anew."""
    now = [0.0]
    names = Names("10.0.0.1")
    resolver = GuardedResolver(Guard(), look_up=names, clock=lambda: now[0])
    await resolver.admit(TRIP)
    with pytest.raises(Refused):
        await resolver.admit(Trip(TRIP.place, came_from=AddressClass.PUBLIC))
    assert len(names.asked) == 1
    now[0] = 11.0
    await resolver.admit(TRIP)
    assert len(names.asked) == 2


async def test_nothing_is_looked_up_for_a_name_refused_beforehand() -> None:
    """Strict origins leak no name to a name server."""
    names = Names("8.8.8.8")
    with pytest.raises(Refused):
        await GuardedResolver(Guard(strict_origins=True), look_up=names).admit(TRIP)
    assert names.asked == []


async def test_a_look_up_outside_a_request_is_refused() -> None:
    """Without a hop there is nothing to judge by."""
    with pytest.raises(Refused):
        await GuardedResolver(Guard(), look_up=Names("8.8.8.8")).resolve("x", 80)
