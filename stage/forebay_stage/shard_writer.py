"""Writes one output shard to a local file: a tar whose bytes depend on its samples alone, its sample index, its checksum.

Bounded memory: a sample goes to the file as soon as it is added. What stays is the index, and the keys. The tar is the one that ``tarfile``
would write, without the list of members that ``tarfile`` keeps.
"""

from __future__ import annotations

import builtins
import importlib
import os
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import xxhash

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.tar.sample_index import RESERVED, IndexBuilder, NotIndexable, encode, is_meta, split_name
from forebay_stage.errors import SampleFailed, StageError

__all__ = ["ShardWriter", "Written", "zstd_module"]

MODE = 0o444  # as webdataset's TarWriter
_BUFFER_BYTES = 1 << 20
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")  # Python 3.14's own, and the same for older ones


@dataclass(frozen=True, slots=True)
class Written:
    """A finished shard: its file's size and XXH3-128, how many samples it has, and its encoded sample index.

    A compressed shard has no index: no sample can be read out of its middle. ``index`` is empty then.
    """

    bytes: int
    samples: int
    xxh128: str
    index: builtins.bytes


class ShardWriter:
    """Use it with ``with``: the end of the block completes the tar. After an error, the file at ``path`` is incomplete."""

    def __init__(self, path: Path, zstd_level: int | None = None) -> None:
        self._path = path
        self._compressor: Final = None if zstd_level is None else zstd_module().ZstdCompressor(level=zstd_level)
        self._hash = xxhash.xxh3_128()
        self._index = IndexBuilder()
        self._from: dict[str, str] = {}  # by key: the shard that its sample came from
        self._tar_bytes = self._file_bytes = 0

    def __enter__(self) -> ShardWriter:
        try:
            self._file = self._path.open("wb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise self._failed(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            with suppress(OSError):  # a full disk would refuse once more what is still in the buffer
                self._file.close()
            return
        try:
            with self._file:
                end = self._tar_bytes + 2 * tarfile.BLOCKSIZE
                self._write(bytes(2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))
                if self._compressor is not None:
                    self._store(self._compressor.flush())
        except OSError as failed:
            raise self._failed(failed) from failed

    @staticmethod
    def check(sample: Mapping[str, Any]) -> None:
        """Raises ``SampleFailed`` as ``add`` would."""
        _files_of(sample)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Write a sample, its fields in their own order.

        Raises ``SampleFailed``, and nothing of the sample is written, for one that no reader would get back. Raises ``StageError`` for a
        key that the shard already has, for a shard with too many samples, and for a full disk.
        """
        key, files = _files_of(sample)
        came = str(sample.get("__url__", "a step"))
        if key in self._from:
            raise StageError(
                f"sample {key}, from {came}: the same output shard already has a sample of this key, from {self._from[key]}",
                next_step="give each sample of a shard another key: a step that makes several samples of one adds a number to the key",
            )
        self._from[key] = came
        try:
            for name, data in files:
                self._add_file(name, data)
        except NotIndexable as error:
            raise StageError(f"the output shard becomes too large: {error}", next_step="ask for fewer --samples-per-shard") from error
        except OSError as error:
            raise self._failed(error) from error

    def finished(self) -> Written:
        """What was written; after the ``with`` block."""
        index = b"" if self._compressor else encode(self._index.finished(self._tar_bytes))
        return Written(self._file_bytes, len(self._from), self._hash.hexdigest(), index)

    def _add_file(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), MODE
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._index.add(name, self._tar_bytes, len(data))
        self._write(data)
        self._write(bytes(-len(data) % tarfile.BLOCKSIZE))

    def _write(self, data: bytes) -> None:
        self._tar_bytes += len(data)
        self._store(data if self._compressor is None else self._compressor.compress(data))

    def _store(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._file_bytes += len(data)

    def _failed(self, error: OSError) -> StageError:
        return StageError(
            f"scratch file {self._path}: {os.strerror(error.errno or 0)} after {self._file_bytes} bytes",
            next_step="make room for the scratch files and run the same command again: it continues with what is missing",
        )


def zstd_module() -> Any:
    """The module with ``ZstdCompressor``. Raises ``ConfigError`` where there is none: ask for it before the work begins."""
    for name in _ZSTD_MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError("--zstd needs a module that this Python lacks", next_step="pip install backports.zstd, or use Python 3.14 or newer")


def _files_of(sample: Mapping[str, Any]) -> tuple[str, list[tuple[str, bytes]]]:
    """The key; names and bytes of the files. Raises ``SampleFailed`` where a reader would find another sample than this."""
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise SampleFailed(str(key), "write", f"__key__ is {type(key).__name__}, not text")
    files: list[tuple[str, bytes]] = []
    suffixes: set[str] = set()
    for field, data in sample.items():
        if field in RESERVED:
            continue
        if not isinstance(field, str):
            raise SampleFailed(key, "write", f"the field name {field!r} is not text")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise SampleFailed(key, "write", f"field {field!r} is {type(data).__name__}, not bytes")
        name, suffix = f"{key}.{field}", field.lower()
        if split_name(name) != (key, suffix) or is_meta(name) or "\0" in name or suffix in RESERVED:
            raise SampleFailed(key, "write", f"a reader would not find this sample in a file named {name!r}")
        if suffix in suffixes:
            raise SampleFailed(key, "write", f"two fields are both {suffix!r} to a reader, which ignores capitals")
        suffixes.add(suffix)
        files.append((name, bytes(data)))
    if not files:
        raise SampleFailed(key, "write", "it has no fields, and a tar cannot hold a sample without files")
    return key, files
