"""A simulated reader: opens its shards in order, takes their bytes at its rate, asks a little ahead within a shard. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forebay_proxy.simulate.policies import Light
from forebay_proxy.simulate.workload import Script
from forebay_proxy.simulate.world import SimulatedFetch, SimulatedWorld

__all__ = ["Announcing", "SimulatedReader"]

FIRST_BREADTH = 2  # as in reading.py (a test compares them)


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
        self._epoch = self._position = self._index = 0
        self._entry: Light | None = None
        self._leased: set[int] = set()
        self._segments_read = 0
        self._entered_at = 0.0
        self._rate: float | None = None  # bytes a second, in this shard
        self._opened_in = 0  # the optimum's moment
        self._asked_to = -1  # the highest segment of this shard that it asked for
        self._is_bypassing = False
        world.inside_asks.append(self.ask_again)

    def __repr__(self) -> str:
        return f"<SimulatedReader {self.script.reader} at {self._epoch}/{self._position}/{self._index}, {self._entry!r}>"

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
        self._entry = entry = self._world.entry(shard)
        entry.in_use.readers += 1
        self._world.inside += 1
        self._announcing.opens(self.script, self._epoch, self._position)
        self._opened_in = self._world.optimum.moment
        self._segments_read, self._index, self._asked_to = 0, -1, -1
        self._rate = self.script.pace(self._epoch, self._position, entry.length)
        self._world.keeping.touch(entry)
        self._next_segment()

    def _close(self, entry: Light) -> None:
        last = entry.segments.layout.count(entry.length) - 1
        if last >= 0:
            self._world.optimum.read(entry.key, 0, last, entry.length, self._opened_in)
        for index in self._leased:
            self._world.release(entry, index)
        self._leased.clear()
        self._entry = None
        entry.in_use.readers -= 1
        self._world.inside -= 1
        self._world.keeping.touch(entry)
        self._world.forget(entry)

    # Segments

    def _next_segment(self) -> None:
        entry = self._entry
        assert entry is not None, "inside a shard"
        self._index += 1
        if self._index >= entry.segments.layout.count(entry.length):
            self._close(entry)
            self._next_shard()
            return
        self._entered_at = self._world.clock.now
        self._lease(entry, self._index)
        for passed in [held for held in self._leased if held < self._index]:
            self._leased.discard(passed)
            self._world.release(entry, passed)
        flying = self._reached(entry, self._index)
        self._is_bypassing = flying is not None and flying.grant is None
        if flying is None:
            self._ask_ahead(entry)
            self._world.clock.at(self._done_at(entry, self._entered_at), self._passed)
            return
        self.waiting_for = flying
        flying.landed.append(lambda: self._came(flying))
        if entry.known:
            self._ask_ahead(entry)
        else:
            flying.answered.append(lambda: self._ask_ahead(entry))

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
        entry = self._entry
        if entry is not None and entry.known and self._asked_to <= self._index < entry.segments.layout.count(entry.length) - 1:
            self._ask_ahead(entry)

    def _ask_ahead(self, entry: Light) -> None:
        breadth = self._world.breadth(bypassing=self._is_bypassing)
        if not self._segments_read:
            breadth = min(breadth, FIRST_BREADTH)
        last = min(entry.segments.layout.count(entry.length) - 1, self._index + breadth - 1)
        for ahead in range(self._index + 1, last + 1):
            flying = self._world.flying(entry, ahead)
            if flying is not None:
                self._world.hurry(flying, float(ahead - self._index))
            elif not entry.segments.has(ahead) and not self._world.demand_inside(
                entry, ahead, float(ahead - self._index), self.script.reader
            ):
                return
            self._lease(entry, ahead)
            self._asked_to = ahead

    def _came(self, flying: SimulatedFetch) -> None:
        """The segment it is in has landed: it read behind the watermark, from the first byte on, no faster than its rate."""
        self.waiting_for = None
        request = flying.request
        assert request.answered_at is not None, "a body ends after its answer"
        alone_at = self._done_at(flying.entry, self._entered_at)
        done_at = max(self._world.clock.now, self._done_at(flying.entry, max(self._entered_at, request.answered_at)))
        if done_at > alone_at:
            self.waited_s += done_at - alone_at
            self._announcing.waited(self.script)
        self._world.clock.at(done_at, self._passed)

    def _done_at(self, entry: Light, begun_at: float) -> float:
        size = entry.segments.span(self._index)[1]
        return begun_at + (size / self._rate if self._rate else 0.0)

    def _passed(self) -> None:
        self._segments_read += 1
        self._next_segment()

    def _lease(self, entry: Light, index: int) -> None:
        if index not in self._leased:
            self._leased.add(index)
            self._world.lease(entry, index)
