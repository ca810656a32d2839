"""The way out of one sidecar: where it may dial, by which upstream proxies, and what asks origins there."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.app.startup import Start
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.operators import operator_endpoints, operator_profiles
from forebay_proxy.origins.registry import Origins
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["OriginParts"]


@dataclass(frozen=True, slots=True)
class OriginParts:
    """``guard`` says where origins may be, ``origins`` asks them, by the proxies of ``egress``."""

    egress: Egress
    guard: Guard
    origins: Origins

    @classmethod
    def build(cls, start: Start, egress: Egress) -> OriginParts:
        """``start.life`` closes the connections."""
        settings, environ = start.settings, start.environ
        guard = Guard(settings.allow_origin, settings.strict_origins, operator_endpoints=operator_endpoints(settings, environ))
        origins = Origins.create(
            guard=guard, events=start.events, file_roots=settings.file_root, profiles=operator_profiles(settings, environ),
            connect_timeout_s=settings.connect_timeout_s, idle_timeout_s=settings.idle_timeout_s, user_agent=f"forebay/{VERSION}",
            egress=egress, gs_endpoint=settings.gs_endpoint or "", gs_anonymous=settings.gs_anonymous, environ=environ,
        )  # fmt: skip
        start.life.push_async_callback(origins.aclose)
        return cls(egress, guard, origins)
