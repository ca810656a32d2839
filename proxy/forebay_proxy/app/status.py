"""How things stand: the levels metrics pull, and the JSON of ``/v1/status``."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_proxy.app.plan_status import PlanStatus
from forebay_proxy.background.disk_monitor import DiskMonitor
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.config.settings import Settings, as_json
from forebay_proxy.core.logs import log_path
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.server.http.plan_route import MOST_ROWS
from forebay_proxy.telemetry.counters import Counters
from forebay_proxy.telemetry.long_waits import why
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.rank_balance import rank_balance
from forebay_proxy.telemetry.troubles import RecentErrors
from forebay_proxy.telemetry.usage import PeakBytes, Usage
from forebay_proxy.telemetry.verdict import verdict
from forebay_proxy.telemetry.waits import OPENING
from forebay_proxy.transfer.limiter import Limiters
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["MeterStatus", "ServiceInfo", "StatusReport"]


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What a sidecar knows of itself once it listens."""

    url: str
    port: int
    socket: Path | None
    cache_dir: Path
    instance: str
    capacity_bytes: int
    fingerprint: str
    notices: tuple[str, ...]
    chosen: tuple[str, ...] = ()  # of the notices: decisions of the sidecar, which are no warnings


@dataclass(frozen=True, slots=True)
class _Listening:
    """What is known once it listens. ``fd_path``: where descriptors are passed now."""

    info: ServiceInfo | None
    settings: dict[str, dict[str, Any]]
    fd_path: Callable[[], Path | None]


class StatusReport:
    """Asks the parts when somebody asks; keeps nothing but the start."""

    def __init__(
        self,
        *,
        cache: ShardCache,
        plans: PlanRegistry,
        announced: PlanStatus,
        counters: Counters,
        limiters: Limiters,
        disk_monitor: DiskMonitor,
        board: OriginBoard,
        recent_errors: RecentErrors,
        sets: Callable[[], list[dict[str, object]]] = list,
        troubles: Callable[[], list[str]] = list,
        meters: Callable[[], list[dict[str, Any]]] = list,
        instance: str,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._announced = announced
        self._limiters = limiters
        self._disk_monitor = disk_monitor
        self._counters, self._board, self._recent_errors = counters, board, recent_errors
        self._sets, self._troubles, self._meters = sets, troubles, meters
        self._clock = clock
        self._peak = PeakBytes(clock=clock)
        self._instance = instance
        self._began_s, self._started_at = clock(), time.time()  # on its clock, and as people read times
        self._answered = 0
        self._listening = _Listening(None, {}, lambda: None)

    def introduce(self, info: ServiceInfo, settings: Settings, fd_path: Callable[[], Path | None]) -> None:
        """Once it listens; ``fd_path``: where descriptors are passed now."""
        self._listening = _Listening(info, as_json(settings), fd_path)

    def allowed(self, origins: Sequence[str]) -> None:
        """More origins were allowed while it runs."""
        row = self._listening.settings.setdefault("allow_origin", {"value": []})
        row["source"] = "added while it runs"
        row["value"] = list(dict.fromkeys([*row["value"], *origins]))

    @property
    def readers(self) -> int:
        """How many readers are inside a shard, or wait to be let in."""
        return len(self._cache.readers) + self._cache.readers.waits.openings()

    def readers_lately(self) -> int:
        """Asked once a second: how many there are, or one if somebody has read since: a small warm shard takes milliseconds."""
        before, self._answered = self._answered, self._counters.answered
        return self.readers or int(self._answered > before)

    def usage(self) -> Usage:
        """The levels now."""
        ledger, cache = self._cache.room.ledger, self._cache
        self._peak.saw(ledger.pop_peak())
        entries = cache.room.entries.values()
        disk = self._disk_monitor.seen
        leads = self._announced.leads()
        return Usage(
            configured_bytes=ledger.configured_bytes,
            effective_bytes=ledger.capacity_bytes,
            stored_bytes=ledger.stored_bytes,
            reserved_bytes=ledger.reserved_bytes,
            doomed_bytes=ledger.doomed_bytes,
            overhead_bytes=ledger.overhead_bytes,
            leased_bytes=cache.leased_segments * cache.room.layout.segment_bytes,
            descriptors=cache.fd_lender.leases.count + cache.fd_lender.leases.lingering,
            lingering=cache.fd_lender.leases.lingering,
            descriptor_bytes=cache.fd_lender.leases.bytes,
            peak_bytes=self._peak.value(),
            shards=len(entries),
            segments=sum(entry.segments.stored_count for entry in entries),
            in_flight=len(cache.flights),
            waiters=len(cache.readers.waits),
            readers=self.readers,
            plans=len(self._plans),
            disk_state=cache.disk.state,
            avail_bytes=disk.free_bytes or 0 if disk else 0,
            size_bytes=disk.size_bytes if disk else 0,
            files_free=disk.free_files or 0 if disk else 0,
            origins=self._limiters.in_flight(),
            unread_bytes=cache.room.read_ahead.unread_bytes,
            lead_bytes={job: lead.bytes for job, lead in leads.items()},
            lead_s={job: lead.seconds for job, lead in leads.items()},
        )

    def status(self) -> dict[str, Any]:
        """``/v1/status``, less what the server knows itself (state, url, socket); plans as in ``/v1/plans``, the first ones."""
        info, waits = self._listening.info, self._cache.readers.waits
        usage, plans, meters = self.usage(), self._announced.page(), self._meters()
        said = verdict(
            waits, self._board, readers=usage.readers, disk_state=usage.disk_state, disk_reason=self._cache.disk.reason,
            in_flight=usage.origins, refused=self._recent_errors.lately(), meters=meters,
        )  # fmt: skip
        return {
            "verdict": said,
            "forebay": VERSION,
            "instance": self._instance,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "log": log_path(),
            "started_at": self._started_at,
            "uptime_s": self._clock() - self._began_s,
            "tasks": len(asyncio.all_tasks()),
            "fd_socket": _text(self._listening.fd_path()),
            "cache_dir": str(info.cache_dir) if info else None,
            "fingerprint": info.fingerprint if info else None,
            "cache": {
                "capacity_bytes": usage.configured_bytes,
                "effective_bytes": usage.effective_bytes,
                "stored_bytes": usage.stored_bytes,
                "reserved_bytes": usage.reserved_bytes,
                "doomed_bytes": usage.doomed_bytes,
                "overhead_bytes": usage.overhead_bytes,
                "leased_bytes": usage.leased_bytes,
                "descriptors": usage.descriptors,
                "descriptor_bytes": usage.descriptor_bytes,
                "lingering": usage.lingering,
                "unread_bytes": usage.unread_bytes,
                "shards": usage.shards,
                "segments": usage.segments,
                "in_flight": usage.in_flight,
                "disk_state": usage.disk_state,
                "disk_reason": self._cache.disk.reason,
            },
            **self._counters.snapshot(),
            "waited_share": waits.share(),
            "recent_errors": self._recent_errors.rows(),
            "origins": self._board.rows(usage.origins),
            "readers": [*self._opening_rows(), *(self._reader_row(reading) for reading in self._cache.readers)],
            "plans": plans["plans"],
            "plans_total": plans["total"],
            "sets": self._sets(),
            "meters": meters,
            "leads": {job: {"bytes": least, "seconds": usage.lead_s[job]} for job, least in usage.lead_bytes.items()},
            "settings": self._listening.settings,
            "chosen": list(info.chosen) if info else [],
            "troubles": self._troubles(),
            "notices": [text for text in info.notices if text not in info.chosen] if info else [],
        }

    def _opening_rows(self) -> Iterator[dict[str, object]]:
        """Readers that wait for an origin's first answer."""
        for wait in self._cache.readers.waits:
            if wait.what == OPENING:
                yield {
                    "reader": str(wait.reader) if wait.reader else "anonymous",
                    "shard": wait.shard,
                    "position_bytes": 0,
                    "length_bytes": None,
                    "waited_s": self._cache.readers.waits.seconds(wait),
                    "waiting_for": why(wait, self._board),
                }

    def _reader_row(self, reading: ShardReader) -> dict[str, object]:
        wait = reading.tally.wait
        return {
            "reader": str(reading.reader) if reading.reader else "anonymous",
            "shard": reading.entry.name,
            "position_bytes": reading.position,
            "length_bytes": reading.entry.shown_version.length,
            "waited_s": reading.tally.waited_s + (self._cache.readers.waits.seconds(wait) if wait else 0.0),
            "waiting_for": why(wait, self._board) if wait else "",
        }

    def announced(self, job: str | None = None, after: ReaderName | None = None, limit: int = MOST_ROWS) -> dict[str, Any]:
        """``/v1/plans``: see ``PlanStatus.page``."""
        return {"instance": self._instance, **self._announced.page(job, after, limit)}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class MeterStatus:
    """Asks the parts when somebody asks; keeps nothing."""

    def __init__(self, *, meters: MeterBoard, announced: PlanStatus, counters: Counters, board: OriginBoard, instance: str) -> None:
        self._meters = meters
        self._announced = announced
        self._counters = counters
        self._board = board
        self._instance = instance

    def page(self, job: str) -> dict[str, Any]:
        """``ranks``: see ``MeterBoard.rows``; ``balance``: how evenly they were loaded in the last minute (``RankBalance``).

        ``sidecar``: sums since it started, and what lies ahead of the job's readers now.

        Origin bytes are of all jobs: a flight serves every job that waits for it.
        """
        rows = self._meters.rows(job)
        balance = rank_balance(rows)
        counted, ahead, (origin_bytes, origin_retries) = self._counters.of(job), self._announced.ahead(job), self._board.sums()
        return {
            "instance": self._instance,
            "job": job,
            "ranks": rows,
            "balance": balance.as_json() if balance else None,
            "sidecar": {
                "sent_bytes": counted.sent_bytes,
                "hit_bytes": counted.hit_bytes,
                "reader_wait_s": counted.reader_wait_s,
                "errors": counted.errors,
                "origin_bytes": origin_bytes,
                "origin_retries": origin_retries,
                "lead_bytes": ahead.bytes if ahead else None,
                "lead_shards": ahead.shards if ahead else None,
                "lead_s": ahead.seconds if ahead else None,
            },
        }
