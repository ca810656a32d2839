"""Entries as files, one each: written beside their place and renamed, so there is a whole one or none."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar, Iterator, List, Optional, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import KEY_BYTES, EntryDamaged, checksum_of, key_in, shapes_in, unpacked
from forebay_loader.memos.kept_value import KeptValue
from forebay_loader.memos.stores.memo_store import StoreFull

__all__ = ["FileStore"]

_PARTIAL = ".partial"
CHECKSUM, TEXT = "checksum", "text"  # members of a file beside the arrays, which are called 0, 1 …


class FileStore(ABC):
    """``folder/ab/KEY.SUFFIX``, by the last byte of the key. What it is in a file is a subclass's."""

    SUFFIX: ClassVar[str]

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @abstractmethod
    def write(self, path: str, members: Sequence[Tuple[str, Any]]) -> None:
        """A new file of named arrays."""

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
            try:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                self.write(beside, [*members, *((str(at), one) for at, one in enumerate(kept.arrays))])
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

    def entries(self) -> Iterator[Tuple[bytes, int]]:
        """The oldest first. Of a killed writer's files the rest is removed, once they are no living one's."""
        found: List[Tuple[float, bytes, int]] = []
        for bucket in sorted(os.listdir(self._folder)):
            folder = os.path.join(self._folder, bucket)
            if len(bucket) != 2 or not os.path.isdir(folder):
                continue
            for one in os.scandir(folder):
                key = _key_of(one.name, self.SUFFIX)
                if key is not None:
                    with suppress(FileNotFoundError):
                        state = one.stat()
                        found.append((state.st_mtime, key, state.st_blocks * 512))
        for _, key, size in sorted(found):
            yield key, size

    def clear_rests(self) -> None:
        """Remove what killed writers left, by the one that writes now."""
        for bucket in os.listdir(self._folder):
            folder = os.path.join(self._folder, bucket)
            for name in os.listdir(folder) if len(bucket) == 2 and os.path.isdir(folder) else ():
                if name.endswith(_PARTIAL):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))

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


def _key_of(name: str, suffix: str) -> Optional[bytes]:
    stem, _, end = name.rpartition(".")
    try:
        return bytes.fromhex(stem) if end == suffix and len(stem) == 2 * KEY_BYTES else None
    except ValueError:
        return None


def _as(found: Any, dtype: Any, shape: Tuple[int, ...]) -> Any:
    """What a format cannot hold as it is lies there as its bytes."""
    if found.dtype.hasobject:
        raise ValueError("an array of objects")
    if (found.dtype, found.shape) == (dtype, shape):
        return found
    return numpy.frombuffer(bytearray(found.tobytes()), dtype).reshape(shape)
