"""session.py: what is dialled, and which connection carries which request, judged at the last moment.

Each test has real servers at the addresses it names, on loopback of a network of its own: a connection that must not be is seen there.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.netns import lonely_network
from support.ramp import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import OriginRefused
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.net.resolver import Answers, GuardedResolver
from forebay_proxy.origins.request import OriginRequest
from forebay_proxy.origins.send import Sender
from forebay_proxy.wire.urls.shard_url import parse_origin_url

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


def made(guard: Guard, resolver: GuardedResolver) -> Sender:
    limits = {"connect_timeout_s": 2.0, "idle_timeout_s": 2.0}
    return Sender(guard=guard, events=Events(), user_agent="t", resolver=resolver, egress=Egress(), **limits)


@asynccontextmanager
async def sender_of(guard: Guard, names: Rebinding, kind: type[GuardedResolver] = GuardedResolver) -> AsyncIterator[Sender]:
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


async def asked(sender: Sender, port: int, **how: object) -> int:
    """One GET to the end, as an ask of ``how``; its status."""
    _, response = await sender.send(SHARD, OriginRequest(f"http://{NAME}:{port}/a.tar", **how), "GET", {})  # type: ignore[arg-type]
    await response.read()
    response.release()
    return response.status


async def test_a_connection_is_reused_by_who_might_have_dialled_it() -> None:
    """The ordinary case: one connection, two requests."""
    with lonely_network(PRIVATE):
        async with servers(PRIVATE) as (private,), sender_of(Guard(), Rebinding(PRIVATE)) as sender:
            assert [await asked(sender, private.port) for _ in range(2)] == [200, 200]
            assert {request.connection for request in private.requests} == {1}


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
            resolver = GuardedResolver(guard)
            sender = Sender(
                guard=guard,
                events=Events(),
                connect_timeout_s=2.0,
                idle_timeout_s=2.0,
                user_agent="t",
                resolver=resolver,
                egress=Egress(),
            )
            assert await asked(sender, port) == 200
            for name in ("bad.example", "me.example", "0.0.0.0", f"[::ffff:{METADATA}]"):
                with pytest.raises(OriginRefused):
                    await sender.send(SHARD, OriginRequest(f"http://{name}:{port}/a.tar"), "GET", {})
            assert metadata.requests == ourselves.requests == []
            await sender.aclose()
