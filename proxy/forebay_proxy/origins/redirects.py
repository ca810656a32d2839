"""Where a shard's own URL led last time: signed links, remembered until shortly before they end. Not thread-safe: the event loop's only."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlsplit

from forebay_proxy.core.shard import Credential, Shard
from forebay_proxy.origins.request import OriginRequest

__all__ = ["LINK_TTL_S", "RedirectCache", "seconds_left"]

# A link that does not say how long it is good: signed ones live from five minutes up, and an ended one costs a single extra request.
LINK_TTL_S = 240.0
_EARLY_S = 30.0  # a request may wait this long between being made up and being sent
_MOST = 4096  # shards being read at one time on one machine, with room; about 1 kB each


class RedirectCache:
    """Requests by shard and credential: where one reader was led is not open to another."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        """``longest_s``: how long at most one is remembered, whatever it says itself. ``wall`` is the clock that links are dated by."""
        self._longest_s = longest_s
        self._clock = clock
        self._wall = wall
        self._kept: OrderedDict[tuple[str, Credential], tuple[float, OriginRequest]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RedirectCache {len(self._kept)}>"

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
