"""What is sent for a shard, who makes it up, and what a redirect makes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

from forebay_proxy.errors import OriginError
from forebay_proxy.origins.addresses import AddressClass
from forebay_proxy.origins.allow import Place, place_of
from forebay_proxy.origins.answer import Answer
from forebay_proxy.shard import Pin, Shard, Version

__all__ = ["Ask", "Source", "next_hop"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What to send for a shard.

    ``headers`` are its credential. ``vouched``: the operator named where it goes. ``signed_for_get``: HEAD would be refused. ``fresh``:
    made up just now, not remembered. ``region``: what an S3 signature is good for, "" elsewhere. ``pin``: what this very host compares,
    where that is not the shard's own pin (a CDN has ETags of its own). ``told``: what the host that sent us there said of the
    version, ``linked`` its X-Linked-Etag. ``sdk``: AWS_CA_BUNDLE says which authorities count.
    """

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    vouched: bool = False
    signed_for_get: bool = False
    fresh: bool = True
    region: str = ""
    pin: Pin | None = None
    told: Version | None = None
    linked: str = ""
    sdk: bool = False
    came_from: AddressClass | None = None  # set once a redirect was followed

    def held_to(self, pin: Pin) -> Pin:
        """What is sent to hold the host to ``pin``."""
        return pin if self.pin is None else self.pin


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

    def version(self, shard: Shard, ask: Ask, answer: Answer, length: int | None) -> Version:
        """Which version a good answer to ``ask`` is of; ``length`` is the whole shard's as the answer says it, None if it does not."""
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
    same = here == there
    return replace(
        ask,
        url=_at(there, url),
        headers=ask.headers if same else (),
        vouched=ask.vouched and same,
        pin=ask.pin if same or ask.pin is None else Pin(),
        # Once public, always: a private stop on the way must not make the next private one look like a first hop.
        came_from=kind if ask.came_from is None else min(kind, ask.came_from),
    )


def _at(place: Place, url: str) -> str:
    """``url`` with its host as it was judged, and without userinfo: a redirect lends nobody a password."""
    parts = urlsplit(url)
    return place.text() + url[len(f"{parts.scheme}://{parts.netloc}") :]
