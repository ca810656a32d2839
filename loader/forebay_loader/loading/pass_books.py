"""Which batch of one pass came from which worker, and where each worker's data set stood: as far back as a state may be asked for."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Deque, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.base.carrier import Carried
from forebay_loader.loading.loader_start import LoaderStart
from forebay_loader.resume.arrays import packed, unpacked

__all__ = ["PassBooks"]


class _WorkerEntry(NamedTuple):
    """``batches`` of one worker that hold ``outputs`` of its data set; the last of them is the ``at``-th of the pass. ``state`` is that
    after them. ``taken`` are the ordinals of their samples, and the items that were begun: (shard, first, ordinal).
    """

    at: int
    batches: int
    outputs: int
    taken: Optional[Sequence[Any]]
    state: Optional[Mapping[str, Any]]


class PassBooks:
    """Of one pass over a DataLoader with ``workers`` (1 where the training process reads itself), which goes on from ``start``.

    ``epoch`` is what the pass is taken to be of, until its first batch tells.
    """

    def __init__(self, workers: int, epoch: int, start: Optional[LoaderStart] = None) -> None:
        self.at = 0  # batches that came
        self.epoch = epoch
        self.why = ""  # nothing can be resumed
        self._logs: list[Deque[_WorkerEntry]] = [deque() for _ in range(max(1, workers))]
        self._first = 0 if start is None else start.next
        for one in () if start is None else start.states:
            log = self._logs[one["worker"]]
            log.append(_WorkerEntry(0, 0, 0, None, one["state"]))
            log.append(_WorkerEntry(0, one["since"], one["outputs"], _taken(one), None))

    def __repr__(self) -> str:
        return f"<PassBooks of epoch {self.epoch}, {self.at} batches, {sum(map(len, self._logs))} entries>"

    def took(self, carried: Carried, oldest: int) -> None:
        """The next batch came. Nobody will ask for less than the first ``oldest`` batches any more."""
        self.at += 1
        log = self._logs[carried.worker]
        log.append(_WorkerEntry(self.at, 1, carried.outputs, carried.taken, carried.state))
        self.why = self.why or carried.why
        if carried.state is not None:
            self.epoch = int(carried.state["epoch"])
            for each in self._logs:
                _forget(each, oldest)

    def turn(self, at: int) -> int:
        """Whose turn it is after the first ``at`` batches."""
        last = {_last(log, at): worker for worker, log in enumerate(self._logs)}
        return (last[max(last)] + 1) % len(self._logs) if max(last) else self._first

    def states(self, at: int) -> list[dict[str, Any]]:
        """Of each worker that has handed out any of the first ``at`` batches: its last state before, and what it has handed out since."""
        found = (_state(worker, log, at) for worker, log in enumerate(self._logs))
        return [one for one in found if one is not None]


def _forget(log: Deque[_WorkerEntry], oldest: int) -> None:
    """What comes before the last state that could be asked for."""
    states = [number for number, entry in enumerate(log) if entry.state is not None and entry.at <= oldest]
    for _ in range(states[-1] if states else 0):
        log.popleft()


def _last(log: Deque[_WorkerEntry], at: int) -> int:
    return next((entry.at for entry in reversed(log) if entry.at <= at), 0)


def _state(worker: int, log: Deque[_WorkerEntry], at: int) -> Optional[dict[str, Any]]:
    since: list[_WorkerEntry] = []
    for entry in reversed(log):
        if entry.at > at:
            continue
        if entry.state is not None:
            return {"worker": worker, "state": dict(entry.state), **_since(since[::-1])}
        since.append(entry)
    return None


def _since(entries: Sequence[_WorkerEntry]) -> dict[str, Any]:
    found: dict[str, Any] = {"since": sum(one.batches for one in entries), "outputs": sum(one.outputs for one in entries)}
    if any(one.taken is not None for one in entries):
        taken = [one.taken for one in entries if one.taken is not None]
        items = [item for _, begun in taken for item in begun]
        found["handed"] = packed([ordinal for ordinals, _ in taken for ordinal in ordinals])
        for place, name in enumerate(("shards", "firsts", "ordinals")):
            found[name] = packed([item[place] for item in items])
    return found


def _taken(entry: Mapping[str, Any]) -> Optional[Sequence[Any]]:
    if "handed" not in entry:
        return None
    columns = [unpacked(entry[name], name) if name in entry else array("i") for name in ("shards", "firsts", "ordinals")]
    return unpacked(entry["handed"], "handed"), list(zip(*columns))  # noqa: B905  # strict= is not of 3.9
