"""How things stand: the levels metrics pull, and the JSON of ``/v1/status``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_proxy import version
from forebay_proxy.announced import Announced
from forebay_proxy.cache import ShardCache
from forebay_proxy.diskwatch import DiskWatch
from forebay_proxy.limiter import Limiters
from forebay_proxy.plan import Plans
from forebay_proxy.plan_query import MOST_ROWS
from forebay_proxy.reading import Reading
from forebay_proxy.segments import SEGMENT_BYTES
from forebay_proxy.settings import Settings
from forebay_proxy.tally import Tally
from forebay_proxy.usage import PeakBytes, Usage
from forebay_proxy.wire.plan import ReaderName

if TYPE_CHECKING:
    from forebay_proxy.service import ServiceInfo

__all__ = ["Standing"]


class Standing:
    """Asks the parts when somebody asks; keeps nothing but the start."""

    def __init__(
        self,
        *,
        cache: ShardCache,
        plans: Plans,
        announced: Announced,
        tally: Tally,
        limiters: Limiters,
        watch: DiskWatch,
        sets: Callable[[], list[dict[str, object]]] = list,
        instance: str,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._announced = announced
        self._tally = tally
        self._limiters = limiters
        self._watch = watch
        self._sets = sets
        self._instance = instance
        self._clock = clock
        self._peak = PeakBytes(clock=clock)
        self._started = clock()
        self._started_at = time.time()
        self._info: ServiceInfo | None = None
        self.door: Callable[[], Path | None] = lambda: None  # where descriptors are passed; set once it listens

    def introduce(self, info: ServiceInfo, settings: Settings) -> None:
        """Once it listens."""
        self._info = info

    def usage(self) -> Usage:
        """The levels now."""
        ledger, cache = self._cache.room.ledger, self._cache
        self._peak.saw(ledger.take_peak())
        entries = cache.room.entries.values()
        disk = self._watch.seen
        leads = self._announced.leads()
        return Usage(
            configured_bytes=ledger.configured_bytes,
            effective_bytes=ledger.capacity_bytes,
            stored_bytes=ledger.stored_bytes,
            reserved_bytes=ledger.reserved_bytes,
            doomed_bytes=ledger.doomed_bytes,
            overhead_bytes=ledger.overhead_bytes,
            leased_bytes=cache.leased_segments * SEGMENT_BYTES,
            descriptors=cache.lending.count,
            descriptor_bytes=cache.lending.bytes,
            peak_bytes=self._peak.value(),
            shards=len(entries),
            segments=sum(entry.segments.stored_count for entry in entries),
            in_flight=len(cache.flights),
            waiters=sum(flight.waiting_count for flight in cache.flights.all()),
            readers=len(cache.readings),
            plans=len(self._plans),
            disk_state=cache.disk.state,
            avail_bytes=disk.free_bytes or 0 if disk else 0,
            size_bytes=disk.size_bytes if disk else 0,
            files_free=disk.free_files or 0 if disk else 0,
            origins=self._limiters.in_flight(),
            unread_bytes=cache.room.displacers.unread_bytes,
            lead_bytes={job: lead.bytes for job, lead in leads.items()},
            lead_s={job: lead.seconds for job, lead in leads.items()},
        )

    def status(self) -> dict[str, Any]:
        """``/v1/status``, less what the face knows itself (state, url, socket); plans as in ``/v1/plans``, the first ones."""
        info = self._info
        usage, plans = self.usage(), self._announced.page()
        return {
            "forebay": version.VERSION,
            "instance": self._instance,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "uptime_s": self._clock() - self._started,
            "tasks": len(asyncio.all_tasks()),
            "fd_socket": _text(self.door()),
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
                "unread_bytes": usage.unread_bytes,
                "shards": usage.shards,
                "segments": usage.segments,
                "in_flight": usage.in_flight,
                "disk_state": usage.disk_state,
                "disk_reason": self._cache.disk.reason,
            },
            **self._tally.snapshot(),
            "readers": [_reader(reading) for reading in self._cache.readings],
            "plans": plans["plans"],
            "plans_total": plans["total"],
            "sets": self._sets(),
            "leads": {job: {"bytes": least, "seconds": usage.lead_s[job]} for job, least in usage.lead_bytes.items()},
            "notices": list(info.notices) if info else [],
        }

    def announced(self, job: str | None = None, after: ReaderName | None = None, limit: int = MOST_ROWS) -> dict[str, Any]:
        """``/v1/plans``: see ``Announced.page``."""
        return {"instance": self._instance, **self._announced.page(job, after, limit)}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _reader(reading: Reading) -> dict[str, object]:
    return {
        "reader": str(reading.reader) if reading.reader else "anonymous",
        "shard": reading.entry.name,
        "position_bytes": reading.position,
        "length_bytes": reading.version.length,
        "waited_s": reading.waited_s,
    }
