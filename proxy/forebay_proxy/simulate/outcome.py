"""Runs a workload against a simulated cache, and says what it cost. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forebay_proxy.core.events import Events, Fact
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.simulate.ahead import SimulatedAnnouncer, Unheard
from forebay_proxy.simulate.clock import SimulatedClock
from forebay_proxy.simulate.origin import SimulatedLine, SimulatedOrigin
from forebay_proxy.simulate.policies import POLICIES, CachePolicy, LeastRecent, Never, Ours
from forebay_proxy.simulate.readers import Announcing, SimulatedReader
from forebay_proxy.simulate.workload import Script, Workload
from forebay_proxy.simulate.world import SimulatedWorld

__all__ = ["EpochEnded", "SimulatedEpoch", "SimulatedOutcome", "SimulatedRun", "replay"]


@dataclass(frozen=True, slots=True)
class EpochEnded(Fact):
    """All readers of a job have ended an epoch."""

    job: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SimulatedEpoch:
    """What happened between the end of the epoch before and the moment when the last reader had ended this one."""

    read_bytes: int
    origin_bytes: int
    waited_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """One policy's figures. ``waited_s`` is summed over the readers."""

    policy: str
    capacity_bytes: int
    dataset_bytes: int
    readers: int
    read_bytes: int
    origin_bytes: int
    waited_s: float
    seconds: float
    peak_bytes: int
    evicted_unread_bytes: int
    bypassed_segments: int
    epochs: tuple[SimulatedEpoch, ...]

    @property
    def hit_bytes(self) -> int:
        """Bytes read that no origin had to send, as ``bytes.saved`` of ``/v1/status``: what is read ahead of need was sent all the same."""
        return max(0, self.read_bytes - self.origin_bytes)

    @property
    def hit_ratio(self) -> float:
        return self.hit_bytes / self.read_bytes if self.read_bytes else 0.0

    @property
    def wait_ratio(self) -> float:
        """Of the readers' time, how much they waited."""
        return self.waited_s / (self.readers * self.seconds) if self.seconds else 0.0


class EpochsLeft:
    """Who has yet to end which epoch, by the numbers that epochs have in all jobs."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self._of_job: Counter[tuple[str, int]] = Counter()  # (job, epoch) -> readers that have not ended it
        self._of_all: Counter[int] = Counter()  # epoch -> the same over all jobs
        for script in scripts:
            for number in map(script.number, range(len(script.epochs))):
                self._of_job[script.reader.job, number] += 1
                self._of_all[number] += 1

    def ended(self, job: str, number: int) -> tuple[bool, bool]:
        """A reader has ended an epoch: whether it was the last one of its job, and of all."""
        self._of_job[job, number] -= 1
        self._of_all[number] -= 1
        return not self._of_job[job, number], not self._of_all[number]


class SimulatedRun:
    """One simulation, step by step: tests look at it between two events."""

    def __init__(
        self, workload: Workload, line: SimulatedLine, capacity_bytes: int, policy: str = "ours", *, overhead_bytes: int = 0
    ) -> None:
        """``overhead_bytes``: of the capacity, what the sidecar's own index and log take. Raises ``ValueError`` for an unknown policy."""
        self.workload = workload
        self.policy = policy
        self.clock = SimulatedClock()
        self.events = Events()
        self.plans = PlanRegistry(self.clock, self.events)
        self.keeping = self._keeping(policy, capacity_bytes)
        self.keeping.ledger.overhead_bytes = overhead_bytes
        self.world = SimulatedWorld(self.clock, self.keeping, SimulatedOrigin(self.clock, line), workload.lengths.__getitem__, self.events)
        self._announcing = self._told()
        self.readers = {
            script.reader: SimulatedReader(self.world, script, self._announcing, self._epoch_read) for script in workload.scripts
        }
        self._left = EpochsLeft(workload.scripts)
        self._epochs: list[SimulatedEpoch] = []
        self._following: dict[str, list[Script]] = {}  # job -> who begins when it has ended
        for script in workload.scripts:
            if script.after is None:
                self.clock.at(script.begins_at, self._beginning(script, 0))
            else:
                self._following.setdefault(script.after, []).append(script)

    def __repr__(self) -> str:
        return f"<SimulatedRun {self.policy}, {self.world!r}>"

    def _keeping(self, policy: str, capacity_bytes: int) -> CachePolicy:
        match policy:
            case "ours":
                return Ours(capacity_bytes, self.plans, self.clock, self.events)
            case "lru":
                return LeastRecent(capacity_bytes)
            case "never-evict":
                return Never(capacity_bytes)
            case _:
                raise ValueError(f"{policy!r} is no policy of the simulator; known are {', '.join(POLICIES)}")

    def _told(self) -> Announcing:
        return (
            SimulatedAnnouncer(self.world, self.plans, self.keeping, self.workload, self.events)
            if isinstance(self.keeping, Ours)
            else Unheard()
        )

    def _beginning(self, script: Script, epoch: int) -> Callable[[], None]:
        def begin() -> None:
            self.readers[script.reader].begin(epoch)
            self._follow(script.reader.job)

        return begin

    def _follow(self, job: str) -> None:
        """Begin the jobs that wait for the end of ``job``, if ``job`` has ended."""
        if job in self._following and all(reader.ended for name, reader in self.readers.items() if name.job == job):
            for script in self._following.pop(job):
                self.clock.at(self.clock.now + script.begins_at, self._beginning(script, 0))

    def _epoch_read(self, script: Script, epoch: int) -> None:
        job, number = script.reader.job, script.number(epoch)
        last_of_job, last_of_all = self._left.ended(job, number)
        if last_of_all:
            self._epochs.append(self._since(self._epochs))
        if last_of_job:
            self.events.emit(EpochEnded(job, number))
        if not self.workload.barrier:
            self.clock.at(self.clock.now, self._beginning(script, epoch + 1))
        elif last_of_job:
            for other in self.workload.scripts:
                place = other.place(number) if other.reader.job == job else None
                if place is not None:
                    self.clock.at(self.clock.now, self._beginning(other, place + 1))

    def _since(self, before: Sequence[SimulatedEpoch]) -> SimulatedEpoch:
        return SimulatedEpoch(
            self.world.tally.counts["read_bytes"] - sum(epoch.read_bytes for epoch in before),
            self.world.origin.sent_bytes - sum(epoch.origin_bytes for epoch in before),
            self.waited_s - sum(epoch.waited_s for epoch in before),
            self.clock.now - sum(epoch.seconds for epoch in before),
        )

    @property
    def waited_s(self) -> float:
        return sum(reader.waited_s for reader in self.readers.values())

    @property
    def ended(self) -> bool:
        """Whether every reader has read everything."""
        return all(reader.ended for reader in self.readers.values())

    def finish(self) -> SimulatedOutcome:
        """To the end. Raises ``RuntimeError`` when a reader is left waiting, which would be a fault of the simulator or of the rules."""
        while self.clock.step():
            pass
        if not self.ended:
            waiting = next(reader for reader in self.readers.values() if not reader.ended)
            raise RuntimeError(f"{waiting!r} never came to its end: {self.world!r}")
        return self.outcome()

    def outcome(self) -> SimulatedOutcome:
        """The figures so far."""
        world, ledger = self.world, self.keeping.ledger
        return SimulatedOutcome(
            self.policy, ledger.capacity_bytes, self.workload.dataset_bytes, len(self.readers),
            world.tally.counts["read_bytes"], world.origin.sent_bytes, self.waited_s,
            sum(epoch.seconds for epoch in self._epochs), ledger.peak_bytes, world.tally.counts["evicted_unread_bytes"],
            world.tally.counts["bypassed"], tuple(self._epochs),
        )  # fmt: skip


def replay(
    workload: Workload, line: SimulatedLine, capacity_bytes: int, policies: Sequence[str] = POLICIES, *, overhead_bytes: int = 0
) -> list[SimulatedOutcome]:
    """What each of ``policies`` makes of the same readers, line and capacity."""
    return [SimulatedRun(workload, line, capacity_bytes, policy, overhead_bytes=overhead_bytes).finish() for policy in policies]
