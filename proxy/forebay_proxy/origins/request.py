"""The request for a shard: its URL and headers, the operator that builds it, what of it follows a redirect, and where that led last time.

Pure but for ``RedirectCache``, which remembers signed links until shortly before they end. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

from forebay_proxy.core.errors import OriginError
from forebay_proxy.core.shard import Credential, Pin, Shard, Version
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of
from forebay_proxy.origins.response import OriginResponse, version_of

__all__ = ["LINK_TTL_S", "OriginRequest", "RedirectCache", "RequestTarget", "next_hop", "seconds_left"]

# A link that does not say how long it is good: signed ones live from five minutes up, and an ended one costs a single extra request.
LINK_TTL_S = 240.0
_EARLY_S = 30.0  # a request may wait this long between being made up and being sent
_MOST = 4096  # shards being read at one time on one machine, with room; about 1 kB each


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
        """Redirects led to ``ask``, which answered well: later segments may start there. Else they are followed each time."""
        return

    def version(self, shard: Shard, ask: OriginRequest, answer: OriginResponse, length: int | None) -> Version:
        """Which version a good answer to ``ask`` is of; ``length`` is the whole shard's as the answer says it, None if it does not."""
        return version_of(answer.headers, length)


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


class RedirectCache:
    """Requests by shard and credential: where one reader was led is not open to another."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        """``longest_s``: how long at most one is remembered, whatever it says itself. ``wall`` is the clock that links are dated by."""
        self._longest_s = longest_s
        self._clock = clock
        self._wall = wall
        self._kept: OrderedDict[tuple[str, Credential], tuple[float, OriginRequest]] = OrderedDict()

    def find(self, shard: Shard) -> OriginRequest | None:
        """The link of ``shard``, None if there is none that is good now."""
        until, ask = self._kept.get((shard.name, shard.credential), (0.0, None))
        return ask if self._clock() < until else None

    def keep(self, shard: Shard, ask: OriginRequest) -> None:
        self._kept[shard.name, shard.credential] = (self._clock() + self._good_for(ask.url), ask)
        self._kept.move_to_end((shard.name, shard.credential))
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def forget(self, shard: Shard) -> None:
        self._kept.pop((shard.name, shard.credential), None)

    def _good_for(self, url: str) -> float:
        left = seconds_left(url, self._wall())
        if left is None:
            return min(LINK_TTL_S, self._longest_s)
        return min(left - min(_EARLY_S, left / 4), self._longest_s)


def seconds_left(url: str, now: float) -> float | None:
    """How long a signed URL says it is still good at ``now`` (seconds since the epoch); None where it does not say, or not readably."""
    try:
        said = {name.lower(): value for name, value in parse_qsl(urlsplit(url).query)}
        end = _end_of(said)
        return None if end is None else end - now
    except (ValueError, OverflowError):
        return None


def _end_of(said: dict[str, str]) -> float | None:
    if "expires" in said:  # CloudFront, S3 and GCS version 2
        return float(int(said["expires"]))
    for prefix in ("x-amz-", "x-goog-"):
        if prefix + "date" in said and prefix + "expires" in said:
            begun = datetime.strptime(said[prefix + "date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            return (begun + timedelta(seconds=int(said[prefix + "expires"]))).timestamp()
    if "sig" in said and "se" in said:  # Azure
        end = datetime.fromisoformat(said["se"])
        return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    return None
