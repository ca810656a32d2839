"""The origins of one sidecar."""

from __future__ import annotations

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.registry import Origins
from forebay_proxy.wire.urls.shard_url import SCHEMES


async def test_every_scheme_that_a_shard_may_have_is_served() -> None:
    """Nobody looks again whether there is an origin for it."""
    origins = Origins.of(Settings(), {}, Events(), Egress())
    assert set(origins.by_scheme) == set(SCHEMES)
    await origins.aclose()
