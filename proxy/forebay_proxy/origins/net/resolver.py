"""Names to addresses, every answer judged: the HTTP client dials nothing the guard has not seen.

The client skips its resolver for IP literals (the guard judges those in ``Guard.check``, and once more at the dial) and asks it without
saying which hop it is on. The hop travels in a context variable instead: the client resolves and dials in the task of the request.

Raw answers are kept for ten seconds, so that the look-up made to judge a hop and the one made to dial it see the same addresses; judging is
done anew each time, on what will be dialled.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

from forebay_proxy.origins.net.address_class import AddressClass, classify, literal
from forebay_proxy.origins.net.guard import Guard, Hop, Refused

__all__ = ["GuardedResolver", "travelling", "trip_now"]

_KEEP_S = 10.0  # getaddrinfo tells no TTL; ten seconds follow a failover and still spare 64 connections 63 look-ups
_KEEP_NAMES = 256  # hosts of one training run: a handful
_THREADS = 8  # one a name: a name server that does not answer holds its thread for up to 30 s, and other names shall not wait for it
# Behind a proxy the answer is not needed: a network without a way out often has a name server that never says no, only nothing.
_LOOK_ASIDE_S = 2.0
_UNKNOWN_S = 60.0

_hop: ContextVar[Hop | None] = ContextVar("forebay_trip", default=None)

Answers = list[tuple[socket.AddressFamily, str]]


@contextmanager
def travelling(hop: Hop) -> Iterator[None]:
    """Requests made inside are on this hop."""
    token = _hop.set(hop)
    try:
        yield
    finally:
        _hop.reset(token)


def trip_now() -> Hop:
    """The hop the present task is on; raises ``Refused`` outside any: there is nothing to judge by."""
    hop = _hop.get()
    if hop is None:
        raise Refused("a connection outside any request")
    return hop


class GuardedResolver(AbstractResolver):
    """getaddrinfo with a judge behind it. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        guard: Guard,
        *,
        look_up: Callable[[str, int], Answers] | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_aside_s: float = _LOOK_ASIDE_S,
    ) -> None:
        self._guard = guard
        self._look_up = look_up or _getaddrinfo
        self._clock = clock
        self._look_aside_s = look_aside_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="forebay-names")
        self._kept: OrderedDict[str, tuple[float, Answers]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Answers]] = {}
        self._unknown: OrderedDict[str, float] = OrderedDict()  # until when; only for names a proxy looks up

    async def admit(self, hop: Hop) -> AddressClass:
        """Judge a hop before anything is sent, also where an open connection would be reused.

        Returns the most public class among the addresses it may end at. Raises ``Refused``, ``OSError``.
        """
        self._guard.check(hop)
        host, port = hop.place.host, hop.place.port
        if hop.proxy is None:
            permitted = self._permitted(hop, await self._answers(host, port))
            return min(classify(address) for _, address in permitted)
        known = [host] if literal(host) is not None else [address for _, address in await self._look_aside(host, port)]
        for address in known:
            self._guard.check_address(hop, address)
        if not known:
            self._guard.check_unknown(hop)
        return min(map(classify, known), default=AddressClass.PUBLIC)

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Only addresses the present trip may dial; raises ``Refused`` (an OSError) when none is left."""
        hop = trip_now()
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in self._permitted(hop, await self._answers(host, port))
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        self._kept.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _permitted(self, hop: Hop, answers: Answers) -> Answers:
        allowed = set(self._guard.permitted(hop, [address for _, address in answers]))
        return [answer for answer in answers if answer[1] in allowed]

    async def _look_aside(self, host: str, port: int) -> Answers:
        """The addresses of a name, [] if it has none or the look-up takes too long: who will be asked about it is the proxy."""
        if self._clock() < self._unknown.get(host, 0.0):
            return []
        try:
            async with asyncio.timeout(self._look_aside_s):
                return await self._answers(host, port)
        except (TimeoutError, OSError):
            _keep(self._unknown, host, self._clock() + _UNKNOWN_S)
            return []

    async def _answers(self, host: str, port: int) -> Answers:
        kept = self._kept.get(host)
        if kept is not None and self._clock() - kept[0] < _KEEP_S:
            return kept[1]
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.get_running_loop().run_in_executor(self._pool, self._look_up, host, port)
            asked.add_done_callback(lambda answered: self._came(host, answered))
        return await asyncio.shield(asked)  # others may wait for the same name

    def _came(self, host: str, answered: asyncio.Future[Answers]) -> None:
        self._asked.pop(host, None)
        if not answered.cancelled() and answered.exception() is None:
            _keep(self._kept, host, (self._clock(), answered.result()))


T = TypeVar("T")


def _keep(memory: OrderedDict[str, T], host: str, value: T) -> None:
    memory[host] = value
    memory.move_to_end(host)
    if len(memory) > _KEEP_NAMES:
        memory.popitem(last=False)


def _getaddrinfo(host: str, port: int) -> Answers:
    flags = socket.AI_ADDRCONFIG
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        # Without any configured address but loopback (a container without network) AI_ADDRCONFIG hides even literals.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(socket.AddressFamily(family), str(address[0])) for family, _, _, _, address in found]
