"""How often what happened in this process: one object, read by ``counters()``.

``fallback_total`` is the one to alarm on: each is a shard, or the rest of one, that had to go on without the sidecar.
"""

from __future__ import annotations

import os
import struct
import threading
from multiprocessing import context
from typing import Any, Optional

from forebay_loader.base.shared_memory import SharedPart, training_pid

__all__ = ["COUNTS", "SKIPPED", "LoaderCounts", "SharedMemoCounts", "counters", "share_memo_counts"]

NAMES = (
    "opened",  # shards opened through the sidecar
    "opened_descriptor",  # of them: as a descriptor
    "door_failed",  # shards that came over HTTP because the fd door did not answer as it should
    "descriptor_failed",  # shards whose file could not be read to its end (the cache's disk failed), and which went on over HTTP
    "opened_direct",  # shards whose first byte already came past it
    "resumed",  # broken streams that went on through the sidecar
    "resumed_direct",  # broken streams that went on past it
    "fallback_total",  # shards that lost the sidecar, at their opening or half-way
    "changed",  # ShardChanged raised
    "failed",  # ShardReadError and ProxyUnreachable raised
    "tar_faults",  # tars that end without their marker, go on after it, or hold an unreadable header
    "torn_samples",  # samples whose key came before another key of the same shard: parts of samples
    "links_left_out",  # hard and symbolic links to no earlier file of their tar, left out of their samples
    "skipped_open",  # shards that a handler passed over: they could not be opened
    "skipped_read",  # rests of shards, and files in them, that a handler passed over
    "skipped_decode",  # samples that a handler passed over: they could not be decoded
    "skipped_map",  # samples that a handler passed over in any later stage, webdataset's or a user's
    "skips_unwritten",  # of all these: those that are not in the file of skips, for it is full or cannot be written
    "bytes_proxy",  # of a shard that came as a descriptor: all of it, but for samples by number; what had to go on over HTTP counts again
    "bytes_direct",
    "plans_sent",
    "plans_failed",
    "meter_sent",  # totals of stalls that the sidecar took
    "meter_failed",
    "video_clips",  # decoded, of samples
    "video_frames",  # given, of whatever source
    "video_packets",  # handed to a decoder for them
    "video_bytes",  # of clips, read for their frames and sound: of a cold shard these travel
    "video_demuxed",  # MP4s that their own reader leaves to FFmpeg's demuxer: all of their bytes are read
    "video_corrupt",  # clips that cannot be decoded
    "video_cut",  # clips that are given, and by their containers may be parts of clips
    "video_unheard",  # clips that wds.torch_video gave without their sound, which cannot be read
    "video_timeout",  # clips that took longer than their time limit
    "video_scanned",  # clips whose motion and sound nobody knew, looked at when they were first used
    "video_replaced",  # of both: those another sample stood in for
    "memo_hits",  # results that were kept, and were given instead of making them
    "memo_made",  # results that were made, because they were not kept
    "memo_kept",  # of whichever process made them: written by this one
    "memo_dropped",  # results that were not kept: the queue to the writer was full, or the transform changed while it ran
    "memo_damaged",  # kept results that were not as they were written: made again
    "memo_off",  # stores that this process gave up: full, or failing
    "frames_hits",  # clips whose frames came from the store of fb.frames
    "frames_kept",  # clips all of whose frames were kept, told to this process by the process that fills
    "frames_dropped",  # clips that were not kept: the queue was full, or the process that fills could not use what lay there
    "frames_damaged",  # clips of which an entry was not as it was written: decoded again
    "frames_off",  # stores of frames that this process gave up, or that take no more
)
SKIPPED = ("skipped_open", "skipped_read", "skipped_decode", "skipped_map")  # of the names: those that together are all skips


class LoaderCounts:
    """Monotonic counters of one process; a forked child starts at zero, so that sums over processes are right."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """All are zero, as in a new process."""
        self._lock = threading.Lock()  # a new one: after a fork the old one may be held by a thread that is not here
        self._values = dict.fromkeys(NAMES, 0)

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._values[name] += amount
            if _SHARED is not None and name in MEMOS:
                _SHARED.add(name, amount)

    def by_descriptor(self, size: int) -> None:
        """A shard of ``size`` bytes was opened as a descriptor."""
        with self._lock:
            values = self._values
            values["opened"] += 1
            values["opened_descriptor"] += 1
            values["bytes_proxy"] += size

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._values)


MEMOS = tuple(name for name in NAMES if name.startswith(("memo_", "frames_")))
_ROW = struct.Struct(f"{1 + len(MEMOS)}q")  # whose workers, and their counts
_MOST = 256  # rows: ranks that were forked from one process


class SharedMemoCounts:
    """What all workers of a training process counted of memos and frames, in memory that they share. Pickles for one that is started."""

    def __init__(self) -> None:
        self._part = SharedPart(_MOST * _ROW.size)

    def __getstate__(self) -> dict[str, Any]:
        return {"part": None if context.get_spawning_popen() is None else self._part}

    def __setstate__(self, state: dict[str, Any]) -> None:
        global _SHARED  # the one of this process, from now on
        if state["part"] is None:
            self._part = share_memo_counts()._part
        else:
            self._part, _SHARED = state["part"], self

    def add(self, name: str, amount: int) -> None:
        """Where this process is a worker. Counts of a full table are left out."""
        owner = training_pid()
        if owner == os.getpid():
            return
        with self._part.locked():
            rows = self._rows()
            at = next((at for at, row in enumerate(rows) if row[0] == owner), len(rows))
            row = [*rows[at]] if at < len(rows) else [owner, *([0] * len(MEMOS))]
            row[1 + MEMOS.index(name)] += amount
            if at < _MOST:
                self._part.write(_ROW.pack(*row), at * _ROW.size)

    def of_workers(self) -> dict[str, int]:
        """Those of this process's."""
        return next((dict(zip(MEMOS, row[1:])) for row in self._rows() if row[0] == os.getpid()), {})  # noqa: B905

    def _rows(self) -> list[tuple[int, ...]]:
        data = self._part.read(_MOST * _ROW.size)
        return [row for row in _ROW.iter_unpack(data[: len(data) - len(data) % _ROW.size]) if row[0]]


_SHARED: Optional[SharedMemoCounts] = None


def share_memo_counts() -> SharedMemoCounts:
    """Those of this process, and of the workers that it is going to have."""
    global _SHARED  # noqa: PLW0603  # one a process
    if _SHARED is None:
        _SHARED = SharedMemoCounts()
    return _SHARED


COUNTS = LoaderCounts()
os.register_at_fork(after_in_child=COUNTS.reset)


def counters() -> dict[str, int]:
    """What happened in this process since it started. It never raises.

    Each DataLoader worker has counts of its own. Those of ``fb.memo`` and ``fb.frames`` contain this process's workers too, also those that
    have ended.

    Returns:
        Name of a count to its value: a number of events, or of bytes for names that begin with ``bytes_``.

    Examples:
        Shards that lost their sidecar. Alarm on this one:

        >>> fb.counters()["fallback_total"]
        0
    """
    found = COUNTS.snapshot()
    for name, count in ({} if _SHARED is None else _SHARED.of_workers()).items():
        found[name] += count
    return found
