"""What the training processes of this node tell of their stalls: the last totals of each, and what came on top. Pure.

What came on top of the totals before is a fact (``MeterTold``), which the metrics add up: their counters go on when a rank is started
anew, and when a message is lost. A process trains until it has been silent for as long as ends a plan; its totals are remembered longer,
since a trainer that writes a checkpoint tells nothing, and goes on with its sums.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import MeterTold
from forebay_proxy.core.shard import shown_set
from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["MOST_METERS", "SHOWN_S", "SILENCE_S", "MeterBoard"]


# Whether a rank of a data-parallel job waits for one that has no more batches. Pure.
#
# With unequal shards one rank's loader ends first. The others get one batch more, and stand in its gradient all-reduce for ever. No byte
# is waited for, so nothing else shows it. The sidecar sees it where both ranks are on its machine. It says so of ranks A and B of one job
# only if all of this holds, for the same loader (the n-th that each rank has read):
#
# - B's pass has ended ``ENDED_S`` ago, and B has asked no loader for a batch since;
# - A has got more batches from that loader than B ever, has begun no more passes than B, and is inside its loop;
# - A has not asked for the next batch for ``STOOD_S``, and for ``TIMES_A_STEP`` of its steps until then.
#
# So these are not told: ranks that end at the same batch, a loop on one rank alone over a loader of its own (validation), a slow rank that
# has no more batches than the others, ranks that go on all the same (``join()``), and ranks on other machines.
STOOD_S = 10.0
TIMES_A_STEP = 5
ENDED_S = 15.0  # a process that has begun another pass has told so by then: it does every 10 s
NOW_S = 25.0  # what was told longer ago is not so now


@dataclass(frozen=True, slots=True)
class _RankStand:
    """What one process told last, ``silent_s`` ago."""

    told: MeterBody
    silent_s: float

    @property
    def steps(self) -> int:
        return self.told.loader_steps or 0

    @property
    def passes(self) -> int:
        return self.told.loader_passes or 0

    @property
    def stood_s(self) -> float:
        """For how long it stands in a step; 0 where it moves."""
        step_s = self.told.step_s or 0.0
        before_s = max(0.0, self.told.wall_s - step_s) / max(1, self.told.steps)
        return step_s if self.silent_s < NOW_S and step_s >= max(STOOD_S, TIMES_A_STEP * before_s) else 0.0

    @property
    def ended_s(self) -> float:
        """For how long its pass has ended; 0 where it has not, or only just."""
        ended_s = self.told.ended_s
        return 0.0 if ended_s is None or ended_s + self.silent_s < ENDED_S else ended_s + self.silent_s

    def has_left(self, other: _RankStand) -> bool:
        """Whether it has ended, with fewer batches than ``other`` has, which stands."""
        same = self.told.loader == other.told.loader and self.passes >= other.passes
        return same and bool(self.ended_s and other.stood_s) and self.steps < other.steps


def _unequal_steps(stands: Mapping[ReaderName, _RankStand]) -> tuple[ReaderName, str] | None:
    """Of one job's ranks: who stands for longest, and a sentence on it; None where nobody waits for a rank that has ended."""
    pairs = [(reader, left) for reader, stand in stands.items() for left, other in stands.items() if other.has_left(stand)]
    if not pairs:
        return None
    reader, left = max(pairs, key=lambda pair: (stands[pair[0]].stood_s, stands[pair[1]].ended_s))
    stand, ended = stands[reader], stands[left]
    others = len({one for one, _ in pairs}) - 1
    passes = f" in {ended.passes} passes" if ended.passes > 1 else ""
    return reader, (
        f"rank {left.rank} has had no more batches for {ended.ended_s:.0f} s, after {ended.steps}{passes}; rank {reader.rank}"
        f"{f' (and {others} more)' if others else ''} stands in step {stand.steps} for at least {stand.stood_s:.0f} s, probably in an "
        f"all-reduce that waits for rank {left.rank}: ranks have unequal numbers of batches; "
        f"fb.WebLoader makes them equal, or batches_per_epoch=n"
    )


MOST_METERS = 256  # a node has a process for each accelerator, and a few that have ended; each costs some 8 kB
SILENCE_S = 60.0  # as ends a plan
SHOWN_S = 900.0  # as far as curves go back: who looks ten minutes later sees that a training has ended, or has not
LATELY_S = 60.0
_KEPT = 7  # of each: one comes every 10 s


@dataclass(slots=True)
class _MeteredProcess:
    """One process's totals, the latest last. Moments are on the board's clock."""

    told: deque[tuple[float, MeterBody]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    ended: bool = False  # it has said so

    @property
    def heard_at(self) -> float:
        return self.told[-1][0]

    @property
    def last(self) -> MeterBody:
        return self.told[-1][1]

    def lately(self) -> MeterBody:
        """What the last minute brought; of a process that has told once only, all of it. What is waited for just now counts as what it
        looks like."""
        since = self.heard_at - LATELY_S - 1.0  # messages come a little late
        before = next((body for at, body in self.told if at >= since), self.last)
        found = self.last if before is self.last else self.last.since(before)
        pending = found.pending or "other"
        return replace(found, stall_s={**found.stall_s, pending: found.stall_s[pending] + (found.pending_s or 0.0)})


class MeterBoard:
    """The processes heard from last. Not thread-safe: the event loop's only."""

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock
        self._began_at = clock()
        self._meters: OrderedDict[ReaderName, _MeteredProcess] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MeterBoard {len(self._meters)} processes>"

    def take(self, reader: ReaderName, body: MeterBody) -> None:
        """``reader`` has told its totals. The one unheard for longest makes room."""
        now = self._clock()
        meter = self._meters.get(reader)
        if meter is None:
            meter = self._meters[reader] = _MeteredProcess()
            # What a process did before this sidecar was there is not of this sidecar's counters: they would leap by hours.
            before = body if body.wall_s > now - self._began_at else None
            if len(self._meters) > MOST_METERS:
                self._meters.popitem(last=False)
        else:
            before = meter.last
        self._meters.move_to_end(reader)
        meter.told.append((now, body))
        meter.ended = False
        self._events.emit(MeterTold(reader, body.since(before)))

    def end(self, reader: ReaderName) -> None:
        """The process of ``reader`` is about to end."""
        if reader in self._meters:
            self._meters[reader].ended = True

    def rows(self, job: str | None = None, within_s: float = SILENCE_S) -> list[dict[str, Any]]:
        """One object a process (of ``job``) heard from within ``within_s``, those that train first, in the order of jobs and ranks.

        ``silent``: a sentence where it was in its loop and tells nothing any more, else ""; ``lately``: the last minute's sums;
        ``unequal``: a sentence where it seems to wait for ranks that have ended, else None.
        """
        unequal = self._unequal()
        shown = sorted(self._shown(job, within_s), key=lambda each: _place(each[0]))
        rows = [{**self._row(reader, meter), "unequal": unequal.get(reader)} for reader, meter in shown]
        return sorted(rows, key=lambda row: bool(row["ended"] or row["silent"]))

    def _unequal(self) -> dict[ReaderName, str]:
        """Sentences on ranks that stand in a step, since others have ended; of a rank's processes the one heard last counts."""
        last = {(reader.job, reader.rank): (reader, meter) for reader, meter in self._meters.items()}
        now, jobs = self._clock(), dict[str, dict[ReaderName, _RankStand]]()
        for reader, meter in last.values():
            jobs.setdefault(reader.job, {})[reader] = _RankStand(meter.last, now - meter.heard_at)
        return dict(found for stands in jobs.values() if (found := _unequal_steps(stands)))

    def _shown(self, job: str | None, within_s: float) -> Iterator[tuple[ReaderName, _MeteredProcess]]:
        now = self._clock()
        for reader, meter in self._meters.items():
            if now - meter.heard_at <= within_s and job in (None, reader.job):
                yield reader, meter

    def _row(self, reader: ReaderName, meter: _MeteredProcess) -> dict[str, Any]:
        body, silent_s = meter.last, self._clock() - meter.heard_at
        # In a loop it tells every ten seconds, however long a step takes. Beyond its end it may validate for an hour, and tells nothing.
        in_loop = body.step_s is not None or bool(body.pending)
        gone = silent_s > SILENCE_S and in_loop and not meter.ended
        return {
            "reader": str(reader),
            "job": reader.job,
            "rank": reader.rank,
            "silent_s": silent_s,
            "silent": f"silent for {silent_s // 60:.0f} min: killed, or hung?" if gone else "",
            "ended": meter.ended,
            "batch_size": body.batch_size,
            "workers": body.workers,
            "idle_cores": body.idle_cores,
            "slowest_worker": body.slowest_worker,
            "slowest_shard": None if body.slowest_shard is None else shown_set(body.slowest_shard),
            "slowest_function": body.slowest_function,
            **_sums(body),
            "lately": _sums(meter.lately()),
        }


def _sums(body: MeterBody) -> dict[str, Any]:
    return {
        "wall_s": body.wall_s,
        "stall_s": dict(body.stall_s),
        "reader_wait_s": dict(body.reader_wait_s),
        "steps": body.steps,
        "samples": body.samples,
        "skipped": body.skipped,
    }


def _place(reader: ReaderName) -> tuple[object, ...]:
    """Rank 10 behind rank 9."""
    return reader.job, len(reader.rank), reader.rank, reader.worker, reader.opener
