"""The origins of one sidecar."""

from __future__ import annotations

from forebay_proxy.core.events import Events
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.registry import Origins
from forebay_proxy.wire.urls.shard_url import SCHEMES


async def test_every_scheme_that_a_shard_may_have_is_served() -> None:
    """Nobody looks again whether there is an origin for it."""
    origins = Origins.create(guard=Guard(), events=Events())
    assert set(origins.by_scheme) == set(SCHEMES)
    await origins.aclose()
