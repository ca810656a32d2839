"""The process that keeps frames: it decodes clips that wait, one after the other, at the lowest priority. One a folder.

``python -m forebay_loader.memos.frames.filler FOLDER SIZE_BYTES LOCK``, with the number of an open file that holds the folder's lock. It
ends when it had nothing to do for half a minute, or nobody trains any more. Whenever it is killed, the next goes on with what waits.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Optional

import xxhash

from forebay_loader.base.errors import LoaderError
from forebay_loader.memos.errors import StoreFull
from forebay_loader.memos.frames.frame_store import FrameStore, clip_key, spool_most
from forebay_loader.memos.frames.spool import Spool, Waiting, add_counts, done, tell_stopped
from forebay_loader.videos.sources.clip_bytes import FileClip, MemberClip, MemoryClip, ObjectClip
from forebay_loader.videos.sources.clip_source import ClipSource

__all__ = ["MOST_READ", "digest_of", "fill", "fill_all", "identity_of", "is_signed"]

MOST_READ = 256 << 20  # of a clip that is read whole only to be kept

_IDLE_S, _LONELY_S = 30.0, 5.0
_CLIP_S = 3600.0  # for one clip, which may be a film, by a process that gets what others leave
_POLL_S = 0.2
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


class _Changed(ValueError):
    """The bytes are not those that were queued."""


def fill_all(folder: str, size_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
    """As the module says."""
    filling = _Filling(folder, size_bytes)
    busy_s = used_s = clock()
    with open(os.path.join(folder, "users.lock"), "a+b") as users:
        try:
            while not filling.full and clock() - busy_s < _IDLE_S and clock() - used_s < _LONELY_S:
                if filling.next():
                    busy_s = clock()
                else:
                    time.sleep(_POLL_S)
                used_s = clock() if _are_there(users.fileno()) else used_s  # now: a clip may have taken longer than it waits
        finally:
            filling.close()


class _Filling:
    def __init__(self, folder: str, size_bytes: int) -> None:
        self.full = False
        self._folder, self._size_bytes = folder, size_bytes
        self._spool = Spool(folder, spool_most(size_bytes))
        self._store: Optional[FrameStore] = None

    def next(self) -> bool:
        """Keep the oldest clip that waits; whether there was one."""
        found, dropped = self._spool.next()
        kept = 0
        if found is not None:
            self._store = self._store or FrameStore(self._folder, self._size_bytes)
            try:
                kept = int(fill(self._store, found))
                dropped += 1 - kept
                done(found.path)
            except OSError as error:
                self.full = True
                dropped += self._spool.clear()
                why = "is full" if isinstance(error, StoreFull) else "cannot be written, perhaps since its disk is full"
                tell_stopped(self._folder, f"{why} ({error}): what is in it is used, and nothing is added")
        add_counts(self._folder, kept, dropped)
        return found is not None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def fill(store: FrameStore, waiting: Waiting) -> bool:
    """Keep the frames of a clip that waits; whether it could be decoded, and was what it was said to be. Raises ``StoreFull``,
    ``OSError``."""
    told = waiting.told
    size = tuple(told["size"]) if isinstance(told["size"], list) else told["size"]
    key = bytes.fromhex(told["key"])
    clip = _clip_of(waiting)
    try:
        said = told.get("digest")
        if digest_of(waiting.data) != said if said else clip_key(identity_of(clip) or (), size, told["quality"]) != key:
            raise _Changed
        if not told["anew"] and store.find(key) is not None:
            return True
        with ClipSource(clip, size=size, time_limit_s=_CLIP_S) as source:
            store.keep(key, source.open(), source.each(), told["quality"])
    except (LoaderError, ValueError, FileNotFoundError):  # the trainer decodes it too, and says it of the clip's name
        return False
    return True


def _clip_of(waiting: Waiting) -> Any:
    told = waiting.told
    if told.get("path"):
        return FileClip(told["path"])
    return ObjectClip(told["url"]) if told.get("url") else MemoryClip(waiting.data)


def identity_of(clip: Any) -> Optional[tuple[Any, ...]]:
    """Which bytes ``clip`` has: by a digest of those in memory, by the times of a file, by the ETag of an object or a shard; None
    where nothing tells: then none are kept.

    Of an http URL with a query nobody here knows what in it is a signature, and what names other bytes: there the bytes count, if all of
    them are here.
    """
    if isinstance(clip, MemoryClip):
        return "bytes", len(clip.data), digest_of(clip.data)
    if isinstance(clip, FileClip):
        clip.open()
        return "file", os.path.abspath(clip.path), *clip.opened
    if not isinstance(clip, (MemberClip, ObjectClip)):
        return None
    length = clip.open()
    url, etag, *begin = clip.known
    if not is_signed(url):
        return ("object", url, etag, *begin, length) if etag else None
    return ("bytes", length, digest_of(clip.read(0, length))) if clip.here and length <= MOST_READ else None


def is_signed(url: str) -> bool:
    """Whether it may hold a signature."""
    return url.startswith(("http:", "https:")) and "?" in url


def digest_of(data: Any) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _are_there(users: int) -> bool:
    """Whether a process that trains holds the file."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(users, fcntl.LOCK_UN)
    return False


def _step_back() -> None:
    """Take what others leave, of processors and of the disk."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write("19")  # a session of its own would else get as much as that of the trainer
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and sys.platform == "linux":
        ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # this process, idle


def main() -> None:
    folder, size_bytes, _ = sys.argv[1:]  # the open file is the lock: it is held by being open
    _step_back()
    try:
        fill_all(folder, int(size_bytes))
    except Exception as error:
        with suppress(OSError):
            tell_stopped(folder, f"cannot be filled ({type(error).__name__}: {error}): nothing is added to it")
        raise


if __name__ == "__main__":
    main()
