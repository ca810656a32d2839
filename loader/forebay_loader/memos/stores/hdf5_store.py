"""One HDF5 a sample: arrays of many kinds, chunked and compressed by LZF, for programs that read them in parts."""

from __future__ import annotations

import importlib
import io
from typing import Any, ClassVar, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import EntryDamaged
from forebay_loader.memos.stores.file_store import FileStore, Reading

__all__ = ["Hdf5Store"]

h5py: Any = importlib.import_module("h5py")  # untyped

_PLAIN = "biufc"  # of numpy: HDF5 knows them; times and texts lie there as bytes
_SMALL = 4096  # below this a chunk's own account is the larger part


class Hdf5Store(FileStore):
    """Data sets ``text``, ``checksum``, ``0``, ``1`` …"""

    SUFFIX: ClassVar[str] = "h5"

    def file_of(self, members: Sequence[Tuple[str, Any]]) -> io.BytesIO:
        made = io.BytesIO()  # of a full disk HDF5 ends the process
        with h5py.File(made, "w", libver="latest") as file:
            for name, value in members:
                data = value if value.dtype.kind in _PLAIN else numpy.frombuffer(value.tobytes(), "u1")
                how = {"chunks": True, "compression": "lzf"} if data.nbytes >= _SMALL and data.ndim else {}
                file.create_dataset(name, data=data, **how)
        return made

    def read(self, path: str) -> "Hdf5Reading":
        try:
            return Hdf5Reading(h5py.File(path, "r", locking=False))
        except FileNotFoundError:
            raise
        except OSError as error:  # half written, or none: HDF5 tells only in words
            raise EntryDamaged(str(error)) from error


class Hdf5Reading(Reading):
    """An open HDF5."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def array(self, name: str) -> Any:
        found = self._file[name]
        if not isinstance(found, h5py.Dataset):
            raise ValueError(f"{name} is no data set")
        try:
            return found[()] if found.ndim else _scalar(found)
        except OSError as error:
            raise ValueError(str(error)) from error

    def __exit__(self, *raised: object) -> None:
        self._file.close()


def _scalar(found: Any) -> Any:
    return numpy.array(found[()], dtype=found.dtype)
