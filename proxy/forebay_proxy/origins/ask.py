"""What is sent for a shard, who makes it up, and what a redirect makes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

from forebay_proxy.errors import OriginError
from forebay_proxy.origins.addresses import AddressClass
from forebay_proxy.origins.allow import place_of
from forebay_proxy.origins.answer import Answer
from forebay_proxy.shard import Shard

__all__ = ["Ask", "Source", "next_hop"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What to send for a shard.

    ``headers`` are its credential. ``vouched``: the operator named where it goes. ``signed_for_get``: HEAD would be refused. ``fresh``:
    made up just now, not remembered. ``region``: what an S3 signature is good for, "" elsewhere.
    """

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    vouched: bool = False
    signed_for_get: bool = False
    fresh: bool = True
    region: str = ""
    came_from: AddressClass | None = None  # set once a redirect was followed


class Source(Protocol):
    """How a kind of place turns a shard into a request."""

    async def prepare(self, shard: Shard) -> Ask:
        """What to ask; raises the ``ShardError`` family."""
        ...

    async def again(self, shard: Shard, ask: Ask, answer: Answer) -> Ask | None:
        """After an error answer: what to ask instead, once; None if the answer stands."""
        ...

    def arrived(self, shard: Shard, ask: Ask) -> None:
        """Redirects led to ``ask``, which answered well: later segments may start there."""
        ...


def next_hop(shard: Shard, ask: Ask, location: str, kind: AddressClass) -> Ask:
    """The request a redirect leads to: without credentials once the host changes, never from https to http."""
    try:
        url = urljoin(ask.url, quote(location, safe="%/:=&?~#+!$,;'@()*[]")).partition("#")[0]
        here, there = place_of(ask.url), place_of(url)
    except ValueError as error:
        raise OriginError(shard.name, "the origin redirects to something that is not an http(s) URL") from error
    if here.scheme == "https" and there.scheme == "http":
        raise OriginError(shard.name, f"the origin redirects from https to http ({there.host}); that is never followed")
    netloc = urlsplit(url).netloc
    same = here == there
    return replace(
        ask,
        url=url.replace(netloc, netloc.rpartition("@")[2], 1),
        headers=ask.headers if same else (),
        vouched=ask.vouched and same,
        # Once public, always: a private stop on the way must not make the next private one look like a first hop.
        came_from=kind if ask.came_from is None else min(kind, ask.came_from),
    )
