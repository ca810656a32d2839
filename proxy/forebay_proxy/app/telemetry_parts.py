"""What listens to the facts of one sidecar: counts them, keeps the last ones, writes them down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from forebay_proxy.app.startup import Start
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Events
from forebay_proxy.store.store import Store
from forebay_proxy.telemetry.access_log import AccessLog
from forebay_proxy.telemetry.counters import Counters, PlanAdherence
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.troubles import RecentErrors, Troubles
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["TelemetryParts", "begin_access_log"]


@dataclass(frozen=True, slots=True)
class TelemetryParts:
    """What every sidecar counts and keeps; each part hears the facts that it names, but ``troubles``, which asks the counters, and
    ``meters``, which is told by training processes.
    """

    counters: Counters
    adherence: PlanAdherence
    metrics: Metrics
    board: OriginBoard
    recent_errors: RecentErrors
    troubles: Troubles
    meters: MeterBoard

    @classmethod
    def build(cls, events: Events, clock: Callable[[], float], segment_bytes: int) -> TelemetryParts:
        """They listen from now on."""
        counters = Counters()
        troubles = Troubles(clock, segment_bytes, lambda: counters.bypassed)
        parts = cls(
            counters, PlanAdherence(), Metrics(version=VERSION), OriginBoard(clock), RecentErrors(time.time), troubles,
            MeterBoard(events, clock),
        )  # fmt: skip
        for part in (parts.counters, parts.adherence, parts.metrics, parts.board, parts.recent_errors):
            events.listen(part.listen, part.kinds)
        return parts


async def begin_access_log(start: Start, store: Store) -> None:
    """Write one where the settings name a file. Raises ``ConfigError``: it cannot be there, or cannot be written."""
    path = start.settings.access_log
    if path is None:
        return
    if path.resolve().is_relative_to(store.path.resolve()):
        step = "name a file elsewhere: what lies in the cache directory counts against --cache-size, and a log grows without a bound"
        raise ConfigError(f"--access-log {path} is in the cache directory", next_step=step)
    access_log = AccessLog(path, store.directory.hmac_key, start.events, clock=start.clock)
    await access_log.start()
    start.life.push_async_callback(access_log.aclose)
