"""Entries in LMDB: one mapped B-tree, or several of at most some 16 GB, by a hash of the key.

A reader needs no lock and sees what was committed; a writer that is killed leaves the last commit. The map grows as it fills, up to the
store's size, which so is a bound that LMDB itself holds. No readahead: entries are wanted in no order of the file.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import lmdb

from forebay_loader.memos.entry import key_in, unpacked
from forebay_loader.memos.errors import MemoError, StoreFull
from forebay_loader.memos.kept_value import KeptValue

__all__ = ["LmdbStore", "parts_of"]

_FIRST_MAP = 64 << 20
_PART = 16 << 30  # no file of hundreds of GB: one can be looked at, copied and removed
_MOST_PARTS = 64
_MAGIC = 0xBEEFC0DE
_HEAD = struct.Struct("=16x I I 8x 8x I 92x Q Q")  # a page's head; magic, version, address, map size, size of a page; last page, turn
_LOCK_BYTES = 128 << 10  # some 64 a reader; LMDB goes on with what it finds
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs", "fuse.glusterfs", "afs", "beegfs")
_TURN = b"turn"


def parts_of(size_bytes: int) -> int:
    """How many files a store of that size has."""
    return max(1, min(_MOST_PARTS, -(-size_bytes // _PART)))


class LmdbStore:
    """In ``folder``, of at most ``size_bytes`` on the disk in ``parts`` files. No fork inherits it open: a process cannot open an LMDB
    twice, and takes what it inherited for its own."""

    def __init__(self, folder: str, size_bytes: int, parts: int, of: str = "fb.memo") -> None:
        self._most = max(1 << 20, size_bytes // parts // mmap.PAGESIZE * mmap.PAGESIZE)
        self.moving = threading.Lock()  # the map moves when it grows: no transaction of this process may be open then
        self.writing = threading.Lock()
        self._parts: List[Any] = []
        self._paths = [os.path.join(folder, f"{number:02}.mdb") for number in range(parts)]
        _ALL.add(self)
        kind = _file_system(folder)
        if kind in _REMOTE:
            other = ", or store='npz'" if of == "fb.memo" else ""
            raise MemoError(
                f"the folder {folder} lies on {kind}, and LMDB maps its file, which only a local disk bears: "
                f"give {of}(…, folder=…) one on a local disk{other}"
            )
        with _mapped():
            self._ready()

    def _ready(self) -> List[Any]:
        """Its parts: opened at first, and again behind a fork."""
        while len(self._parts) < len(self._paths):
            self._parts.append(self._opened(self._paths[len(self._parts)]))
        return self._parts

    def _opened(self, path: str) -> Any:
        _check_head(path)
        _allocate(f"{path}-lock", 0, _LOCK_BYTES)
        size = max(min(_FIRST_MAP, self._most), os.path.getsize(path) if os.path.exists(path) else 0)
        try:
            part = lmdb.open(path, size, subdir=False, mode=0o600, readahead=False, meminit=False, max_readers=1024)
        except lmdb.Error as error:
            if not isinstance(error, (lmdb.VersionMismatchError, lmdb.InvalidError)) and "data format" not in str(error):
                raise
            raise MemoError(f"{path} is an LMDB of another version, or none ({error}): remove it, what is in it is made again") from error
        part.reader_check()
        return part

    def _part(self, key: bytes) -> Any:
        parts = self._ready()
        return parts[key[-1] % len(parts)]

    def get(self, key: bytes) -> Optional[KeptValue]:
        with _mapped(), self.moving, self._begun(self._part(key)) as transaction:
            found = transaction.get(key)
            return None if found is None else unpacked(key, found)

    def put(self, entries: Sequence[bytes]) -> None:
        def put(part: Any, entry: bytes) -> None:
            part.put(key_in(entry), entry)

        with _mapped():
            self._written([(key_in(entry), entry) for entry in entries], put)

    def drop(self, keys: Sequence[bytes]) -> None:
        with _mapped():
            self._written([(key, key) for key in keys], lambda part, key: part.delete(key))

    def _written(self, changes: Sequence[Tuple[bytes, bytes]], change: Callable[[Any, bytes], Any]) -> None:
        """One commit a part; each is done whole or not at all."""
        by_part: Dict[Any, List[bytes]] = {}
        with self.writing:
            with self.moving:
                for key, value in changes:
                    by_part.setdefault(self._part(key), []).append(value)
            self._commit(by_part, change)

    def _commit(self, by_part: Dict[Any, List[bytes]], change: Callable[[Any, bytes], Any]) -> None:
        for part, values in by_part.items():
            turned = False
            while True:
                try:
                    with part.begin(write=True) as transaction:
                        for value in values:
                            change(transaction, value)
                    break
                except lmdb.MapResizedError:  # by the writer before us
                    self._resize(part, 0)
                except lmdb.MapFullError:
                    now = part.info()["map_size"]
                    if now < self._most:
                        self._resize(part, min(2 * now, self._most))
                    elif turned:
                        raise StoreFull(f"the LMDB has grown to its limit of {self._most} bytes") from None
                    else:
                        turned = _turn(part)

    def _resize(self, part: Any, size: int) -> None:
        with self.moving:
            part.set_mapsize(size)

    @contextmanager
    def _begun(self, part: Any) -> Iterator[Any]:
        """A transaction to read in. Another process may have let the map grow since the last."""
        try:
            transaction = part.begin(buffers=True)
        except lmdb.MapResizedError:
            part.set_mapsize(0)
            transaction = part.begin(buffers=True)
        with transaction:
            yield transaction

    def close(self) -> None:
        while self._parts:
            self._parts.pop().close()


_ALL: "weakref.WeakSet[LmdbStore]" = weakref.WeakSet()
_HELD: List[LmdbStore] = []  # while a fork is under way


def _fork_begins() -> None:
    """When what is written now is written, all are closed. Each opens again when it is next asked."""
    for store in list(_ALL):
        store.writing.acquire()
        store.moving.acquire()
        store.close()
        _HELD.append(store)


def _fork_ends() -> None:
    while _HELD:
        store = _HELD.pop()
        store.moving.release()
        store.writing.release()


os.register_at_fork(before=_fork_begins, after_in_parent=_fork_ends, after_in_child=_fork_ends)


def _turn(part: Any) -> bool:
    """What a commit freed may be written to by the next but one."""
    part.reader_check()  # one that died inside a transaction would hold it back too
    with part.begin(write=True) as transaction:
        transaction.put(_TURN, os.urandom(8))
    return True


def _check_head(path: str) -> None:
    """LMDB tells another size of a page, or that the file was cut, by reading what is not there. Raises ``MemoError``, ``OSError``."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD.size)
            file.seek(mmap.PAGESIZE)
            second = file.read(_HEAD.size)
            length = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return
    if not head:
        return
    magic, _, page, last, turn = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0, 0, 0)
    if magic != _MAGIC:
        raise MemoError(f"{path} is no LMDB of this machine's kind: remove it, what is in it is made again")
    if page != mmap.PAGESIZE:
        raise MemoError(f"{path} has pages of {page} bytes, and this machine has {mmap.PAGESIZE}: remove it, or give another folder")
    if len(second) == _HEAD.size and _HEAD.unpack(second)[4] > turn:
        last = _HEAD.unpack(second)[3]
    if length < (last + 1) * page:
        _allocate(path, length, (last + 1) * page)  # of zeros: what lay there is damaged, and is told by checksums


def _allocate(path: str, start: int, end: int) -> None:
    """A page of a map that has no block, or lies behind the end, ends the process where the disk has no room for it. Raises ``OSError``."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(file, start, end - start)
    finally:
        os.close(file)


def _file_system(folder: str) -> str:
    """Its type, as the kernel tells it; "" where it does not."""
    found, longest = "", -1
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split(" ")
            at = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), words[4]).rstrip("/")
            if f"{folder}/".startswith(f"{at}/") and len(at) >= longest:
                found, longest = words[words.index("-") + 1], len(at)
    return found


@contextmanager
def _mapped() -> Iterator[None]:
    """LMDB's errors as those of a store."""
    try:
        yield
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        raise StoreFull(str(error)) from error
    except lmdb.Error as error:
        raise OSError(f"LMDB: {error}") from error
