"""Compressed shards: gzip, bzip2, xz (and lzma), zstd, told apart by their first bytes, never by name, as ``tarfile`` does it.

Further than ``tarfile`` in two ways: what follows the first compressed stream is read too (pigz, bgzip and ``cat`` make such files;
webdataset ends there in silence), and checksums and ends are verified.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import tarfile
import zlib
from typing import Any, Callable

from forebay_loader.samples.byte_window import Flowing, WindowedReader
from forebay_proxy.wire.tar.first_bytes import MAGIC_BYTES, compression_of
from forebay_proxy.wire.tar.members import BadTar

__all__ = ["Unpacking", "unpacked"]

_READ_BYTES = 64 * 1024  # packed; unpacked they are a window of a few hundred KiB
_MOST_BYTES = 4 << 20  # at once, where the format can be asked for that: 64 KiB of bzip2 may hold a gigabyte of zeros (of gzip 66 MB)
_ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard", "pyzstd")  # the first is Python 3.14's own


def unpacked(window: Flowing) -> Flowing:
    """``window`` itself, or one over what its compressed bytes hold."""
    kind = compression_of(window.read(0, MAGIC_BYTES))
    return window if kind is None else Flowing(WindowedReader(Unpacking(_Reader(window), kind)))


class _Reader:
    """A window as a ``read``."""

    def __init__(self, window: Flowing) -> None:
        self._window = window
        self._at = 0

    def __call__(self, size: int) -> bytes:
        part = self._window.read(self._at, size)
        self._at += len(part)
        return part


class Unpacking:
    """What ``read`` gives, decompressed; itself a ``read``. Raises ``tarfile.ReadError`` for damaged or cut data."""

    def __init__(self, read: Callable[[int], bytes], kind: str) -> None:
        self._read = read
        self._kind = kind
        self._new = _decompressor(kind)
        self._streams = 0
        self._current: Any = None
        self._rest = b""

    def __call__(self, size: int) -> bytes:
        """The next decompressed bytes, as many as one part of the packed ones holds, whatever ``size``; b"" at the end."""
        while True:
            packed = b""
            if getattr(self._current, "needs_input", True):  # else it holds more than it was asked for
                packed, self._rest = self._rest or self._read(_READ_BYTES), b""
                if not packed and self._current is not None:
                    raise tarfile.ReadError(f"unexpected end of data: the {self._kind} stream is cut off")
                if not packed:
                    return b""
            if self._current is None:
                packed = self._begin(packed)
                if not packed:
                    continue
            found = self._unpacked(packed)
            if found:
                return found

    def _begin(self, packed: bytes) -> bytes:
        """Start the next compressed stream; zeros between two are padding."""
        packed = packed.lstrip(b"\0")
        while packed and len(packed) < MAGIC_BYTES:
            part = self._read(_READ_BYTES)
            if not part:
                break
            packed += part
        if self._streams and packed and compression_of(packed) != self._kind:
            raise BadTar("after-end", 0, f"data that is not {self._kind} after the compressed stream")
        if packed:
            self._current = self._new()
            self._streams += 1
        return packed

    def _unpacked(self, packed: bytes) -> bytes:
        try:
            most = (_MOST_BYTES,) if hasattr(self._current, "needs_input") else ()
            found: bytes = self._current.decompress(packed, *most)
        except Exception as error:  # each module has its own
            raise tarfile.ReadError(f"invalid compressed data ({self._kind}): {error}") from error
        if self._current.eof:
            self._rest, self._current = bytes(self._current.unused_data), None
        return found


def _decompressor(kind: str) -> Callable[[], Any]:
    """Makes decompressors: ``decompress``, ``eof``, ``unused_data``."""
    if kind == "gz":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)
    if kind == "bz2":
        return bz2.BZ2Decompressor
    if kind == "xz":
        return lzma.LZMADecompressor
    return _zstd()


def _zstd() -> Callable[[], Any]:
    for name in _ZSTD_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "zstandard":
            return lambda: module.ZstdDecompressor().decompressobj()
        found: Callable[[], Any] = module.ZstdDecompressor
        return found
    raise tarfile.CompressionError(
        "compressed with zstd, which this Python cannot read: install `zstandard` in the training environment, or use Python 3.14 or newer"
    )
