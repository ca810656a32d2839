"""How things stand: the levels metrics pull, and the JSON of ``/v1/status``."""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from forebay_proxy.app.composition import CacheParts
from forebay_proxy.app.shard_map import ShardMap
from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.config.settings import Settings, as_flags, as_json
from forebay_proxy.core.events import Events
from forebay_proxy.core.logs import log_path
from forebay_proxy.core.shard import shown_set
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.server.http.plan_route import MOST_ROWS
from forebay_proxy.telemetry.counters import Counters, PlanAdherence
from forebay_proxy.telemetry.derived_board import DerivedBoard
from forebay_proxy.telemetry.happenings import Happenings
from forebay_proxy.telemetry.history import History, Totals
from forebay_proxy.telemetry.levels import Lately, levels_of
from forebay_proxy.telemetry.meter_board import SHOWN_S, MeterBoard
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.troubles import RecentErrors, Troubles
from forebay_proxy.telemetry.usage import PeakBytes, Usage
from forebay_proxy.telemetry.waits import OPENING, why
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.protocol.verdict import Verdict, verdict
from forebay_proxy.wire.protocol.version import VERSION
from forebay_proxy.wire.urls.patterns import InvalidPattern, parse_pattern

__all__ = ["Lead", "PlanStatus", "ServiceInfo", "StatusReport", "TelemetryParts"]


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
    lately: Lately
    derived: DerivedBoard

    @classmethod
    def build(cls, events: Events, clock: Callable[[], float], segment_bytes: int) -> TelemetryParts:
        """They listen from now on."""
        counters = Counters()
        troubles = Troubles(clock, segment_bytes, lambda: counters.bypassed)
        parts = cls(
            counters, PlanAdherence(), Metrics(version=VERSION), OriginBoard(clock), RecentErrors(clock, time.time), troubles,
            MeterBoard(events, clock), Lately(clock), DerivedBoard(clock),
        )  # fmt: skip
        for part in (parts.counters, parts.adherence, parts.metrics, parts.board, parts.recent_errors, parts.lately, parts.derived):
            events.listen(part.listen, part.kinds)
        return parts


@dataclass(frozen=True, slots=True)
class Lead:
    """How far the cache is ahead of one reader, or of several. ``shards``: how many the bytes are of, if each is as long as the next."""

    bytes: int
    seconds: float
    shards: float = 0.0


class PlanStatus:
    """Asks plans, prefetcher and cache when somebody asks; keeps nothing."""

    def __init__(
        self, *, cache: ShardCache, plans: PlanRegistry, prefetcher: Prefetcher, adherence: PlanAdherence, clock: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._prefetcher = prefetcher
        self._adherence = adherence
        self._clock = clock

    def lead(self, plan: ReaderPlan) -> Lead:
        """Bytes that are here without a gap from the reader's next shard on, and the time until it needs what follows them.

        The shards ahead are taken to be as long as the next one. A reader whose plan is read to its end, or whose next shard is missing,
        has only the time until it opens that one.
        """
        if plan.position >= len(plan):
            return Lead(0, 0.0)
        ahead = self._prefetcher.scheduler.ahead_bytes(plan.reader)
        seconds = max(0.0, plan.need_at(plan.position) - self._clock())
        length = self._cache.length_of(self._plans.shard_at(plan, plan.position).name) if ahead else None
        shards = ahead / length if length else 0.0
        return Lead(ahead, seconds + (shards / plan.pace.rate if shards else 0.0), shards)

    def leads(self) -> dict[str, Lead]:
        """By job: the least of its readers, in bytes and (maybe of another) in seconds. Readers at the end of their plan do not count."""
        leads: dict[str, Lead] = {}
        for plan in self._plans.all():
            if plan.position < len(plan):
                lead, least = self.lead(plan), leads.get(plan.reader.job)
                leads[plan.reader.job] = lead if least is None else Lead(*map(min, astuple(lead), astuple(least)))
        return leads

    def progress(self) -> list[dict[str, Any]]:
        """One object a job and epoch, over all of its readers: how far they are in what they have announced.

        ``of``: how many shards there are in all, if they read one pattern.
        """
        jobs: dict[tuple[str, int | None], list[ReaderPlan]] = {}
        for plan in self._plans.all():
            jobs.setdefault((plan.reader.job, plan.epoch), []).append(plan)
        return [
            {
                "job": job, "epoch": epoch, "readers": len(plans), "position": sum(plan.position for plan in plans),
                "length": sum(map(len, plans)), "of": _shards_of(plans),
                "rate": sum(plan.pace.rate for plan in plans if plan.position < len(plan)),
            }
            for (job, epoch), plans in jobs.items()
        ]  # fmt: skip

    def ahead(self, job: str) -> Lead | None:
        """Of all readers of ``job`` together: their bytes and shards added up, and the least of their seconds. None without a plan."""
        leads = [self.lead(plan) for plan in self._plans.all() if plan.reader.job == job and plan.position < len(plan)]
        if not leads:
            return None
        least_s = min(lead.seconds for lead in leads)
        return Lead(sum(lead.bytes for lead in leads), least_s, sum(lead.shards for lead in leads))

    def page(self, job: str | None = None, after: ReaderName | None = None, limit: int = MOST_ROWS) -> dict[str, Any]:
        """``total`` plans (of ``job``), up to ``limit`` of them in the order of their readers' names, those behind ``after``.

        ``next`` is what to give as ``after`` for those that follow; None at the end.
        """
        plans = [plan for plan in self._plans.all() if job is None or plan.reader.job == job]
        total = len(plans)
        if after is not None:
            plans = [plan for plan in plans if _place(plan.reader) > _place(after)]
        plans.sort(key=lambda plan: _place(plan.reader))
        shown = plans[:limit]
        follows = str(shown[-1].reader) if shown and len(plans) > limit else None
        waiting = self._cache.readers.waits.readers()
        return {"total": total, "plans": [self._row(plan, waiting=plan.reader in waiting) for plan in shown], "next": follows}

    def _row(self, plan: ReaderPlan, *, waiting: bool) -> dict[str, Any]:
        lead, followed = self.lead(plan), self._adherence.of(plan.reader)
        return {
            "reader": str(plan.reader),
            "job": plan.reader.job,
            "epoch": plan.epoch,
            "set": plan.set_name and shown_set(plan.set_name),
            "position": plan.position,
            "length": len(plan),
            "rate": plan.pace.rate,
            "lead_bytes": lead.bytes,
            "lead_s": lead.seconds,
            "window_bytes": self._prefetcher.scheduler.readers.window_bytes(plan.reader),
            "waiting": waiting,
            "waited_s": followed.waited_s,
            "silent_s": max(0.0, self._clock() - plan.pace.heard_at),
            "openings": {how: followed.openings[how] for how in ("planned", "skipped", "repeated", "unplanned")},
        }


def _reader_row(
    reader: ReaderName | None, shard: str, position: int, length: int | None, waited_s: float, waiting_for: str
) -> dict[str, object]:
    return {
        "reader": str(reader) if reader else "anonymous", "shard": shard, "position_bytes": position, "length_bytes": length,
        "waited_s": waited_s, "waiting_for": waiting_for,
    }  # fmt: skip


def _place(reader: ReaderName) -> tuple[object, ...]:
    """Worker 10 behind worker 9."""
    return reader.job, len(reader.rank), reader.rank, len(reader.worker), reader.worker, reader.opener


def _shards_of(plans: Sequence[ReaderPlan]) -> int | None:
    names = {plan.set_name for plan in plans}
    return _counted(names.pop() or "") if len(names) == 1 else None


@lru_cache(maxsize=64)
def _counted(pattern: str) -> int | None:
    """How many shards a pattern stands for; None for what is none."""
    if "{" not in pattern or "::" in pattern:
        return None
    try:
        return parse_pattern(pattern).count
    except InvalidPattern:
        return None


SAMPLED = 256  # shards' lengths: those of a set are alike
LATELY_S = 60.0

_CACHE_LEVELS = (
    "effective_bytes", "stored_bytes", "reserved_bytes", "doomed_bytes", "overhead_bytes", "leased_bytes", "descriptors",
    "descriptor_bytes", "lingering", "unread_bytes", "shards", "segments", "in_flight", "disk_state",
)  # fmt: skip


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


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have none
        return f"uid {os.getuid()}"


class StatusReport:
    """Asks the parts when somebody asks; keeps nothing but the start. Metrics show its levels."""

    def __init__(self, parts: CacheParts, telemetry: TelemetryParts, instance: str, clock: Callable[[], float]) -> None:
        self._parts = parts
        self._cache = parts.cache
        self._telemetry = telemetry
        self._plans = PlanStatus(
            cache=parts.cache, plans=parts.plans, prefetcher=parts.prefetcher, adherence=telemetry.adherence, clock=clock
        )
        self._clock = clock
        self.history = History(clock, time.time)
        self._happenings = Happenings(time.time)
        self.shard_map = ShardMap(parts.cache, parts.plans, parts.resolver.versions.current, clock)
        self._peak = PeakBytes(clock=clock)
        self._instance = instance
        self._began_s, self._started_at = clock(), time.time()  # on its clock, and as people read times
        self._answered = 0
        self._info: ServiceInfo | None = None
        self._chosen: Settings | None = None
        self._user = _user()
        self._settings: dict[str, dict[str, Any]] = {}
        self._fd_path: Callable[[], Path | None] | None = None
        telemetry.metrics.watch(self.usage)

    def introduce(self, info: ServiceInfo, settings: Settings, fd_path: Callable[[], Path | None]) -> None:
        """Once it listens; ``fd_path``: where descriptors are passed now."""
        self._info, self._chosen, self._settings, self._fd_path = info, settings, as_json(settings), fd_path
        held = len(self._cache.room.entries)
        self._happenings.note(f"this sidecar began (pid {os.getpid()}, {VERSION}), with {held:,} shards in its cache")

    def allowed(self, origins: Sequence[str]) -> None:
        """More origins were allowed while it runs."""
        row = self._settings.setdefault("allow_origin", {"value": []})
        row["source"] = "added while it runs"
        row["value"] = list(dict.fromkeys([*row["value"], *origins]))

    @property
    def readers(self) -> int:
        """How many readers are inside a shard, or wait to be let in."""
        return len(self._cache.readers) + self._cache.readers.waits.openings()

    def readers_lately(self) -> int:
        """Asked once a second: how many there are, or one if somebody has read since: a small warm shard takes milliseconds."""
        before, self._answered = self._answered, self._telemetry.counters.answered
        return self.readers or int(self._answered > before)

    def look(self) -> None:
        """Once a second: the history has a row every few."""
        if self.history.is_due:
            counted, leads = self._telemetry.counters, self._plans.leads().values()
            totals = Totals(counted.origin_bytes, counted.sent_bytes, counted.hit_bytes)
            self.history.note(totals, self._telemetry.meters.rows(), min((lead.seconds for lead in leads), default=None))
            meters, failing, disk = self._telemetry.meters.rows(within_s=SHOWN_S), self._telemetry.board.failing(), self._cache.disk
            self._happenings.look(meters, self._plans.progress(), failing, disk.state, disk.reason)

    def usage(self) -> Usage:
        """The levels now."""
        ledger, cache = self._cache.room.ledger, self._cache
        self._peak.saw(ledger.pop_peak())
        entries = cache.room.entries.values()
        disk = self._parts.disk_monitor.seen
        leads = self._plans.leads()
        return Usage(
            configured_bytes=ledger.configured_bytes,
            effective_bytes=ledger.capacity_bytes,
            stored_bytes=ledger.stored_bytes,
            reserved_bytes=ledger.reserved_bytes,
            doomed_bytes=ledger.doomed_bytes,
            overhead_bytes=ledger.overhead_bytes,
            leased_bytes=cache.leased_segments * cache.room.layout.segment_bytes,
            descriptors=cache.fd_lender.count + cache.fd_lender.lingering,
            lingering=cache.fd_lender.lingering,
            descriptor_bytes=cache.fd_lender.bytes,
            peak_bytes=self._peak.value(),
            shards=len(entries),
            segments=sum(entry.segments.stored_count for entry in entries),
            in_flight=len(cache.fetches),
            waiters=len(cache.readers.waits),
            readers=self.readers,
            plans=len(self._parts.plans),
            disk_state=cache.disk.state,
            avail_bytes=disk.free_bytes or 0 if disk else 0,
            size_bytes=disk.size_bytes if disk else 0,
            files_free=disk.free_files or 0 if disk else 0,
            origins=self._parts.limiters.in_flight(),
            unread_bytes=cache.room.read_ahead.unread_bytes,
            lead_bytes={job: lead.bytes for job, lead in leads.items()},
            lead_s={job: lead.seconds for job, lead in leads.items()},
            derived=self._telemetry.derived.levels(),
        )

    def verdict(self) -> Verdict:
        """Why training waits, and what to do."""
        usage, progress = self.usage(), self._plans.progress()
        shared = None if self._parts.fetcher.shared is None else self._parts.fetcher.shared.status()
        levels = levels_of(
            self._cache.readers.waits, self._telemetry.board, self._telemetry.lately, readers=usage.readers,
            disk="" if usage.disk_state == "normal" else self._cache.disk.reason, in_flight=usage.origins, plans=len(self._parts.plans),
            passes=any((each["epoch"] or 0) > 0 for each in progress), refused=self._telemetry.recent_errors.lately(),
            meters=self._telemetry.meters.rows(within_s=SHOWN_S), shared=next(iter(shared["troubles"]), "") if shared else "",
            needed_bytes=self._read_bytes(), pattern=self._pattern(),
        )  # fmt: skip
        budget_s = 0.0 if self._chosen is None else self._chosen.retry_budget_s
        return verdict(replace(levels, cache_bytes=usage.configured_bytes, retry_budget_s=budget_s, **self._restart()))

    def _restart(self) -> dict[str, Any]:
        """How this sidecar is ended and started again as it is; nothing where that would end its container, whose manifest says it."""
        info = self._info
        if info is None or self._chosen is None or os.getpid() == 1:
            return {}
        if (flags := as_flags(self._chosen, self._settings)) is None:
            return {}
        as_it_is = {"--port": f"--port {info.port}", "--cache-dir": f"--cache-dir {shlex.quote(str(info.cache_dir))}"}
        return {
            "cache_dir": str(info.cache_dir),
            "serve": flags | as_it_is,
            "stop": f"forebay stop --url {info.url}",
            "where": f" as {self._user} on {socket.gethostname()}",
        }

    def _pattern(self) -> str:
        """Of the one set that is read, where it has a pattern that says all; "" where it has not, or there are more sets."""
        names = {plan.set_name for plan in self._parts.plans.all()}
        name = names.pop() or "" if len(names) == 1 else ""
        return name if "://" in name and not name.endswith("/") and shown_set(name) == name else ""

    def _read_bytes(self) -> int | None:
        """Of all shards of the sets that are read now, and the index beside them, if they are as long as those that are known: a job in its
        second pass has opened each. None where they would fit."""
        known = islice(self._parts.resolver.versions.current.values(), SAMPLED)
        lengths = [length for each in known if (length := each.version.length)]
        shards = self._parts.plans.epochs.groups.shards_read(self._clock() - LATELY_S)
        ledger = self._cache.room.ledger
        found = shards * sum(lengths) // max(1, len(lengths)) + ledger.overhead_bytes
        return found if found > ledger.capacity_bytes else None

    def status(self) -> dict[str, Any]:
        """``/v1/status``, less what the server knows itself (state, url, socket); plans as in ``/v1/plans``, the first ones."""
        info, waits = self._info, self._cache.readers.waits
        usage, plans, meters = self.usage(), self._plans.page(), self._telemetry.meters.rows(within_s=SHOWN_S)
        shared = None if self._parts.fetcher.shared is None else self._parts.fetcher.shared.status()
        return {
            "verdict": self.verdict().as_json(),
            "forebay": VERSION,
            "instance": self._instance,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "log": log_path(),
            "started_at": self._started_at,
            "uptime_s": self._clock() - self._began_s,
            "tasks": len(asyncio.all_tasks()),
            "fd_socket": None if self._fd_path is None or (fd_path := self._fd_path()) is None else str(fd_path),
            "cache_dir": str(info.cache_dir) if info else None,
            "fingerprint": info.fingerprint if info else None,
            "cache": {
                "capacity_bytes": usage.configured_bytes,
                **{name: getattr(usage, name) for name in _CACHE_LEVELS},
                "disk_reason": self._cache.disk.reason,
            },
            **self._telemetry.counters.snapshot(),
            "waited_share": waits.share(),
            "recent_errors": self._telemetry.recent_errors.rows(),
            "events": self._happenings.rows(),
            "origins": self._telemetry.board.rows(usage.origins, self._parts.limiters.slots()),
            "shared": shared,
            "readers": list(self._reader_rows()),
            "plans": plans["plans"],
            "plans_total": plans["total"],
            "progress": self._plans.progress(),
            "sets": self._parts.sets.status_rows(),
            "meters": meters,
            "derived": self._telemetry.derived.rows(),
            "leads": {job: {"bytes": least, "seconds": usage.lead_s[job]} for job, least in usage.lead_bytes.items()},
            "settings": self._settings,
            "chosen": list(info.chosen) if info else [],
            "troubles": self._telemetry.troubles.rows(),
            "notices": [text for text in info.notices if text not in info.chosen] if info else [],
        }

    def _reader_rows(self) -> Iterator[dict[str, object]]:
        """Readers that wait for an origin's first answer, then those inside a shard."""
        waits, board = self._cache.readers.waits, self._telemetry.board
        for wait in waits:
            if wait.what == OPENING:
                yield _reader_row(wait.reader, wait.shard, 0, None, waits.seconds(wait), why(wait, board))
        for reading in self._cache.readers:
            held, length = reading.wait, reading.entry.shown_version.length
            waited_s = reading.waited_s + (waits.seconds(held) if held else 0.0)
            yield _reader_row(reading.reader, reading.entry.name, reading.position, length, waited_s, why(held, board) if held else "")

    def announced(self, job: str | None = None, after: ReaderName | None = None, limit: int = MOST_ROWS) -> dict[str, Any]:
        """``/v1/plans``: see ``PlanStatus.page``."""
        return {"instance": self._instance, **self._plans.page(job, after, limit)}

    def meter_page(self, job: str) -> dict[str, Any]:
        """``/v1/meter/{job}``. ``ranks``: see ``MeterBoard.rows``. ``sidecar``: sums since it started, and what lies ahead of the job's
        readers now.

        Origin bytes are of all jobs: a fetch serves every job that waits for it.
        """
        counted, ahead, (origin_bytes, origin_retries) = (
            self._telemetry.counters.of(job),
            self._plans.ahead(job),
            self._telemetry.board.sums(),
        )
        return {
            "instance": self._instance,
            "job": job,
            "verdict": self.verdict().as_json(),
            "ranks": self._telemetry.meters.rows(job),
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
