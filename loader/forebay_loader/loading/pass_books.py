"""Records, for one pass of a loader, which worker made which batch, and the state of each worker's data set after it.

Records older than any state that may still be asked for are dropped.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Callable, Deque, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.base.carrier import Carried
from forebay_loader.loading.loader_start import LoaderStart
from forebay_loader.resume.cursor import Taken
from forebay_loader.resume.pass_state import NUMBER_BYTES, packed, unpacked

__all__ = ["PassBooks"]

_COLUMNS = ("shards", "firsts", "ordinals")
Handed = Callable[[int, "array[int]"], "array[int]"]


class _WorkerEntry(NamedTuple):
    """``batches`` of one worker with ``outputs`` of its data set. The last of them is number ``at`` of the pass.

    ``state`` is that of the data set after them. ``taken`` has the ordinals of their samples and the shards that were begun.
    """

    at: int
    batches: int
    outputs: int
    taken: Taken
    state: Optional[Mapping[str, Any]]


class PassBooks:
    """The records of one pass over a DataLoader with ``workers``, which continues from ``start``. ``workers`` is 1 if the training process
    reads.

    ``epoch`` is the expected epoch of the pass, until its first batch tells.
    """

    def __init__(self, workers: int, epoch: int, start: Optional[LoaderStart] = None) -> None:
        self.at = 0  # number of batches that have come
        self.epoch = epoch
        self.why = ""  # why the pass cannot be resumed; "" if it can
        self._logs: list[Deque[_WorkerEntry]] = [deque() for _ in range(max(1, workers))]
        self._first = 0 if start is None else start.next
        self._told = [(0, 0, 0)] * len(self._logs)  # what each worker will report again, and in which pass: its data set makes it again
        for one in () if start is None else start.states:
            log, taken = self._logs[one["worker"]], _taken(one)
            log.append(_WorkerEntry(0, 0, 0, Taken.nothing(), one["state"]))
            log.append(_WorkerEntry(0, one["since"], one["outputs"], taken, None))
            self._told[one["worker"]] = len(taken.ordinals), len(taken.begun), one["state"].get("turn", 0)  # the ordinals in bytes

    def __repr__(self) -> str:
        return f"<PassBooks of epoch {self.epoch}, {self.at} batches, {sum(map(len, self._logs))} entries>"

    def took(self, carried: Carried, oldest: int) -> None:
        """Record the next batch. No state before the first ``oldest`` batches will be asked for again."""
        self.at += 1
        taken = Taken(*carried.taken)
        ordinals, begun, turn = self._told[carried.worker]
        if ordinals or begun:
            if carried.state is not None and carried.state.get("turn", 0) != turn:
                begun = 0  # these are shards of a later pass
            taken = taken._replace(ordinals=taken.ordinals[ordinals:], begun=taken.begun[begun:])
            self._told[carried.worker] = (0, 0, 0)
        log = self._logs[carried.worker]
        log.append(_WorkerEntry(self.at, 1, carried.outputs, taken, carried.state))
        self.why = self.why or carried.why
        if carried.state is not None:
            self.epoch = int(carried.state["epoch"])
            for each in self._logs:
                _forget(each, oldest)

    def turn(self, at: int) -> int:
        """The worker that makes the next batch after the first ``at``."""
        last = {next((one.at for one in reversed(log) if one.at <= at), 0): worker for worker, log in enumerate(self._logs)}
        return (last[max(last)] + 1) % len(self._logs) if max(last) else self._first

    def states(self, at: int, upto: int, handed: Optional[Handed] = None) -> list[dict[str, Any]]:
        """For each worker with any of the first ``at`` batches: its last state among these, and what it has handed out since.

        Workers restart after batch ``at``. The trainer has had samples of the batches up to ``upto``: those that ``handed`` returns.
        """
        found = (_state(worker, log, at, upto, handed) for worker, log in enumerate(self._logs))
        return [one for one in found if one is not None]

    def unstated(self, at: int, upto: int, handed: Optional[Handed] = None) -> list[dict[str, Any]]:
        """For each worker that restarts from its beginning, since it has no state in the first ``at`` batches: what the trainer has had of
        it.

        Workers do not need this. ``fb.merge_states`` does.
        """
        found = (_unstated(worker, log, at, upto, handed) for worker, log in enumerate(self._logs))
        return [one for one in found if one is not None]


def _unstated(worker: int, log: Deque[_WorkerEntry], at: int, upto: int, handed: Optional[Handed]) -> Optional[dict[str, Any]]:
    had = [one for one in log if one.at <= upto]
    first = next((one.state for one in log if one.state is not None), None)
    if not had or first is None or any(one.at <= at and one.state is not None for one in had):
        return None
    return {"worker": worker, "first": dict(first), **_told(had, first, at, handed)}


def _forget(log: Deque[_WorkerEntry], oldest: int) -> None:
    """Drop the entries before the last state that may be asked for."""
    states = [number for number, entry in enumerate(log) if entry.state is not None and entry.at <= oldest]
    for _ in range(states[-1] if states else 0):
        log.popleft()


def _state(worker: int, log: Deque[_WorkerEntry], at: int, upto: int, handed: Optional[Handed]) -> Optional[dict[str, Any]]:
    since: list[_WorkerEntry] = []
    for entry in reversed(log):
        if entry.at > upto:
            continue
        if entry.at <= at and entry.state is not None:
            return {"worker": worker, "state": dict(entry.state), **_told(since[::-1], entry.state, at, handed)}
        since.append(entry)
    return None


def _told(entries: Sequence[_WorkerEntry], state: Mapping[str, Any], at: int, handed: Optional[Handed]) -> dict[str, Any]:
    """What came since ``state``, in its pass of the data set.

    If the trainer has had samples of a later pass too, ``beyond`` is what came of that pass, with the state after its first batch. It is
    None if samples of an earlier pass are still held: no state of one pass can say that.
    """
    passes: list[list[_WorkerEntry]] = [[]]
    turn = state.get("turn")
    for one in entries:
        if one.state is not None and one.state.get("turn") != turn:
            turn = one.state.get("turn")
            passes.append([])
        passes[-1].append(one)
    while len(passes) > 1 and not any(_handed(one, at, handed) for one in passes[-1]):
        passes.pop()
    found, last = _since(passes[0], at, handed), passes[-1]
    if len(passes) > 1:
        before = [one for each in passes[:-1] for one in each]
        rests = (_ordinals(last[0]).count(-1), _handed(last[0], at, handed).count(-1))  # of the pass before, in the first batch of this
        whole = rests[0] == rests[1] and all(len(_handed(one, at, handed)) == len(_ordinals(one)) for one in before)
        found["beyond"] = {"first": dict(last[0].state or {}), **_since(last, at, handed)} if whole else None
    return found


def _ordinals(entry: _WorkerEntry) -> "array[int]":
    return array("i", entry.taken.ordinals)


def _handed(entry: _WorkerEntry, at: int, handed: Optional[Handed]) -> "array[int]":
    """The samples of this entry that the trainer has had."""
    ordinals = _ordinals(entry)
    return ordinals if entry.at <= at or handed is None else handed(entry.at, ordinals)


def _since(entries: Sequence[_WorkerEntry], at: int, handed: Optional[Handed]) -> dict[str, Any]:
    gone = [one for one in entries if one.at <= at]
    found: dict[str, Any] = {"since": sum(one.batches for one in gone), "outputs": sum(one.outputs for one in gone)}
    items = [item for one in entries for item in one.taken.begun]
    found["samples"] = sum(len(one.taken.ordinals) // NUMBER_BYTES for one in gone)
    found["handed"] = packed(ordinal for one in entries for ordinal in _handed(one, at, handed) if ordinal >= 0)
    found["items"] = sum(len(one.taken.begun) for one in gone)
    for place, name in enumerate(_COLUMNS):
        found[name] = packed(item[place] for item in items)
    found["etags"] = {str(item): etag for one in entries for item, etag in one.taken.etags.items()}
    if gone and gone[-1].taken.read >= 0:
        found["read"], found["held"] = gone[-1].taken.read, gone[-1].taken.held
    return found


def _taken(entry: Mapping[str, Any]) -> Taken:
    """What the batches before the state's position were made of. They are made again; later ones are read again and reported again."""
    columns = [unpacked(entry[name]) for name in _COLUMNS]
    items = tuple(zip(*columns))  # noqa: B905  # strict= is not of 3.9
    etags = {int(item): etag for item, etag in entry["etags"].items()}
    handed = unpacked(entry["handed"])[: entry["samples"]].tobytes()
    return Taken(handed, items[: entry["items"]], etags, entry.get("read", -1), entry.get("held", -1))
