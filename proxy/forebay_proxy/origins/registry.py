"""Where shards live: one ``Origin`` per kind of place, found by scheme.

A new kind is a class that reads as ``base.Origin`` says, created and found in ``Origins`` here, and a scheme in ``wire/urls/shard_url.py``
(``SCHEMES`` and the two tables beside it). These ask for schemes by name too, and by default know nothing of a new one (a test finds them):

- ``core/shard.py``: which request headers travel to it, and whether a name of it is immutable
- ``origins/net/allow_list.py``: how ``--allow-origin`` names it; ``origins/response.py``: the next step in its errors (``next_step_of``)
- ``telemetry/prometheus/metric_labels.py``: its label; ``cli/shards/try_shards.py``: how it is read directly;
  ``cli/doctor/origin_probe.py``: whose credentials it is shown
- ``wire/commands/pipe_tools.py`` and ``wire/commands/gopen_rules.py``: the commands that fetch from it, parsed, and as rules of ``env``;
  ``wire/commands/sources.py``: what of it is left alone
- in the loader ``stream/webdataset_openers.py`` and ``files/target.py``: which URLs are taken over;
  ``stream/sources.py``: which refusals leave a shard to webdataset

Clouds whose shards are plain ``https://`` URLs need no kind of their own: ``cloud/az.py`` is only asked by ``http.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.origins.base import Origin, OriginBody, TellsDigests
from forebay_proxy.origins.cloud.gs import GsOrigin, emulator_endpoint
from forebay_proxy.origins.cloud.hf import HfOrigin
from forebay_proxy.origins.cloud.s3 import S3Origin
from forebay_proxy.origins.file import FileOrigin
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["Egress", "Guard", "Origin", "OriginBody", "Origins"]


class Origins:
    """The origins of one sidecar, by scheme of a shard's URL. They share a guard and one HTTP session; ``aclose`` ends them all."""

    def __init__(
        self, guard: Guard, http: HttpOrigin, s3: S3Origin, gs: GsOrigin, hf: HfOrigin, file: FileOrigin,
        shared: tuple[S3Origin, HttpOrigin] | None = None,
    ) -> None:  # fmt: skip
        """``shared``: what reads the shared tier, and moves its bytes."""
        self.guard = guard
        self.shared: Origin | None = None if shared is None else shared[0]
        self.by_scheme: dict[str, Origin] = {"http": http, "https": http, "s3": s3, "gs": gs, "hf": hf, "file": file}
        # Of those that name digests only when they are asked for them.
        self.asked_schemes = frozenset(scheme for scheme, origin in self.by_scheme.items() if isinstance(origin, TellsDigests))
        self._to_close: tuple[Origin, ...] = (*(shared or ()), file, hf, gs, s3, http)  # http moves the bytes of those before it

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str], events: Events, egress: Egress) -> Origins:
        """As the operator's settings and environment have them. Opens nothing yet: neither a session nor the SDKs of AWS and Google.

        Of ``environ``: endpoints, profiles of AWS, and the hub's token; other variables of the SDKs are read by the SDKs.
        """
        emulator = emulator_endpoint(environ.get("STORAGE_EMULATOR_HOST", ""))
        gs_endpoint = settings.gs_endpoint or emulator
        endpoints = [environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HF_ENDPOINT")]
        named = [url for url in (*endpoints, gs_endpoint) if url]  # by the operator, so they may be private ones
        profiles = {*settings.allow_profile, environ.get("AWS_PROFILE"), environ.get("AWS_DEFAULT_PROFILE")}
        guard = Guard(settings.allow_origin, settings.strict_origins, operator_endpoints=named)

        def over_http(guard: Guard) -> HttpOrigin:
            return HttpOrigin(
                guard=guard, events=events, connect_timeout_s=settings.connect_timeout_s, idle_timeout_s=settings.idle_timeout_s,
                user_agent=f"forebay/{VERSION}", egress=egress,
            )  # fmt: skip

        http, place = over_http(guard), settings.shared
        shared: tuple[S3Origin, HttpOrigin] | None = None
        if place is not None:  # with a guard of its own: what the sidecar may ask for itself, its clients may not
            endpoint = place.options.get("endpoint")
            near = Guard(place.allowed(), settings.strict_origins, operator_endpoints=[*named, *([endpoint] if endpoint else [])])
            near_http = over_http(near)
            own = (*profiles, place.options.get("profile"))
            shared = S3Origin(near_http, guard=near, profiles=frozenset(name for name in own if name)), near_http
        return cls(
            guard,
            http,
            S3Origin(http, guard=guard, profiles=frozenset(name for name in profiles if name)),
            GsOrigin(
                http, guard=guard, endpoint=gs_endpoint, anonymous=settings.gs_anonymous or bool(emulator and not settings.gs_endpoint)
            ),
            HfOrigin(http, guard=guard, events=events, environ=environ),
            FileOrigin(settings.file_root, events=events, idle_timeout_s=settings.idle_timeout_s),
            shared,
        )

    async def aclose(self) -> None:
        for origin in self._to_close:
            await origin.aclose()
