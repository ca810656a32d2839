"""Names to addresses, every answer judged: the HTTP client dials nothing the guard has not seen.

The client skips its resolver for IP literals (the guard judges those in ``Guard.check``) and asks it without saying which hop it is on. The
hop travels in a context variable instead: the client resolves in the task of the request.

Raw answers are kept for ten seconds, so that the look-up made to judge a hop and the one made to dial it see the same addresses; judging is
done anew each time, on what will be dialled.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from aiohttp.abc import AbstractResolver, ResolveResult

from forebay_proxy.origins.addresses import AddressClass, classify
from forebay_proxy.origins.guard import Guard, Refused, Trip

__all__ = ["GuardedResolver", "travelling"]

_KEEP_S = 10.0  # getaddrinfo tells no TTL; ten seconds follow a failover and still spare 64 connections 63 look-ups
_KEEP_NAMES = 256  # hosts of one training run: a handful

_trip: ContextVar[Trip | None] = ContextVar("forebay_trip", default=None)

Answers = list[tuple[socket.AddressFamily, str]]


@contextmanager
def travelling(trip: Trip) -> Iterator[None]:
    """Requests made inside are on this hop."""
    token = _trip.set(trip)
    try:
        yield
    finally:
        _trip.reset(token)


class GuardedResolver(AbstractResolver):
    """getaddrinfo with a judge behind it. Not thread-safe: the event loop's only."""

    def __init__(
        self, guard: Guard, *, look_up: Callable[[str, int], Answers] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._guard = guard
        self._look_up = look_up or _getaddrinfo
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Answers]] = OrderedDict()

    async def admit(self, trip: Trip) -> AddressClass:
        """Judge a hop before anything is sent, also where an open connection would be reused.

        Returns the most public class among the addresses it may end at. Raises ``Refused``, ``OSError``.
        """
        self._guard.check(trip)
        permitted = self._permitted(trip, await self._answers(trip.place.host, trip.place.port))
        return min(classify(address) for _, address in permitted)

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Only addresses the present trip may use; raises ``Refused`` (an OSError) when none is left."""
        trip = _trip.get()
        if trip is None:
            raise Refused(f"a look-up of {host} outside any request")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in self._permitted(trip, await self._answers(host, port))
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        self._kept.clear()

    def _permitted(self, trip: Trip, answers: Answers) -> Answers:
        allowed = set(self._guard.permitted(trip, [address for _, address in answers]))
        return [answer for answer in answers if answer[1] in allowed]

    async def _answers(self, host: str, port: int) -> Answers:
        now = self._clock()
        kept = self._kept.get(host)
        if kept is not None and now - kept[0] < _KEEP_S:
            return kept[1]
        # The loop's default executor: nothing else of ours uses it, so a slow name server delays look-ups only.
        answers = await asyncio.get_running_loop().run_in_executor(None, self._look_up, host, port)
        self._kept[host] = (now, answers)
        self._kept.move_to_end(host)
        if len(self._kept) > _KEEP_NAMES:
            self._kept.popitem(last=False)
        return answers


def _getaddrinfo(host: str, port: int) -> Answers:
    flags = socket.AI_ADDRCONFIG
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        # Without any configured address but loopback (a container without network) AI_ADDRCONFIG hides even literals.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(socket.AddressFamily(family), str(address[0])) for family, _, _, _, address in found]
