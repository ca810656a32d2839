"""Levels are pulled: gauges made from one ``Usage`` at the moment of a scrape, so no room keeps a gauge up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS, OTHER
from forebay_proxy.telemetry.prometheus.metric_labels import LabelSlots
from forebay_proxy.telemetry.usage import Usage

__all__ = ["LEVELS", "UsageCollector"]

Values = Mapping[tuple[str, ...], float]

_DISK_STATES: Mapping[str, float] = {"normal": 0, "down": 2}

_SINGLE: Mapping[str, Callable[[Usage], float]] = {
    "cache_disk_state": lambda usage: _DISK_STATES.get(usage.disk_state, 2),  # a word we do not know is no reason to look healthy
    "cache_peak_bytes": lambda usage: max(usage.peak_bytes, usage.held_bytes),
    "cache_segments": lambda usage: usage.segments,
    "cache_shards": lambda usage: usage.shards,
    "descriptor_lease_bytes": lambda usage: usage.descriptor_bytes,
    "descriptor_leases": lambda usage: usage.descriptors,
    "filesystem_avail_bytes": lambda usage: usage.avail_bytes,
    "filesystem_files_free": lambda usage: usage.files_free,
    "filesystem_size_bytes": lambda usage: usage.size_bytes,
    "lease_bytes": lambda usage: usage.leased_bytes,
    "plan_active": lambda usage: usage.plans,
    "prefetch_unread_bytes": lambda usage: usage.unread_bytes,
    "readers": lambda usage: usage.readers,
    "singleflight_waiters": lambda usage: usage.waiters,
}

_SEVERAL = ("cache_bytes", "cache_capacity_bytes", "origin_inflight_requests", "prefetch_lead_bytes", "prefetch_lead_seconds")

LEVELS = frozenset((*_SINGLE, *_SEVERAL))


class UsageCollector(Collector):
    """Turns what ``usage()`` returns into gauges. An exception of ``usage`` fails the scrape: better no answer than stale levels."""

    def __init__(self, usage: Callable[[], Usage], origins: LabelSlots, jobs: LabelSlots) -> None:
        self._usage = usage
        self._origins = origins
        self._jobs = jobs

    def collect(self) -> Iterator[GaugeMetricFamily]:
        levels = self._levels(self._usage())
        for metric in METRICS:
            if metric.name in levels:
                family = GaugeMetricFamily(metric.full_name, metric.help, labels=list(metric.labels))
                for labels, value in levels[metric.name].items():
                    family.add_metric(labels, value)
                yield family

    def _levels(self, usage: Usage) -> Mapping[str, Values]:
        single: dict[str, Values] = {name: {(): level(usage)} for name, level in _SINGLE.items()}
        return single | {
            "cache_bytes": _states(usage),
            "cache_capacity_bytes": {("configured",): usage.configured_bytes, ("effective",): usage.effective_bytes},
            "origin_inflight_requests": self._in_flight(usage.origins),
            "prefetch_lead_bytes": self._leads(usage.lead_bytes),
            "prefetch_lead_seconds": self._leads(usage.lead_s),
        }

    def _in_flight(self, origins: Mapping[str, int]) -> Values:
        """Requests in the air of every origin that has a slot; the others' added up under ``other``."""
        levels: dict[tuple[str, ...], float] = {(origin,): 0 for origin in (*self._origins.held(), OTHER)}
        for origin, count in origins.items():
            if count:  # a limiter remembers origins long after their last request; those must not hold a slot
                label = (self._origins.of(origin),)
                levels[label] = levels.get(label, 0) + count
        return levels

    def _leads(self, leads: Mapping[str, float]) -> Values:
        """The smallest lead of each job; jobs that share ``other`` share its worst."""
        levels: dict[tuple[str, ...], float] = {}
        for job, lead in leads.items():
            label = (self._jobs.of(job),)
            levels[label] = min(levels.get(label, lead), lead)
        return levels


def _states(usage: Usage) -> Values:
    return {
        ("stored",): usage.stored_bytes,
        ("reserved",): usage.reserved_bytes,
        ("doomed",): usage.doomed_bytes,
        ("overhead",): usage.overhead_bytes,
    }
