"""The ways into one sidecar: HTTP, and the socket where descriptors are passed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from forebay_proxy.app.composition import CacheParts
from forebay_proxy.app.startup import Start
from forebay_proxy.app.status import StatusReport, TelemetryParts
from forebay_proxy.background.operations import Operations
from forebay_proxy.background.plan_intake import PlanIntake
from forebay_proxy.core.errors import ConfigError, InvalidRequest
from forebay_proxy.core.request_loop import LoopGuard
from forebay_proxy.core.uids import anybodys_uid
from forebay_proxy.node.runfile import Claim
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.server.fd_door import FdServer, default_socket
from forebay_proxy.server.http.page_routes import PageSources
from forebay_proxy.server.http.server import HttpServer
from forebay_proxy.server.net.access import Access

__all__ = ["SidecarDoors"]

log = logging.getLogger("forebay")

_ANYBODY = (
    "this user namespace does not map every user, and uid {0}, which this sidecar runs as, stands for all the others: local clients are "
    "refused; run it as another user of the namespace"
)


class SidecarDoors:
    """Both ways in, for the same clients; shut until ``open``."""

    def __init__(
        self, start: Start, parts: CacheParts, telemetry: TelemetryParts, report: StatusReport, guard: Guard,
        loop_guard: LoopGuard, group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        settings, cache, plans = start.settings, parts.cache, parts.plans
        self._access = Access(
            own_uid=os.getuid(),
            allow_uid=frozenset(settings.allow_uid),
            anybodys_uid=anybodys_uid(),
            hosts=frozenset({settings.host}),
            token=settings.token.get_secret_value() if settings.token else None,
        )
        self._guard, self._report = guard, report
        self.http = HttpServer(
            cache=cache, plans=PlanIntake(plans, parts.prefetcher),
            operations=Operations(cache, parts.resolver, parts.segment_reader, start.clock, parts.tar_check),
            status=report.status, page=PageSources(report.history, report.shard_map), announced=report.announced, indexes=parts.indexer,
            meters=telemetry.meters, meter_page=report.meter_page,
            metrics=telemetry.metrics.render,
            access=self._access, events=start.events, pass_headers=settings.pass_header, clock=start.clock,
            loop_guard=loop_guard, instance=start.instance, jobs=plans.jobs, allow=self._allow,
        )  # fmt: skip
        self.fd = FdServer(
            cache=cache.fd_lender, access=self._access, events=start.events, group=group, clock=start.clock,
            pass_headers=settings.pass_header, instance=start.instance, jobs=plans.jobs,
        )  # fmt: skip

    @property
    def in_use(self) -> bool:
        """Whether a client reads, waits, or asks for work; looking on does not count."""
        return self.http.requests.in_use or self.fd.in_use

    @property
    def last_active(self) -> float:
        """When a client last ended something, by the sidecar's clock."""
        return max(self.http.requests.last_active, self.fd.last_active)

    async def open(self, start: Start, claim: Claim, *, can_lend: bool) -> tuple[str, ...]:
        """Let readers in; returns what a person should know of how. ``start.life`` closes both. Raises ``ConfigError``."""
        settings = start.settings
        socket, said = default_socket(claim.socket) if settings.socket is None else (settings.socket or None, ())
        start.life.push_async_callback(self.http.aclose)
        await self.http.start(settings.host, settings.port, socket if socket is None else Path(socket))
        for host, port in self.http.address.bound:
            self._guard.add_own(host, port)
        start.life.push_async_callback(self.fd.aclose)
        self.fd.open_beside(self.http.address.socket, can_lend=can_lend)
        own_uid = self._access.own_uid
        return said if own_uid != self._access.anybodys_uid else (*said, _ANYBODY.format(own_uid))

    def _allow(self, origins: Sequence[str]) -> None:
        """``POST /v1/allow``: from now on too. Raises ``InvalidRequest`` for what cannot be understood, or is closed by strict origins."""
        try:
            self._guard.allow(origins)
        except ConfigError as error:
            raise InvalidRequest(str(error), next_step=error.next_step) from error
        except Refused as error:
            raise InvalidRequest(error.cause, next_step=error.next_step, status=403) from error
        self._report.allowed(origins)
        log.info("origins allowed from now on too: %s", ", ".join(origins))
