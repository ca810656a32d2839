"""A simulated reader: opens its shards in order, takes their bytes at its rate, asks a little ahead within a shard. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forebay_proxy.core.segments import read_ahead_breadth
from forebay_proxy.simulate.policies import Light
from forebay_proxy.simulate.workload import Script
from forebay_proxy.simulate.world import SimulatedFetch, SimulatedWorld

__all__ = ["Announcing", "SimulatedReader"]


class Announcing(Protocol):
    """The part that hears what readers do."""

    def begins(self, script: Script, epoch: int) -> None:
        """A reader begins an epoch: what it announces then."""
        ...

    def opens(self, script: Script, epoch: int, position: int) -> None:
        """A reader opens the shard at ``position`` of an epoch."""
        ...

    def waited(self, script: Script) -> None:
        """A reader waited for bytes."""
        ...

    def ends(self, script: Script) -> None:
        """A reader has read everything."""
        ...


@dataclass(slots=True, eq=False)
class ShardVisit:
    """One simulated reader inside one shard. ``index`` is the segment it is in, -1 before the first."""

    entry: Light
    bytes_s: float | None  # how fast it reads; None: at once
    index: int = -1
    entered_at: float = 0.0  # the segment it is in
    segments_read: int = 0
    asked_to: int = -1  # the highest segment that it asked for
    is_bypassing: bool = False
    leased: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        return self.entry.segments.layout.count(self.entry.length) - 1

    def done_at(self, begun_at: float) -> float:
        """When it has read the segment it is in, if it begins then and never waits."""
        size = self.entry.segments.span(self.index)[1]
        return begun_at + (size / self.bytes_s if self.bytes_s else 0.0)


class SimulatedReader:
    """One consumer, at the pace of its script."""

    def __init__(self, world: SimulatedWorld, script: Script, announcing: Announcing, epoch_read: Callable[[Script, int], None]) -> None:
        """``epoch_read`` is told when the reader has read an epoch, and calls ``begin`` for the next."""
        self.script = script
        self.waited_s = 0.0
        self.ended = False
        self.waiting_for: SimulatedFetch | None = None  # what brings the segment it is in
        self._world = world
        self._announcing = announcing
        self._epoch_read = epoch_read
        self._epoch = self._position = 0
        self._visit: ShardVisit | None = None
        world.inside_asks.append(self.ask_again)

    def __repr__(self) -> str:
        return f"<SimulatedReader {self.script.reader} at {self._epoch}/{self._position}, {self._visit!r}>"

    # Shards

    def begin(self, epoch: int) -> None:
        """Read an epoch; with nothing left to read, end."""
        if epoch >= len(self.script.epochs):
            self.ended = True
            self._announcing.ends(self.script)
            return
        moment = self.script.moment(epoch, 0)
        if moment > self._world.clock.now:  # it announces nothing before: where readers wait for each other, that would be half an epoch
            self._world.clock.at(moment, lambda: self._begin(epoch))
        else:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._position = epoch, -1
        self._announcing.begins(self.script, epoch)
        self._next_shard()

    def _next_shard(self) -> None:
        self._position += 1
        steps = self.script.epochs[self._epoch]
        if self._position == len(steps):
            self._epoch_read(self.script, self._epoch)
            return
        moment = self.script.moment(self._epoch, self._position)
        if moment > self._world.clock.now:
            self._world.clock.at(moment, self._open)
        else:
            self._open()

    def _open(self) -> None:
        shard = self.script.epochs[self._epoch][self._position]
        entry = self._world.entry(shard)
        entry.in_use.readers += 1
        self._world.inside += 1
        self._announcing.opens(self.script, self._epoch, self._position)
        pace = self.script.pace(self._epoch, self._position, entry.length)
        self._visit = visit = ShardVisit(entry, pace)
        self._world.keeping.touch(entry)
        self._next_segment(visit)

    def _close(self, visit: ShardVisit) -> None:
        entry = visit.entry
        for index in visit.leased:
            self._world.release(entry, index)
        self._visit = None
        entry.in_use.readers -= 1
        self._world.inside -= 1
        self._world.keeping.touch(entry)
        self._world.forget(entry)

    # Segments

    def _next_segment(self, visit: ShardVisit) -> None:
        visit.index += 1
        if visit.index > visit.last:
            self._close(visit)
            self._next_shard()
            return
        visit.entered_at = self._world.clock.now
        self._lease(visit, visit.index)
        for passed in [held for held in visit.leased if held < visit.index]:
            visit.leased.discard(passed)
            self._world.release(visit.entry, passed)
        flying = self._reached(visit.entry, visit.index)
        visit.is_bypassing = flying is not None and flying.grant is None
        if flying is None:
            self._ask_ahead(visit)
            self._world.clock.at(visit.done_at(visit.entered_at), lambda: self._passed(visit))
            return
        self.waiting_for = flying
        flying.landed.append(lambda: self._came(visit, flying))
        if visit.entry.known:
            self._ask_ahead(visit)
        else:
            flying.answered.append(lambda: self._ask_ahead(visit))

    def _reached(self, entry: Light, index: int) -> SimulatedFetch | None:
        """The flight that brings the segment; None: it is stored."""
        self._world.read(entry, index)
        if entry.segments.has(index):
            return None
        flying = self._world.flying(entry, index)
        if flying is None:
            return self._world.demand(entry, index, self.script.reader)
        self._world.hurry(flying, 0.0)
        return flying

    def ask_again(self) -> None:
        """As ``ShardReader.ask_again``: there may be room now for the next segment of the shard it is in."""
        visit = self._visit
        if visit is not None and visit.entry.known and visit.asked_to <= visit.index < visit.last:
            self._ask_ahead(visit)

    def _ask_ahead(self, visit: ShardVisit) -> None:
        entry = visit.entry
        breadth = read_ahead_breadth(entry.segments, visit.segments_read, lambda: self._world.breadth(bypassing=visit.is_bypassing))
        for ahead in range(visit.index + 1, min(visit.last, visit.index + breadth - 1) + 1):
            need, flying = float(ahead - visit.index), self._world.flying(entry, ahead)
            if flying is not None:
                self._world.hurry(flying, need)
            elif not entry.segments.has(ahead) and not self._world.demand_inside(entry, ahead, need, self.script.reader):
                return
            self._lease(visit, ahead)
            visit.asked_to = ahead

    def _came(self, visit: ShardVisit, flying: SimulatedFetch) -> None:
        """The segment it is in has landed: it read behind the watermark, from the first byte on, no faster than its rate."""
        self.waiting_for = None
        request = flying.request
        assert request.answered_at is not None, "a body ends after its answer"
        alone_at = visit.done_at(visit.entered_at)
        done_at = max(self._world.clock.now, visit.done_at(max(visit.entered_at, request.answered_at)))
        if done_at > alone_at:
            self.waited_s += done_at - alone_at
            self._announcing.waited(self.script)
        self._world.clock.at(done_at, lambda: self._passed(visit))

    def _passed(self, visit: ShardVisit) -> None:
        visit.segments_read += 1
        self._next_segment(visit)

    def _lease(self, visit: ShardVisit, index: int) -> None:
        if index not in visit.leased:
            visit.leased.add(index)
            self._world.lease(visit.entry, index)
