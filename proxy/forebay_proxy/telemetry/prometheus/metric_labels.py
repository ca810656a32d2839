"""Bounded label values and the children of a metric: what keeps ``/metrics`` small whatever clients and origins send. Not thread-safe."""

from __future__ import annotations

import re
import time
from collections import Counter as Counting
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from forebay_proxy.telemetry.prometheus.metric_catalog import OPEN, OTHER, SLOTTED, Metric

__all__ = ["Family", "LabelSlots", "code_label", "job_label", "origin_label", "rank_label"]

# Exactly scheme and authority; anything behind them (a path, a query with a signature) or before the host (userinfo) is cut off first.
_ORIGIN: Final = re.compile(r"(https?|s3|gs|hf|file)://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])?(:[0-9]{1,5})?")
# A job that is not a plain word is not quoted but counted as `other`: replacing characters would let half a secret through.
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
QUIET_S: Final = 3600.0
_RANK: Final = re.compile(r"[0-9]{1,6}")


def origin_label(text: str) -> str:
    """``scheme://host[:port]`` of an origin or origin URL; ``other`` for anything that does not look like one."""
    scheme, separator, rest = text.partition("://")
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    label = (scheme + separator + authority).lower()
    return label if _ORIGIN.fullmatch(label) else OTHER


def job_label(text: str) -> str:
    """The job's name; ``anonymous`` for none, ``other`` for one that is not a plain word of at most 64 characters."""
    return text if _JOB.fullmatch(text) else OTHER if text else "anonymous"


def rank_label(text: str) -> str:
    """``job/rank``; ``other`` where the job is not a plain word or the rank not a number."""
    job, _, rank = text.rpartition("/")
    return text if _JOB.fullmatch(job) and _RANK.fullmatch(rank) else OTHER


def code_label(code: int) -> str:
    return str(code) if code == 0 or 100 <= code <= 599 else OTHER


class LabelSlots:
    """At most ``most`` values of a label besides ``other``.

    A newcomer beyond that gets the slot of the value unheard for longest, but only once that one has been silent for an hour: a node's
    sidecar outlives hundreds of jobs and the running ones should be visible, while a client that makes up names cannot make the server
    that scrapes us store more than ``most`` new series sets an hour. ``born`` and ``gone`` are told of every change.
    """

    def __init__(
        self, most: int, clean: Callable[[str], str], *, born: Callable[[str], None], gone: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._most = most
        self._clean = clean
        self._born = born
        self._gone = gone
        self._clock = clock
        self._heard: dict[str, float] = {}  # value -> when; the first is the one unheard for longest

    def of(self, text: str) -> str:
        """The label value to count ``text`` under."""
        if text in self._heard:
            return self._hear(text)
        value = self._clean(text)
        if value == OTHER or not (value in self._heard or self._room()):
            return OTHER
        if value not in self._heard:
            self._born(value)
        return self._hear(value)

    def held(self) -> tuple[str, ...]:
        """The values that hold a slot now."""
        return tuple(self._heard)

    def _hear(self, value: str) -> str:
        self._heard.pop(value, None)
        self._heard[value] = self._clock()
        return value

    def _room(self) -> bool:
        if len(self._heard) < self._most:
            return True
        oldest, heard = next(iter(self._heard.items()))
        if self._clock() - heard <= QUIET_S:
            return False
        del self._heard[oldest]
        self._gone(oldest)
        return True


class Family:
    """One metric of the table and its children, found by a dictionary look-up: a fact costs well under two microseconds to count."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self.metric = metric
        self._children: dict[tuple[str, ...], Any] = {}
        self._sizes: Counting[str] = Counting()  # children by slot; under "" where no label has slots
        self._library = _library_metric(metric, registry)
        if not any(label in SLOTTED for label in metric.labels):
            self.bear()

    def bear(self, **slots: str) -> None:
        """Make the children known in advance, at zero."""
        for values in _births(self.metric, **slots):
            self._child(values)

    def forget(self, **slots: str) -> None:
        """Drop every child with these values of slotted labels."""
        places = {list(self.metric.labels).index(label): value for label, value in slots.items()}
        for values in [each for each in self._children if all(each[place] == value for place, value in places.items())]:
            del self._children[values]
            self._library.remove(*values)
            self._sizes[self._slot(values)] -= 1

    def inc(self, *values: str, by: float = 1) -> None:
        self._of(values).inc(by)

    def observe(self, *values: str, seconds: float) -> None:
        self._of(values).observe(seconds)

    def set(self, *values: str, to: float) -> None:
        self._of(values).set(to)

    def _of(self, values: tuple[str, ...]) -> Any:
        found = self._children.get(values)
        return self._child(self._bounded(values)) if found is None else found

    def _child(self, values: tuple[str, ...]) -> Any:
        if values not in self._children:
            self._children[values] = self._library.labels(*values) if values else self._library
            self._sizes[self._slot(values)] += 1
        return self._children[values]

    def _bounded(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The nearest label values that the table allows; an OPEN label is the last one and takes ``other`` when the family is full."""
        allowed = tuple(_nearest(known, value) for known, value in zip(self.metric.labels.values(), values, strict=True))
        if self.metric.most and allowed not in self._children and self._sizes[self._slot(allowed)] >= self.metric.most:
            return (*allowed[:-1], OTHER)
        return allowed

    def _slot(self, values: tuple[str, ...]) -> str:
        """Families are filled slot by slot: one origin that answers nonsense does not use up the codes of the others."""
        return next((value for label, value in zip(self.metric.labels, values, strict=True) if label in SLOTTED), "")


def _births(metric: Metric, **slots: str) -> Iterator[tuple[str, ...]]:
    """Every combination of label values known in advance; ``slots`` gives the value of a slotted label."""
    known = ((slots[label],) if label in SLOTTED else tuple(v for v in values if v != OPEN) for label, values in metric.labels.items())
    return product(*known)


def _nearest(known: tuple[str, ...], value: str) -> str:
    return value if not known or OPEN in known or value in known else OTHER


def _library_metric(metric: Metric, registry: CollectorRegistry) -> Any:
    names = list(metric.labels)
    if metric.kind == "histogram":
        return Histogram(metric.full_name, metric.help, names, buckets=metric.buckets, registry=registry)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.full_name, metric.help, names, registry=registry)
