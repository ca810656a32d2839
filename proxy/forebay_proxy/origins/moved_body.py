"""The body of an answer that a mover holds: landed in a file beside the event loop, or relayed through it."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import aiohttp

from forebay_proxy.core.errors import DiskFailed, OriginTimeout, OriginUnavailable, TruncatedShard
from forebay_proxy.movers.frames import Landed, Outcome
from forebay_proxy.movers.link import OriginLink
from forebay_proxy.origins.net.tunnels import TunnelConnector

__all__ = ["MovedBody", "relayed"]


class MovedBody:
    """A ``HeldBody``. ``size``: bytes that it has, as its headers say."""

    def __init__(
        self, shard: str, response: aiohttp.ClientResponse, link: OriginLink, connector: TunnelConnector, size: int, idle_timeout_s: float
    ) -> None:
        self.size = size
        self._shard = shard
        self._response = response
        self._link = link
        self._connector = connector
        self._idle_timeout_s = idle_timeout_s

    @property
    def is_trusted(self) -> bool:
        """Whether its mover's sums were compared with a file once."""
        return self._link.mover.trusted

    def agreed(self, *, right: bool) -> None:
        """One was; a mover that was wrong is given up."""
        if right:
            self._link.mover.trusted = True
        else:
            self._link.mover.give_up("sum")

    async def land(self, file: int, offset: int, moved: Callable[[int], None]) -> int | None:
        """Have all of it written to ``file`` at ``offset``; ``moved`` hears how many bytes are there.

        Returns their xxh3_64; None where it is being relayed. When this ends, well or not, nothing is written any more.

        Raises ``TruncatedShard``, ``OriginUnavailable``, ``OriginTimeout``, ``DiskFailed``, ``MoverLost``.
        """
        keep = self._keeps()
        try:
            landed = await self._link.land(file, offset, self.size, moved, keep=keep, idle_s=self._idle_timeout_s)
        except TimeoutError as error:
            raise OriginTimeout(self._shard, f"the origin was silent for {self._idle_timeout_s:g} s") from error
        if landed.outcome == Outcome.NOT_HELD:
            return None
        if landed.outcome != Outcome.WHOLE:
            raise self._error(landed)
        if landed.kept:
            self._connector.keep(self._link)
        return landed.checksum

    def _keeps(self) -> bool:
        said = self._response.headers.get("Connection", "").lower()
        return self._response.version == aiohttp.HttpVersion11 and "close" not in said

    def _error(self, landed: Landed) -> Exception:
        if landed.outcome == Outcome.DISK:
            return DiskFailed("write", errno.errorcode.get(landed.number, "EIO"), os.strerror(landed.number or errno.EIO))
        if landed.outcome == Outcome.BROKEN:
            return OriginUnavailable(self._shard, "the origin reset the connection within the body")
        return TruncatedShard(self._shard, f"the origin sent {landed.moved} of {self.size} bytes")

    def relay(self) -> None:
        """Let it come through the tunnel."""
        self._link.relay()


async def relayed(body: MovedBody, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """``chunks``, once somebody asks for the first of them."""
    body.relay()
    async for chunk in chunks:
        yield chunk
