"""Entries as files, one each: written beside their place and renamed, so there is a whole one or none. Nothing in them is ever unpickled.

An NPZ is what numpy and everything beside it reads; it is not compressed, for features hardly are smaller for it, and take longer. An HDF5
has arrays of many kinds, chunked and compressed by LZF, for programs that read them in parts.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import io
import os
import time
import zipfile
import zlib
from contextlib import suppress
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import EntryDamaged, checksum_of, key_in, shapes_in, unpacked
from forebay_loader.memos.errors import StoreFull
from forebay_loader.memos.kept_value import KeptValue
from forebay_loader.memos.stores.held import HELD

__all__ = ["FileStore"]

_PARTIAL = ".partial"
_REST_S = 3600.0  # no write takes so long
_PAGE = 4096
CHECKSUM, TEXT = "checksum", "text"  # members of a file beside the arrays, which are called 0, 1 …
_PLAIN = "biufc"  # kinds of numpy's that HDF5 knows; times and texts lie there as bytes
_SMALL = 4096  # below this a chunk's own account is the larger part


class FileStore:
    """``folder/ab/KEY.SUFFIX``, by the last byte of the key: named arrays in the format ``kind``, "npz" or "hdf5"."""

    def __init__(self, kind: str, folder: str, size_bytes: int) -> None:
        self._folder, self._most = folder, size_bytes
        self.suffix, self._file_of, self._read = ("npz", _npz_of, _read_npz) if kind == "npz" else ("h5", _hdf5_of, _read_hdf5)
        self._recounted = False

    def get(self, key: bytes) -> Optional[KeptValue]:
        try:
            members = self._read(self._path(key))
            text, checksum = members[TEXT].tobytes(), members[CHECKSUM].tobytes()
            arrays = [_as(members[str(at)], dtype, shape) for at, (dtype, shape) in enumerate(shapes_in(text))]
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
            members = {TEXT: numpy.frombuffer(kept.text, "u1"), CHECKSUM: numpy.frombuffer(checksum_of(key, kept), "u1")}
            made = self._file_of({**members, **{str(at): one for at, one in enumerate(kept.arrays)}}).getbuffer()
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
        with open(os.path.join(self._folder, HELD), "a+b") as file:
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

    def close(self) -> None:
        """Nothing stays open."""

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder, f"{key[-1]:02x}", f"{key.hex()}.{self.suffix}")


def _npz_of(members: Mapping[str, Any]) -> io.BytesIO:
    made = io.BytesIO()
    numpy.savez(made, **members)  # never objects: what was taken apart holds none
    return made


def _read_npz(path: str) -> Dict[str, Any]:
    """All arrays of the file. Raises ``EntryDamaged``, ``OSError``."""
    with open(path, "rb") as file:
        try:
            found: Any = numpy.load(file, allow_pickle=False)
        except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
            raise EntryDamaged(str(error)) from error
        if not isinstance(found, numpy.lib.npyio.NpzFile):
            raise EntryDamaged("it is no NPZ")
        try:
            return {name: found[name] for name in found.files}
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise EntryDamaged(str(error)) from error


def _hdf5_of(members: Mapping[str, Any]) -> io.BytesIO:
    made = io.BytesIO()  # of a full disk HDF5 ends the process
    with importlib.import_module("h5py").File(made, "w", libver="latest") as file:
        for name, value in members.items():
            data = value if value.dtype.kind in _PLAIN else numpy.frombuffer(value.tobytes(), "u1")
            how = {"chunks": True, "compression": "lzf"} if data.nbytes >= _SMALL and data.ndim else {}
            file.create_dataset(name, data=data, **how)
    return made


def _read_hdf5(path: str) -> Dict[str, Any]:
    """As ``_read_npz``. HDF5 tells only in words whether a file is half written, or none."""
    try:
        with importlib.import_module("h5py").File(path, "r", locking=False) as file:
            return {name: numpy.asarray(found[()], dtype=found.dtype) for name, found in file.items()}
    except FileNotFoundError:
        raise
    except (OSError, AttributeError, RuntimeError) as error:
        raise EntryDamaged(str(error)) from error


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
