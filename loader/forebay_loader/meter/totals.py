"""The totals of the meter: how long a training process has waited for its data. Totals can be subtracted, sent, and
printed as a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from forebay_proxy.wire.protocol.verdict import Levels, Verdict, verdict

__all__ = ["StallTotals", "WorkerStall"]

NO_STALL = 0.02  # share of the wall time: less is only the cost of handing over batches
_LEAST_SHARE = 0.05  # share of the stall: causes with less are not named, except the largest


@dataclass(frozen=True)
class WorkerStall:
    """How long the trainer waited for this worker's batches, in seconds. ``worker`` is -1 for the process itself (``num_workers=0``).

    ``shard``: what the worker read during the last wait. ``function``: a cause, a tab, and the function that the worker ran for it. Both
    are "" if not known.
    """

    pid: int
    worker: int
    stall_s: float
    shard: str = ""
    function: str = ""


@dataclass(frozen=True)
class StallTotals:
    """How long the trainer has waited for its loaders, since its first request for a batch or between two calls (``since``).

    ``str()`` of it is one sentence.

    - ``wall_s``: seconds in which a loader was being read. The time between the end of one pass and the start of the next does not count.
    - ``stall_s``: cause to seconds inside ``next(loader)`` and the start of the workers. The causes are those of docs/stalls.md.
    - ``pending_s``: seconds of stall whose cause is not known yet. They move to ``stall_s`` within moments.
    - ``pending_cause``: the probable cause of that stall; "" if there is none.
    - ``reader_wait_s``: cause to seconds in which workers waited for bytes, summed over workers. Prefetched batches may hide them.
    - ``steps``: batches that the trainer has got.
    - ``samples``: samples in them.
    - ``batch_size``: samples of the last batch; None before the first.
    - ``bytes``: bytes that the workers have read.
    - ``skipped``: shards, files and samples that handlers skipped in the workers.
    - ``workers``: the workers that the trainer waited for.
    - ``idle_cores``: how many cores that this process may use were idle in the last ten seconds; None before that was measured.
    """

    wall_s: float = 0.0
    stall_s: Mapping[str, float] = field(default_factory=dict)
    pending_s: float = 0.0
    pending_cause: str = ""
    reader_wait_s: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    samples: int = 0
    batch_size: Optional[int] = None
    bytes: int = 0
    skipped: int = 0
    workers: Tuple[WorkerStall, ...] = ()
    idle_cores: Optional[float] = None

    @property
    def total_stall_s(self) -> float:
        """All of the stall, of known and unknown cause."""
        return sum(self.stall_s.values()) + self.pending_s

    @property
    def share(self) -> float:
        """The stall's part of the wall time, 0 to 1."""
        return min(1.0, self.total_stall_s / self.wall_s) if self.wall_s > 0 else 0.0

    @property
    def batch_s(self) -> float:
        """A step's mean wall time: OpenCLIP's ``Batch (t)``. 0 without a step."""
        return self.wall_s / self.steps if self.steps else 0.0

    @property
    def data_s(self) -> float:
        """A step's mean stall: OpenCLIP's ``Data (t)``. 0 without a step."""
        return self.total_stall_s / self.steps if self.steps else 0.0

    @property
    def cause(self) -> str:
        """The cause of most of the stall; "" if there was none."""
        return max(self.stall_s, key=lambda cause: self.stall_s[cause], default="")

    @property
    def slowest(self) -> Optional[WorkerStall]:
        """The worker that the trainer waited for longest."""
        return max(self.workers, key=lambda one: one.stall_s, default=None)

    @property
    def slowest_worker(self) -> Optional[int]:
        return None if self.slowest is None else self.slowest.worker

    @property
    def slowest_shard(self) -> str:
        return "" if self.slowest is None else self.slowest.shard

    @property
    def function(self) -> str:
        """The function of the slowest worker that takes most of the cause's time, such as ``augment (train.py:41)``; "" if not known."""
        cause, _, function = ("" if self.slowest is None else self.slowest.function).partition("\t")
        return function if cause == self.cause else ""

    @property
    def verdict(self) -> Verdict:
        """How bad the stall is and what to do, as far as this process knows. The sidecar knows more about origins."""
        pending = self.pending_cause or self.cause or "other"
        stalls = {**self.stall_s, pending: max(0.0, self.stall_s.get(pending, 0.0) + self.pending_s)}
        where = self._where().strip(" ()")
        workers = len(self.workers) or None
        return verdict(
            Levels(stalls, self.wall_s, where, workers=workers, idle_cores=self.idle_cores, span="of the time", function=self.function)
        )

    def since(self, earlier: StallTotals) -> StallTotals:
        """The difference to ``earlier`` totals of the same process."""
        before = {one.pid: one.stall_s for one in earlier.workers}
        workers = tuple(replace(one, stall_s=one.stall_s - before.get(one.pid, 0.0)) for one in self.workers)
        return replace(
            self,
            wall_s=self.wall_s - earlier.wall_s,
            stall_s=_less(self.stall_s, earlier.stall_s),
            pending_s=self.pending_s - earlier.pending_s,
            reader_wait_s=_less(self.reader_wait_s, earlier.reader_wait_s),
            steps=self.steps - earlier.steps,
            samples=self.samples - earlier.samples,
            bytes=self.bytes - earlier.bytes,
            skipped=self.skipped - earlier.skipped,
            workers=tuple(one for one in workers if one.stall_s > 0),
        )

    def as_json(self) -> Dict[str, Any]:
        """The fields and derived numbers, for ``json.dumps``."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "workers"}
        found["stall_s"], found["reader_wait_s"] = dict(self.stall_s), dict(self.reader_wait_s)
        more = ("batch_s", "data_s", "slowest_worker", "slowest_shard")
        return {**found, **{name: getattr(self, name) for name in more}}

    def __str__(self) -> str:
        if not self.wall_s:
            return "no batch was asked for yet"
        found = f"stall {100 * self.share:.1f} % of {self.wall_s:.0f} s"
        if self.share < NO_STALL:
            return f"{found}: the trainer sets the pace"
        do = self.verdict.advice
        return f"{found}: {self._causes()}{self._where()}{f'; {do}' if do else ''}"

    def _causes(self) -> str:
        total = self.total_stall_s
        shares = sorted(((seconds / total, cause) for cause, seconds in self.stall_s.items()), reverse=True)
        named = [one for at, one in enumerate(shares) if not at or one[0] >= _LEAST_SHARE]
        return ", ".join(f"{100 * share:.0f} % {cause}" for share, cause in named) or "of a cause that is not known yet"

    def _where(self) -> str:
        slowest = self.slowest
        if slowest is None:
            return ""
        who = "in this process" if slowest.worker < 0 else f"worker {slowest.worker}"
        return f" ({who}, shard {slowest.shard})" if slowest.shard else f" ({who})"


def _less(later: Mapping[str, float], earlier: Mapping[str, float]) -> Dict[str, float]:
    """The differences that are not 0."""
    found = {cause: seconds - earlier.get(cause, 0.0) for cause, seconds in later.items()}
    return {cause: seconds for cause, seconds in found.items() if seconds > 0}
