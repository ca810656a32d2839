"""Entries as files, one each: written beside their place and renamed, so there is a whole one or none."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar, Optional, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import EntryDamaged, checksum_of, key_in, shapes_in, unpacked
from forebay_loader.memos.errors import StoreFull
from forebay_loader.memos.kept_value import KeptValue

__all__ = ["FileStore"]

_PARTIAL = ".partial"
_REST_S = 3600.0  # no write takes so long
_HELD = "held-bytes"
_PAGE = 4096
CHECKSUM, TEXT = "checksum", "text"  # members of a file beside the arrays, which are called 0, 1 …


class FileStore(ABC):
    """``folder/ab/KEY.SUFFIX``, by the last byte of the key. What it is in a file is a subclass's."""

    SUFFIX: ClassVar[str]

    def __init__(self, folder: str, size_bytes: int) -> None:
        self._folder, self._most = folder, size_bytes
        self._recounted = False

    @abstractmethod
    def file_of(self, members: Sequence[Tuple[str, Any]]) -> io.BytesIO:
        """What a file of named arrays consists of."""

    @abstractmethod
    def read(self, path: str) -> "Reading":
        """Named arrays of a file. Raises ``EntryDamaged``, ``FileNotFoundError``."""

    def get(self, key: bytes) -> Optional[KeptValue]:
        try:
            with self.read(self._path(key)) as members:
                text = members.array(TEXT).tobytes()
                checksum = members.array(CHECKSUM).tobytes()
                arrays = [_as(members.array(str(at)), dtype, shape) for at, (dtype, shape) in enumerate(shapes_in(text))]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise EntryDamaged(str(error)) from error
        kept = KeptValue(text, arrays)
        if checksum_of(key, kept) != checksum:
            raise EntryDamaged("its checksum is another one")
        return kept

    def put(self, entries: Sequence[bytes]) -> None:
        for entry in entries:
            key = key_in(entry)
            kept, path = unpacked(key, entry), self._path(key)
            beside = f"{path}.{os.getpid()}{_PARTIAL}"
            members = [(TEXT, numpy.frombuffer(kept.text, "u1")), (CHECKSUM, numpy.frombuffer(checksum_of(key, kept), "u1"))]
            made = self.file_of([*members, *((str(at), one) for at, one in enumerate(kept.arrays))]).getbuffer()
            self._reserve(_on_disk(len(made)))
            try:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with open(beside, "wb") as file:
                    file.write(made)
                os.replace(beside, path)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(beside)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StoreFull(error.errno, error.strerror, self._folder) from error
                raise

    def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                os.unlink(self._path(key))

    def _reserve(self, size: int) -> None:
        """Bytes are counted before they are written, by all processes together: in a file, which is made anew by looking at all entries
        where it is missing, and once by each process that finds the store full (what was killed, dropped or removed is counted still).
        Raises ``StoreFull``.
        """
        with open(os.path.join(self._folder, _HELD), "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            told = file.read()
            held = int(told) if told.isdigit() else self._looked_at()
            if held + size > self._most and not self._recounted:
                held = self._looked_at()
            if held + size > self._most:
                raise StoreFull(f"its entries take {held} bytes of {self._most}")
            file.truncate(0)
            file.write(b"%d" % (held + size))

    def _looked_at(self) -> int:
        """What all entries take. What killed writers left is removed, an hour later."""
        self._recounted = True
        held = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    state = os.stat(path)
                    if name.endswith(_PARTIAL) and time.time() - state.st_mtime > _REST_S:
                        os.unlink(path)
                    held += _on_disk(state.st_size)
        return held

    def close(self) -> None:  # noqa: B027  # of files none is open
        """Nothing stays open."""

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder, f"{key[-1]:02x}", f"{key.hex()}.{self.SUFFIX}")


class Reading(ABC):
    """An open file."""

    @abstractmethod
    def array(self, name: str) -> Any:
        """Raises ``KeyError``, ``ValueError``."""

    def __enter__(self) -> "Reading":
        return self

    @abstractmethod
    def __exit__(self, *raised: object) -> None: ...


def _on_disk(size: int) -> int:
    """Whole pages; how many blocks a file has is not known before the kernel has written it."""
    return -(-size // _PAGE) * _PAGE


def _as(found: Any, dtype: Any, shape: Tuple[int, ...]) -> Any:
    """What a format cannot hold as it is lies there as its bytes."""
    if found.dtype.hasobject:
        raise ValueError("an array of objects")
    if (found.dtype, found.shape) == (dtype, shape):
        return found
    return numpy.frombuffer(bytearray(found.tobytes()), dtype).reshape(shape)
