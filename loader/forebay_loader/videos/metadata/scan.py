"""The scan: every clip looked at once, in parallel, and what was found written to one file. A stopped one goes on where it was."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Deque, Iterable, Iterator, NamedTuple, Optional, Union

from forebay_loader.base.errors import LoaderError
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.samples.shard_name import shard_name
from forebay_loader.videos.clip_info import ClipAddress, ClipInfo
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.decoder_processes import DecoderDeaths, DecoderDied
from forebay_loader.videos.metadata.record import ClipRecord, clip_name
from forebay_loader.videos.sources.clip_bytes import ObjectClip

__all__ = ["ClipToScan", "ScanProgress", "clips_of_shard", "lone_clip", "scan_clips"]


_MOST_HELD = 1 << 30  # bytes of clips in memory, or one clip: films are as long as that
_WRITE_EVERY_S = 1.0  # what a kill costs at most; each time takes a few milliseconds of the disk


class ClipToScan(NamedTuple):
    """A clip as a scan is given it.

    - ``name``: as ``clip_name`` makes it; ``clip_bytes``: its length; ``version``: of its shard (ETag), "" where there is none.
    - ``where``: what is handed to ``look``.
    - ``held_bytes``: what it may keep in memory while it is looked at.
    """

    name: str
    clip_bytes: int
    version: str
    where: Any
    held_bytes: int = 0


@dataclass
class ScanProgress:
    """How far a scan is: clips looked at, known from before, and those that could not be read, by name, with the reason."""

    scanned: int = 0
    known: int = 0
    clip_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def clips(self) -> int:
        """All that were come to."""
        return self.scanned + self.known + len(self.failed)


def scan_clips(
    clips: Iterable[ClipToScan],
    path: Union[str, "os.PathLike[str]"],
    look: Callable[[Any, bool], ClipInfo],
    *,
    workers: Optional[int] = None,
    audio: bool = True,
    progress: Optional[Callable[[ScanProgress], None]] = None,
) -> ScanProgress:
    """Look at each of ``clips`` that the table at ``path`` does not know, and write them to it; its other clips stay.

    - ``clips``: asked for as they are needed, a few ahead.
    - ``path``: the table; what is found goes there once a second. A scan that was stopped, or failed, goes on from there.
    - ``look``: gives what a clip is, its motion, and, where the second argument is True, its sound. It is called in threads.
    - ``workers``: threads, the processors of this process by default.
    - ``audio``: False leaves the sound unread.
    - ``progress``: called after each clip, in the thread of the caller.

    A clip that cannot be read is passed over and named in ``failed``; so is one by which a decoder died, then and in later scans
    (``DecoderDeaths``). A clip of the same name, length and version is known, unless its sound was left unread and is asked for now. Raises
    what ``clips`` and ``progress`` raise, ``CorruptClipTable`` for another file at ``path``, and ``OSError`` where it cannot be written.
    """
    scan, most = _Scan(path, audio, progress), 2 * (workers or _processors())
    with ThreadPoolExecutor(workers or _processors(), "clip-scan") as pool:
        waiting: Deque[tuple[ClipToScan, Future[ClipInfo]]] = deque()
        try:
            for clip in clips:
                if scan.is_past(clip):
                    continue
                while waiting and (len(waiting) >= most or sum(one.held_bytes for one, _ in waiting) + clip.held_bytes > _MOST_HELD):
                    scan.take(*waiting.popleft())
                waiting.append((clip, pool.submit(look, clip.where, audio)))
            while waiting:
                scan.take(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()
            scan.write()
    return scan.done


class _Scan:
    """What the table at ``path`` knows, what was found since it was last written, and how far the scan is."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], audio: bool, progress: Optional[Callable[[ScanProgress], None]]) -> None:
        self.done = ScanProgress()
        self._table, self._deaths = ClipTable(path), DecoderDeaths(path)
        self._audio = audio
        self._progress = progress
        self._known: dict[str, tuple[int, str]] = {}
        self._found: list[ClipRecord] = []
        self._next_s = 0.0
        with suppress(FileNotFoundError):
            for record in self._table.records():
                self._note(record)

    def is_past(self, clip: ClipToScan) -> bool:
        """Whether ``clip`` need not be looked at, which is counted."""
        why = self._deaths.of(clip.name, clip.clip_bytes, clip.version)
        if self._known.get(clip.name) == (clip.clip_bytes, clip.version):
            self.done.known += 1
        elif why:
            self.done.failed[clip.name] = why
        else:
            return False
        self._tell()
        return True

    def take(self, clip: ClipToScan, future: "Future[ClipInfo]") -> None:
        try:
            info = future.result()
        except DecoderDied as error:
            why = f"{error}; it is tried again once {self._deaths.path} is removed" if error.by_clip else str(error)
            if error.by_clip:
                self._deaths.add(clip.name, clip.clip_bytes, clip.version, why)
            self.done.failed[clip.name] = why
        except LoaderError as error:  # of this clip, or of its shard; a full disk is the scan's own
            self.done.failed[clip.name] = str(error)
        except Exception as error:  # what nobody thought of is this clip's all the same: else no scan would get past it
            self.done.failed[clip.name] = f"{type(error).__name__}: {error}"
        else:
            record = ClipRecord(clip.name, clip.clip_bytes, clip.version, info)
            self._note(record)
            self._found.append(record)
            if time.monotonic() >= self._next_s:
                self.write()
            self.done.scanned += 1
            self.done.clip_bytes += clip.clip_bytes
        self._tell()

    def write(self) -> None:
        """Write what was found to the table; it is there then, if only with no clip in it. Raises ``OSError``."""
        found, self._found = self._found, []
        self._table.add(found)
        self._next_s = time.monotonic() + _WRITE_EVERY_S

    def _note(self, record: ClipRecord) -> None:
        self._known.pop(record.name, None)
        if not self._audio or not record.info.audio_rate_hz or record.info.audio_energy is not None:
            self._known[record.name] = record.clip_bytes, record.version

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.done)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clips_of_shard(url: str, suffixes: Collection[str]) -> "Iterator[ClipToScan]":
    """The members of the shard ``url`` that end in one of ``suffixes``, in its order; nothing of them is read.

    Raises ``ShardReadError`` where the shard has no sample index, ``ProxyUnreachable`` without a sidecar.
    """
    shown = shard_name(url)
    with IndexedShard(url) as shard:
        for number in range(len(shard)):
            key = shard.key(number)
            for file in shard.index.files(number):
                if file.suffix.rpartition(".")[2].lower() in suffixes:
                    member = f"{key}.{file.suffix}"
                    clip = ClipAddress(url, shard.etag, member, shown, number, file.suffix)
                    yield ClipToScan(clip_name(shown, member), file.size, shard.etag, clip, file.size)


def lone_clip(url: str) -> "ClipToScan":
    """The clip that is the object ``url``. Raises ``ShardReadError``, ``ProxyUnreachable``."""
    clip = ObjectClip(url)
    size, version = clip.open(), clip.etag
    clip.close()
    return ClipToScan(clip_name(shard_name(url)), size, version, ClipAddress(url, version, clip.name))
