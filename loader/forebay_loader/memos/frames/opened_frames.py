"""The stores of frames that are open in this process: they are read here, and what is missing is queued for the process that fills."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar
from urllib.parse import urlsplit

import forebay_proxy.wire
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.memos.entry import EntryDamaged
from forebay_loader.memos.frames.filler import MOST_READ, digest_of, identity_of, is_signed
from forebay_loader.memos.frames.frame_store import FrameStore, KeptClip, clip_key, spool_most
from forebay_loader.memos.frames.jpeg import JpegReader
from forebay_loader.memos.frames.spool import FillerLock, Spool, stopped, take_counts
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sources.clip_bytes import FileClip, MemoryClip, ObjectClip

__all__ = ["ClipLookup", "OpenedFrames", "opened_frames"]

_LOOK_S = 1.0  # how often a process looks whether somebody fills, and counts what was done
T = TypeVar("T")


class OpenedFrames:
    """Answers at once: what cannot be read is decoded, what cannot be queued now is queued at another visit."""

    def __init__(self, folder: str, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self._store: Optional[FrameStore] = None
        self._spool: Optional[Spool] = None
        self._users = -1
        self._full = False  # who fills said so; it is tried again after a while
        self._own = threading.local()
        self._next_look_s = self._room_s = float("-inf")
        self._started: List[subprocess.Popen[bytes]] = []
        self._inherited: List[subprocess.Popen[bytes]] = []  # of the parent, which waits for them
        try:
            self._store = FrameStore(folder, size_bytes)
            self._spool = Spool(folder, spool_most(size_bytes))
            self._users = os.open(os.path.join(folder, "users.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._users, fcntl.LOCK_SH)  # children have it too; who fills looks by it whether somebody trains
        except OSError as error:
            self._off(f"cannot be opened ({error}): clips are decoded as without it")

    def __repr__(self) -> str:
        return f"<OpenedFrames {self.folder}>"

    def find(self, clip: Any, size: Any, quality: Optional[int]) -> "Optional[ClipLookup]":
        """As ``FramesAsked`` says. Raises what opening the clip raises."""
        if self._store is None:
            return None
        identity = identity_of(clip)
        if identity is None:
            return None
        found = ClipLookup(self, clip, clip_key(identity, size, quality), {"size": size, "quality": quality})
        store = self._store
        found.kept = self._read(found, lambda: store.find(found.key))
        self._look()
        return found

    def frames(self, of: "ClipLookup", indices: Sequence[int]) -> Any:
        """Frames of a kept clip; None where one is damaged."""
        store, kept = self._store, of.kept
        if store is None or kept is None:
            return None
        if not hasattr(self._own, "jpegs"):
            self._own.jpegs = JpegReader()
        found = self._read(of, lambda: store.frames(kept, indices, self._own.jpegs))
        if found is not None:
            COUNTS.add("frames_hits")
            COUNTS.add("video_frames", len(indices))
        return found

    def queue(self, of: "ClipLookup") -> None:
        """Have all frames of the clip kept."""
        if self._spool is None:
            return
        try:
            why = stopped(self.folder)
            if why:
                COUNTS.add("frames_dropped")
                if not self._full:
                    self._full = True
                    self._tell(why)
                return
            self._full = False
            if self._spool.has(of.key):
                return
            source = None if time.monotonic() < self._room_s else _source_of(of.clip)
            told = {**of.told, "key": of.key.hex(), "anew": of.damaged}
            if source is None:
                COUNTS.add("frames_dropped")
            elif not self._spool.offer(of.key, {**told, **source[0]}, source[1]):
                COUNTS.add("frames_dropped")
                self._room_s = time.monotonic() + 0.1  # no look at all that waits for each clip
        except OSError as error:
            COUNTS.add("frames_dropped")
            self._stop(f"cannot be written ({error}): nothing is added to it by this process any more")

    def forked(self) -> None:
        """In a child."""
        self._inherited += self._started
        self._started = []

    def _read(self, of: "ClipLookup", read: Callable[[], T]) -> Optional[T]:
        try:
            return read()
        except EntryDamaged:
            COUNTS.add("frames_damaged")
            of.damaged = True
        except OSError as error:
            self._off(f"cannot be read ({error}): clips are decoded as without it")
        return None

    def _stop(self, why: str) -> None:
        """It is read, and nothing is queued."""
        self._spool = None
        self._tell(why)

    def _tell(self, why: str) -> None:
        COUNTS.add("frames_off")
        warn_node(f"forebay: the folder of frames {self.folder} {why}. Training goes on. Give it more room (size=), or remove it")

    def _off(self, why: str) -> None:
        self._store = None
        self._stop(why)

    def _look(self) -> None:
        """Once a second: count what was done, and start somebody who fills where there is none and clips wait."""
        now = time.monotonic()
        if now < self._next_look_s or self._spool is None:
            return
        self._next_look_s = now + _LOOK_S
        self._started = [one for one in self._started if one.poll() is None]
        try:
            kept, dropped = take_counts(self.folder)
            COUNTS.add("frames_kept", kept)
            COUNTS.add("frames_dropped", dropped)
            if self._spool.waits() and not stopped(self.folder):
                lock = FillerLock(self.folder)
                try:
                    if lock.taken():
                        self._started.append(_started(self.folder, self._size_bytes, lock.file))
                finally:
                    lock.close()
        except OSError as error:
            self._stop(f"cannot be filled ({error}): nothing is added to it by this process any more")


class ClipLookup:
    """One clip that was looked up. ``kept`` is None where it has to be decoded."""

    def __init__(self, opened: OpenedFrames, clip: Any, key: bytes, told: Dict[str, Any]) -> None:
        self._opened = opened
        self.clip = clip
        self.key = key
        self.told = told
        self.kept: Optional[KeptClip] = None
        self.damaged = False

    @property
    def info(self) -> Optional[ClipInfo]:
        """Of a kept clip."""
        return None if self.kept is None else self.kept.info

    def frames(self, indices: Sequence[int]) -> Any:
        """Frames of a kept clip, or None: then they have to be decoded."""
        return self._opened.frames(self, indices)

    def decoded(self) -> None:
        """The clip was decoded, and its frames may be kept."""
        self._opened.queue(self)


def _source_of(clip: Any) -> Optional[Tuple[Dict[str, str], Any]]:
    """Where the clip is, or its bytes if they are here; None of a part of a shard that is not here, and of a clip whose URL may hold a
    token, for it would be written to a file."""
    if isinstance(clip, MemoryClip):
        return {}, clip.data
    if isinstance(clip, FileClip):
        return {"path": os.path.abspath(clip.path)}, b""
    if isinstance(clip, ObjectClip) and not (is_signed(clip.url) or clip.url.startswith("pipe:") or "@" in urlsplit(clip.url).netloc):
        return {"url": clip.url}, b""
    size = clip.open()
    if not clip.here or size > MOST_READ:
        return None
    data = clip.read(0, size)
    return {"digest": digest_of(data)}, data


def _started(folder: str, size_bytes: int, lock: int) -> "subprocess.Popen[bytes]":
    """With the modules that this process has: its path may be another than a new one's."""
    roots = [str(Path(__file__).parents[3]), *(str(Path(one).parents[1]) for one in forebay_proxy.wire.__path__)]
    path = os.pathsep.join([*dict.fromkeys(roots), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(  # noqa: S603  # our own module
        [sys.executable, "-m", "forebay_loader.memos.frames.filler", folder, str(size_bytes), str(lock)],
        pass_fds=(lock,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
    )


_OPEN: Dict[str, OpenedFrames] = {}
_OPENING = [threading.Lock()]  # another one in a child: a thread that is not there may hold it


def opened_frames(folder: str, size_bytes: int) -> OpenedFrames:
    """The one of this process. Raises ``MemoError`` where the folder is of something else."""
    found = _OPEN.get(folder)
    if found is None:
        with _OPENING[0]:
            found = _OPEN.get(folder) or _OPEN.setdefault(folder, OpenedFrames(folder, size_bytes))
    return found


def _forked() -> None:
    _OPENING[0] = threading.Lock()
    for one in _OPEN.values():
        one.forked()


os.register_at_fork(after_in_child=_forked)
