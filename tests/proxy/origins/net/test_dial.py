"""dial.py: names to addresses, every answer judged; what is dialled, and which connection carries which request, judged at the last moment.

The tests of the session have real servers at the addresses they name, on loopback of a network of its own: a connection that must not be
is seen there.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.netns import lonely_network
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import OriginRefused
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.http_client import OriginClient
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import place_of
from forebay_proxy.origins.net.dial import Answers, GuardedResolver, travelling
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard, Hop, Refused
from forebay_proxy.origins.request import OriginRequest
from forebay_proxy.wire.urls.shard_url import parse_origin_url


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


# The session

PRIVATE, PUBLIC, METADATA = "10.7.7.7", "8.8.8.8", "169.254.169.254"
NAME = "rebind.example"
SHARD = Shard.of(parse_origin_url(f"http://{NAME}/a.tar"))


class Rebinding:
    """A name server that says something else each time; its last answer stays."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self._minutes = itertools.count()

    def clock(self) -> float:
        """Later each time, so that no answer is kept."""
        return next(self._minutes) * 60.0

    def look_up(self, host: str, port: int) -> Answers:
        address = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]


class Loose(GuardedResolver):
    """A resolver with a hole in it: what it hands to the client was never judged."""

    def _permitted(self, hop: object, answers: Answers) -> Answers:
        return answers


def made(guard: Guard, resolver: GuardedResolver) -> OriginClient:
    limits = {"connect_timeout_s": 2.0, "idle_timeout_s": 2.0}
    return OriginClient(guard=guard, events=Events(), user_agent="t", resolver=resolver, egress=Egress(), **limits)


@asynccontextmanager
async def sender_of(guard: Guard, names: Rebinding, kind: type[GuardedResolver] = GuardedResolver) -> AsyncIterator[OriginClient]:
    sender = made(guard, kind(guard, look_up=names.look_up, clock=names.clock))
    try:
        yield sender
    finally:
        await sender.aclose()


@asynccontextmanager
async def servers(*hosts: str) -> AsyncIterator[list[ScriptedOrigin]]:
    """One a host, all on one port, so that a name can lead to any of them."""
    made = [ScriptedOrigin(host=host) for host in hosts]
    async with made[0] as first:
        first.put("/a.tar", ramp(10))
        for other in made[1:]:
            other.port = first.port
            await other.__aenter__()
            other.put("/a.tar", ramp(10))
        try:
            yield made
        finally:
            for other in made[1:]:
                await other.__aexit__(None, None, None)


async def asked(sender: OriginClient, port: int, **how: object) -> int:
    """One GET to the end, as an ask of ``how``; its status."""
    _, response = await sender.send(SHARD, OriginRequest(f"http://{NAME}:{port}/a.tar", **how), "GET", {})  # type: ignore[arg-type]
    await response.read()
    response.release()
    return response.status


async def test_a_kept_connection_is_not_where_a_redirect_may_end() -> None:
    """The name was private once and is public now: a public host's redirect gets a new connection, not the one kept."""
    with lonely_network(PRIVATE, PUBLIC):
        names = Rebinding(PRIVATE, PRIVATE, PUBLIC)
        async with servers(PRIVATE, PUBLIC) as (private, public), sender_of(Guard(), names) as sender:
            assert await asked(sender, private.port) == 200
            assert await asked(sender, private.port, came_from=AddressClass.PUBLIC) == 200
            assert (len(private.requests), len(public.requests)) == (1, 1)
            await private.until(lambda: private.open_connections == 0)  # and the kept one is gone


async def test_what_the_operator_vouched_for_opens_nothing_for_others() -> None:
    """Under strict origins a connection dialled for a named bucket is not lent to a URL that merely has the same host."""
    with lonely_network(PRIVATE, PUBLIC):
        guard = Guard(allow_origin=["8.8.8.0/24"], strict_origins=True)
        names = Rebinding(PRIVATE, PRIVATE, PUBLIC)
        async with servers(PRIVATE, PUBLIC) as (private, public), sender_of(guard, names) as sender:
            assert await asked(sender, private.port, vouched=True) == 200
            assert await asked(sender, private.port) == 200
            assert (len(private.requests), len(public.requests)) == (1, 1)


async def test_a_name_that_turns_bad_between_two_looks_is_not_dialled() -> None:
    """Harmless when it was judged, metadata when it is dialled: the second answer is judged too."""
    with lonely_network(PUBLIC, METADATA):
        names = Rebinding(PUBLIC, METADATA)
        async with servers(PUBLIC, METADATA) as (public, metadata), sender_of(Guard(), names) as sender:
            with pytest.raises(OriginRefused):
                await asked(sender, public.port)
            assert metadata.requests == public.requests == []


async def test_the_dial_itself_is_judged() -> None:
    """Even if the resolver let everything through, no socket is made for an address the guard refuses."""
    with lonely_network(METADATA, "fd00:ec2::254"):
        for address in (METADATA, "fd00:ec2::254"):
            async with servers(address) as (metadata,):
                async with sender_of(Guard(), Rebinding(address), Loose) as sender:
                    with pytest.raises(OriginRefused, match="metadata"):
                        await asked(sender, metadata.port)
                assert metadata.requests == []


async def test_with_nothing_but_a_hosts_file() -> None:
    """The real resolver, the real file: a name that leads to metadata, one that leads to us, and one that is fine."""
    hosts = {NAME: PUBLIC, "bad.example": METADATA, "me.example": "127.0.0.1"}
    with lonely_network(PUBLIC, METADATA, hosts=hosts):
        async with servers(PUBLIC, METADATA, "127.0.0.1") as (public, metadata, ourselves):
            port = public.port
            guard = Guard(allow_origin=[f"http://me.example:{port}"], own_addresses=[("127.0.0.1", port)])
            sender = made(guard, GuardedResolver(guard))
            assert await asked(sender, port) == 200
            for name in ("bad.example", "me.example", "0.0.0.0", f"[::ffff:{METADATA}]"):
                with pytest.raises(OriginRefused):
                    await sender.send(SHARD, OriginRequest(f"http://{name}:{port}/a.tar"), "GET", {})
            assert metadata.requests == ourselves.requests == []
            await sender.aclose()
