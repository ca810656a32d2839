"""The scan: every clip looked at once, in parallel, and what was found written to one file. A stopped one goes on where it was."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Deque, Generic, Iterable, Iterator, NamedTuple, Optional, TypeVar, Union

from forebay_loader.base.errors import LoaderError
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.decoder_processes import DecoderDeaths, DecoderDied
from forebay_loader.videos.metadata.record import ClipRecord, name_in, packed, unpacked
from forebay_loader.videos.metadata.scan_journal import ScanJournal
from forebay_loader.videos.metadata.table_file import TableWriter

__all__ = ["ClipToScan", "ScanProgress", "scan_clips"]

_MOST_HELD = 1 << 30  # bytes of clips in memory, or one clip: films are as long as that

Where = TypeVar("Where")


class ClipToScan(NamedTuple, Generic[Where]):
    """A clip as a scan is given it.

    - ``name``: as ``clip_name`` makes it; ``clip_bytes``: its length; ``version``: of its shard (ETag), "" where there is none.
    - ``where``: what is handed to ``look``.
    - ``held_bytes``: what it may keep in memory while it is looked at.
    """

    name: str
    clip_bytes: int
    version: str
    where: Where
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
    clips: Iterable[ClipToScan[Where]],
    path: Union[str, "os.PathLike[str]"],
    look: Callable[[Where, bool], ClipInfo],
    *,
    workers: Optional[int] = None,
    audio: bool = True,
    progress: Optional[Callable[[ScanProgress], None]] = None,
) -> ScanProgress:
    """Look at each of ``clips`` that the table at ``path`` does not know, and write them to it; its other clips stay.

    - ``clips``: asked for as they are needed, a few ahead.
    - ``path``: the table; what is found goes to ``PATH.partial`` at once, and to the table when all ended. A scan that was stopped, or
      failed, goes on from there.
    - ``look``: gives what a clip is, its motion, and, where the second argument is True, its sound. It is called in threads.
    - ``workers``: threads, the processors of this process by default.
    - ``audio``: False leaves the sound unread.
    - ``progress``: called after each clip, in the thread of the caller.

    A clip that cannot be read is passed over and named in ``failed``; so is one by which a decoder died, then and in later scans
    (``DecoderDeaths``). A clip of the same name, length and version is known, unless its sound was left unread and is asked for now. Raises
    what ``clips`` and ``progress`` raise, ``CorruptClipTable`` for another file at ``path``, and ``OSError`` where it cannot be written.
    """
    so_far = _SoFar(path, audio)
    most = 2 * (workers or _processors())
    done = ScanProgress()
    with ThreadPoolExecutor(workers or _processors(), "clip-scan") as pool:
        waiting: Deque[tuple[ClipToScan[Where], Future[ClipInfo]]] = deque()
        try:
            for clip in clips:
                if _is_past(clip, so_far, done):
                    _tell(progress, done)
                    continue
                while waiting and (len(waiting) >= most or sum(one.held_bytes for one, _ in waiting) + clip.held_bytes > _MOST_HELD):
                    _take(*waiting.popleft(), so_far, done, progress)
                waiting.append((clip, pool.submit(look, clip.where, audio)))
            while waiting:
                _take(*waiting.popleft(), so_far, done, progress)
        finally:
            for _, future in waiting:
                future.cancel()
    so_far.end()
    return done


class _SoFar:
    """What the table at ``path`` and its journal know."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], audio: bool) -> None:
        self._path = Path(path)
        self._journal = ScanJournal(path)
        self.deaths = DecoderDeaths(path)
        self._audio = audio
        self._known: dict[str, tuple[int, str]] = {}
        if self._path.exists():
            with ClipTable(self._path) as table:
                for _, mapped in table.records():
                    self._note(unpacked(mapped))
        for data in self._journal.records():
            self._note(unpacked(data))

    def knows(self, clip: ClipToScan[Any]) -> bool:
        return self._known.get(clip.name) == (clip.clip_bytes, clip.version)

    def add(self, record: ClipRecord) -> None:
        with _at(self._journal.path):
            self._journal.append(packed(record))
        self._note(record)

    def end(self) -> None:
        """Write the table: what it held, and what the journal holds, which is newer."""
        with _at(self._path), self._journal.ending() as found, TableWriter(self._path) as writer:
            if self._path.exists():
                with ClipTable(self._path) as table:
                    for name, mapped in table.records():
                        writer.add(name, bytes(mapped))
            for data in found:
                writer.add(name_in(data), data)

    def _note(self, record: ClipRecord) -> None:
        self._known.pop(record.name, None)
        if not self._audio or not record.info.audio_rate_hz or record.info.audio_energy is not None:
            self._known[record.name] = record.clip_bytes, record.version


@contextmanager
def _at(path: Path) -> Iterator[None]:
    """A full disk is named: to write to a file that is open raises without its path."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_past(clip: ClipToScan[Any], so_far: _SoFar, done: ScanProgress) -> bool:
    """Whether ``clip`` need not be looked at, which is counted."""
    if so_far.knows(clip):
        done.known += 1
        return True
    why = so_far.deaths.of(clip.name, clip.clip_bytes, clip.version)
    if why:
        done.failed[clip.name] = why
    return bool(why)


def _take(
    clip: ClipToScan[Any],
    future: "Future[ClipInfo]",
    so_far: _SoFar,
    done: ScanProgress,
    progress: Optional[Callable[[ScanProgress], None]],
) -> None:
    try:
        info = future.result()
    except DecoderDied as error:
        why = f"{error}; it is tried again once {so_far.deaths.path} is removed" if error.by_clip else str(error)
        if error.by_clip:
            so_far.deaths.add(clip.name, clip.clip_bytes, clip.version, why)
        done.failed[clip.name] = why
    except LoaderError as error:  # of this clip, or of its shard; a full disk is the scan's own
        done.failed[clip.name] = str(error)
    except Exception as error:  # what nobody thought of is this clip's all the same: else no scan would get past it
        done.failed[clip.name] = f"{type(error).__name__}: {error}"
    else:
        so_far.add(ClipRecord(clip.name, clip.clip_bytes, clip.version, info))
        done.scanned += 1
        done.clip_bytes += clip.clip_bytes
    _tell(progress, done)


def _tell(progress: Optional[Callable[[ScanProgress], None]], done: ScanProgress) -> None:
    if progress is not None:
        progress(done)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
