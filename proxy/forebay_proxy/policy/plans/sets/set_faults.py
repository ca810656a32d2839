"""Which shards of declared sets cannot be fetched, why, and until when they are left to their readers. Pure; the clock is an argument.

No reader waits for a declared set, so no reader gets its errors: they are kept here for ``/v1/status``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forebay_proxy.core.errors import ForebayError, ShardError
from forebay_proxy.policy.plans.sets.shard_sets import ShardSet

__all__ = ["FAILED_S", "MOST_FAILED", "SetFaults"]

FAILED_S = 30.0  # a shard that cannot be fetched is left to its reader for this long
MOST_FAILED = 16  # in a row: then the origin is left alone for that time

MOST_KNOWN = 1024  # shards; of more, those that failed longest ago are forgotten, and tried again
MOST_CAUSES = 4  # of a set that are told


@dataclass(frozen=True)
class _Fault:
    cause: str
    next_step: str
    until: float


class SetFaults:
    """By the shard's name, the last failure last. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._in_a_row = 0
        self._alone_until = float("-inf")

    def __repr__(self) -> str:
        return f"<SetFaults of {len(self._faults)} shards>"

    def add(self, name: str, error: ForebayError, until: float) -> None:
        """``name`` could not be fetched, and is not asked for before that time."""
        self._faults.pop(name, None)
        self._faults[name] = _Fault(error.cause if isinstance(error, ShardError) else str(error), error.step, until)
        if len(self._faults) > MOST_KNOWN:
            del self._faults[next(iter(self._faults))]

    def fail(self, name: str, error: ForebayError, now: float, for_s: float) -> None:
        """As ``add``, for ``for_s`` seconds from ``now``; after many in a row nothing is asked for, for a while."""
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAILED:
            self._in_a_row, self._alone_until = 0, now + FAILED_S
        self.add(name, error, now + for_s)

    def leaves_all_alone(self, now: float) -> bool:
        """Whether so many failed in a row that the origin is left alone."""
        return now < self._alone_until

    def mended(self, name: str) -> None:
        """It is here."""
        self._in_a_row = 0
        self._faults.pop(name, None)

    def leaves_alone(self, name: str, now: float) -> bool:
        fault = self._faults.get(name)
        return fault is not None and fault.until > now

    def rows(self, shards: ShardSet, is_here: Callable[[str], bool]) -> list[dict[str, object]]:
        """What of this set cannot be fetched: equal causes together, the most frequent first, each with one shard that has it."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, fault in self._of(shards):
            if not is_here(name):
                found.setdefault((fault.cause, fault.next_step), []).append(name)
        most = sorted(found.items(), key=lambda each: -len(each[1]))[:MOST_CAUSES]
        return [{"count": len(names), "shard": names[0], "cause": cause, "next_step": step} for (cause, step), names in most]

    def _of(self, shards: ShardSet) -> Iterator[tuple[str, _Fault]]:
        return ((name, fault) for name, fault in self._faults.items() if shards.index(name) is not None)
