"""Where shards live: one ``Origin`` per kind of place, found by scheme.

A new kind is a class that reads as ``base.Origin`` says, created and found in ``Origins`` here, and a scheme in ``wire/urls/shard_url.py``
(``SCHEMES`` and the two tables beside it). These ask for schemes by name too, and by default know nothing of a new one (a test finds them):

- ``core/shard.py``: which request headers travel to it, and whether a name of it is immutable
- ``origins/net/allow_list.py``: how ``--allow-origin`` names it; ``origins/cloud/hints.py``: the next step in its errors
- ``telemetry/prometheus/metric_labels.py``: its label; ``cli/shards/try_shards.py``: how it is read directly
- ``wire/commands/pipe_tools.py`` and ``wire/commands/gopen_rules.py``: the commands that fetch from it, parsed, and as rules of way 1;
  ``wire/commands/sources.py``: what of it is left alone
- in the loader ``stream/webdataset_openers.py``, ``files/target.py``, ``takeover/path/forebay_takeover_hook.py``:
  which URLs are taken over; ``stream/sources.py``: which refusals leave a shard to webdataset

Clouds whose shards are plain ``https://`` URLs need no kind of their own: ``cloud/az.py`` is only asked by ``http.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from forebay_proxy.core.events import Events
from forebay_proxy.origins.base import Origin, OriginBody, TellsDigests
from forebay_proxy.origins.cloud.gs import GsOrigin, emulator_endpoint
from forebay_proxy.origins.cloud.hf import HfOrigin
from forebay_proxy.origins.cloud.s3 import S3Origin
from forebay_proxy.origins.file import FileOrigin
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard

__all__ = ["Egress", "Guard", "Origin", "OriginBody", "Origins"]


class Origins:
    """The origins of one sidecar, by scheme of a shard's URL. They share a guard and one HTTP session; ``aclose`` ends them all."""

    def __init__(self, http: HttpOrigin, s3: S3Origin, gs: GsOrigin, hf: HfOrigin, file: FileOrigin) -> None:
        self.by_scheme: dict[str, Origin] = {"http": http, "https": http, "s3": s3, "gs": gs, "hf": hf, "file": file}
        # Of those that name digests only when they are asked for them.
        self.asked_schemes = frozenset(scheme for scheme, origin in self.by_scheme.items() if isinstance(origin, TellsDigests))
        self._to_close: tuple[Origin, ...] = (file, hf, gs, s3, http)  # http moves the bytes of those before it

    @classmethod
    def create(
        cls,
        *,
        guard: Guard,
        events: Events,
        file_roots: Iterable[Path] = (),
        profiles: frozenset[str] = frozenset(),
        gs_endpoint: str = "",
        gs_anonymous: bool = False,
        environ: Mapping[str, str] = os.environ,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 15.0,
        user_agent: str = "forebay",
        egress: Egress | None = None,
    ) -> Origins:
        """Build all of them. Opens nothing yet: neither a session nor the SDKs of AWS and Google.

        ``environ``: STORAGE_EMULATOR_HOST, HF_ENDPOINT and the hub's token; variables of the SDKs are read by the SDKs.
        """
        http = HttpOrigin(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent,
            egress=egress,
        )  # fmt: skip
        s3 = S3Origin(http, guard=guard, profiles=profiles)
        emulator = "" if gs_endpoint else emulator_endpoint(environ.get("STORAGE_EMULATOR_HOST", ""))
        gs = GsOrigin(http, guard=guard, endpoint=gs_endpoint or emulator, anonymous=gs_anonymous or bool(emulator))
        hf = HfOrigin(http, guard=guard, events=events, environ=environ)
        return cls(http, s3, gs, hf, FileOrigin(file_roots, events=events, idle_timeout_s=idle_timeout_s))

    async def aclose(self) -> None:
        for origin in self._to_close:
            await origin.aclose()
