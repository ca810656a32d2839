"""An s3 origin under test, wired as the sidecar wires it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import support.s3_servers  # noqa: F401 -- clients that read their descriptions once

from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.cloud.s3 import S3Origin
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["S3Client", "s3_client", "s3_shard"]


def s3_shard(url: str) -> Shard:
    return Shard.of(parse_origin_url(url))


class S3Client:
    """``now`` is the wall clock by which signatures are dated, as the tests want it."""

    def __init__(self, origin: S3Origin, events: list[Event]) -> None:
        self.origin = origin
        self.events = events
        self.now = 1_000_000.0

    async def get(self, shard: Shard, range: ByteRange | None = None, pin: Pin = Pin()) -> tuple[OriginBody, bytes]:  # noqa: B008
        async with self.origin.read(shard, range, pin) as body:
            return body, b"".join([chunk async for chunk in body.chunks])


@asynccontextmanager
async def s3_client(allow_origin: Iterable[str] = (), *, strict_origins: bool = False, **how: Any) -> AsyncIterator[S3Client]:
    seen: list[Event] = []
    events = Events()
    events.listen(seen.append)
    guard = Guard(allow_origin=allow_origin, strict_origins=strict_origins)
    egress = Egress.of(os.environ, "")
    http = HttpOrigin(guard=guard, events=events, connect_timeout_s=2.0, idle_timeout_s=10.0, egress=egress)
    client = S3Client(None, seen)  # type: ignore[arg-type]
    client.origin = S3Origin(http, guard=guard, clock=lambda: client.now, **how)
    try:
        yield client
    finally:
        await client.origin.aclose()
        await http.aclose()
