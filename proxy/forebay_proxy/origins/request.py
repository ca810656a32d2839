"""The request for a shard: its URL and headers, the operator that builds it, and what of it follows a redirect. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

from forebay_proxy.core.errors import OriginError
from forebay_proxy.core.shard import Pin, Shard, Version
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of
from forebay_proxy.origins.response import OriginResponse

__all__ = ["OriginRequest", "RequestTarget", "next_hop"]


@dataclass(frozen=True, slots=True)
class OriginRequest:
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
    vary: tuple[str, ...] = ()  # request headers, in lower case, that a redirect on the way was chosen by

    def held_to(self, pin: Pin) -> Pin:
        """What is sent to hold the host to ``pin``."""
        return pin if self.pin is None else self.pin


class RequestTarget(Protocol):
    """How a kind of place turns a shard into a request."""

    async def prepare(self, shard: Shard) -> OriginRequest:
        """What to ask; raises the ``ShardError`` family."""
        ...

    async def again(self, shard: Shard, ask: OriginRequest, answer: OriginResponse) -> OriginRequest | None:
        """After an error answer: what to ask instead, once; None if the answer stands."""
        ...

    def arrived(self, shard: Shard, ask: OriginRequest) -> None:
        """Redirects led to ``ask``, which answered well: later segments may start there."""
        ...

    def version(self, shard: Shard, ask: OriginRequest, answer: OriginResponse, length: int | None) -> Version:
        """Which version a good answer to ``ask`` is of; ``length`` is the whole shard's as the answer says it, None if it does not."""
        ...


def next_hop(shard: Shard, ask: OriginRequest, location: str, kind: AddressClass, vary: tuple[str, ...] = ()) -> OriginRequest:
    """The request a redirect that was chosen by ``vary`` leads to: without credentials once the host changes, never from https to http."""
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
        vary=(*ask.vary, *vary),
    )


def _at(place: AllowedPlace, url: str) -> str:
    """``url`` with its host as it was judged, and without userinfo: a redirect lends nobody a password."""
    parts = urlsplit(url)
    return place.text() + url[len(f"{parts.scheme}://{parts.netloc}") :]
