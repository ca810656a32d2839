"""One NPZ a sample: what numpy and everything beside it reads. Nothing in it is ever unpickled."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any, ClassVar, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import EntryDamaged
from forebay_loader.memos.stores.file_store import FileStore, Reading

__all__ = ["NpzStore"]


class NpzStore(FileStore):
    """Members ``text``, ``checksum``, ``0``, ``1`` … Not compressed: features hardly are smaller for it, and take longer."""

    SUFFIX: ClassVar[str] = "npz"

    def file_of(self, members: Sequence[Tuple[str, Any]]) -> io.BytesIO:
        made = io.BytesIO()
        numpy.savez(made, **dict(members))  # never objects: what was taken apart holds none
        return made

    def read(self, path: str) -> "NpzReading":
        file = open(path, "rb")  # noqa: SIM115  # the reading closes it
        try:
            return NpzReading(file)
        except BaseException:
            file.close()
            raise


class NpzReading(Reading):
    """An open NPZ. Raises ``EntryDamaged`` where it is none."""

    def __init__(self, file: Any) -> None:
        self._file = file
        try:
            self._arrays = numpy.load(file, allow_pickle=False)
        except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
            raise EntryDamaged(str(error)) from error
        if not isinstance(self._arrays, numpy.lib.npyio.NpzFile):
            raise EntryDamaged("it is no NPZ")

    def array(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(str(error)) from error

    def __exit__(self, *raised: object) -> None:
        self._arrays.close()
        self._file.close()
