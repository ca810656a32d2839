"""A folder as destination, also on a shared file system. A file appears under its name when it is complete, checked and on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from forebay_stage.errors import DestinationFailed
from forebay_stage.read_back import check_same
from forebay_stage.stage_lock import Noted, StageLock

__all__ = ["FileDestination"]

HALF = "_stage/half"  # files that are being written
_PIECE_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class FileDestination:
    """The ``Destination`` in ``folder``, which is made at the first write."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def put_file(self, name: str, path: Path) -> int:
        with self._mapped(name), self._half() as half:
            with path.open("rb") as source, half.open("wb") as copy:
                shutil.copyfileobj(source, copy, _PIECE_BYTES)
                _to_disk(copy.fileno())
            size = check_same(f"{self}/{name}", path, half.stat().st_size, lambda at, length: _piece(half, at, length))
            self._place(half, name)
            return size

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> bool:
        if only_new:
            return self.swap(name, data, "")
        with self._mapped(name), self._half(data) as half:
            self._place(half, name)
            return True

    def get(self, name: str) -> bytes | None:
        with self._mapped(name):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        with self._mapped(name):
            try:
                return (self.folder / name).stat().st_size
            except FileNotFoundError:
                return None

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._mapped(name):
            data = _piece(self.folder / name, offset, length)
        if len(data) != length:
            raise DestinationFailed(f"{self.folder / name}: it ends {length - len(data)} bytes before byte {offset + length}")
        return data

    def names(self, below: str = "") -> Iterator[str]:
        """Every file whose name begins with ``below``, sorted within a folder; not those that are being written."""
        for folder, folders, files in os.walk(self.folder, onerror=_raise_but_missing):
            folders.sort()
            here = Path(folder).relative_to(self.folder)
            names = ((here / file).as_posix() for file in sorted(files))
            yield from (name for name in names if name.startswith(below) and not name.startswith(f"{HALF}/"))

    def delete(self, name: str) -> None:
        with self._mapped(name):
            (self.folder / name).unlink(missing_ok=True)

    def lock(self) -> StageLock:
        return StageLock(self)

    def noted(self, name: str) -> Noted | None:
        data = self.get(name)
        if data is None:
            return None
        with self._mapped(name), self._half(b"now") as now:
            try:
                age_s = now.stat().st_mtime - (self.folder / name).stat().st_mtime
            except FileNotFoundError:
                return None
        return Noted(data, _tag(data), age_s)

    def swap(self, name: str, data: bytes, tag: str) -> bool:
        with self._mapped(name), self._half(data) as half:
            try:
                if not tag:
                    return self._place_new(half, name, data)
                with self._one_at_a_time():
                    if _tag(self.get(name)) != tag:
                        return False
                    self._place(half, name)
                    return True
            except FileNotFoundError:
                return False  # who took the lock meanwhile has deleted what others had half-written

    def clear_torn(self) -> None:
        with self._mapped(HALF):
            for half in (self.folder / HALF).glob("*"):
                half.unlink(missing_ok=True)

    @contextmanager
    def _half(self, data: bytes | None = None) -> Iterator[Path]:
        """A new file on the destination's file system, with ``data`` on the disk; deleted at the end if it is still there."""
        half = self.folder / HALF / uuid.uuid4().hex
        half.parent.mkdir(parents=True, exist_ok=True)
        try:
            if data is not None:
                with half.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            yield half
        finally:
            half.unlink(missing_ok=True)

    def _place(self, half: Path, name: str) -> None:
        final = self.folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        half.replace(final)
        _sync_folder(final.parent)

    def _place_new(self, half: Path, name: str, data: bytes) -> bool:
        final = self.folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            final.hardlink_to(half)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with suppress(FileExistsError), final.open("xb") as file:  # may be torn by a kill, as this file system has nothing better
                file.write(data)
                return True
            return False
        _sync_folder(final.parent)
        return True

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        folder = os.open(self.folder / HALF, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # a file system without locks: StageLock reads what became of its write
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    @contextmanager
    def _mapped(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            step = ""
            if error.errno in _NO_ROOM:
                step = "make room there, or raise the quota, and run the same command again: it continues with what is missing"
            elif error.errno in _NO_RIGHT:
                step = "give this user the right to write to the destination, and run the same command again"
            said = os.strerror(error.errno) if error.errno else str(error)
            raise DestinationFailed(f"{self.folder / name}: {said}", next_step=step) from error


def _piece(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _to_disk(fd: int) -> None:
    """Flush the file, and drop it from memory: reading it back shall read what the disk or the server has."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _tag(data: bytes | None) -> str:
    return "" if data is None else xxhash.xxh3_128(data).hexdigest()


def _raise_but_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise DestinationFailed(f"{error.filename}: {error.strerror}") from error
