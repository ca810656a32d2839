"""Frames that were decoded before: an LMDB with one picture a key. A clip's frames are the keys that begin with its name, by their numbers.

So every layout is read that counts: ``clip7/000000``, ``clip7/000001.jpg`` …, as BasicSR and many recipes have it, and ``clip7/9``,
which an LMDB has behind ``clip7/10``. What has a further ``/`` in its key is another clip's. Or an LMDB is one clip's, with keys ``0``,
``1`` … and no name before them.
Values are JPEG, PNG, WebP or BMP, told apart by their first bytes.
"""

from __future__ import annotations

import importlib
import os
import re
import weakref
from array import array
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import av
from av.error import FFmpegError

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.decode.frames import packet_of
from forebay_loader.videos.decode.pictures import Pictures
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError
from forebay_loader.videos.sources.video_source import VideoSource, room_for

__all__ = ["FramesSource", "in_order"]


# The order of a clip's frames among the keys of a table: that of the numbers in their names, with leading zeros or without.
_NUMBERS = re.compile(rb"([0-9]+)")
_SUFFIX = re.compile(rb"\.[A-Za-z][A-Za-z0-9]*$")

Name = Tuple[object, ...]


def in_order(keys: Iterable[bytes], prefix: bytes) -> List[bytes]:
    """``keys``, which begin with ``prefix``, as their frames follow each other; those with another ``/`` behind it are another clip's.

    A run of digits is a whole number, so ``9`` comes before ``10``, and ``0009`` is 9; the rest is compared as bytes; a suffix such as
    ``.jpg`` does not count. Raises ``CorruptVideo`` for two keys of the same frame: nobody could say which one it is.
    """
    found: Dict[Name, bytes] = {}
    for key in keys:
        name = key[len(prefix) :]
        if b"/" in name:
            continue
        other = found.setdefault(_name(name), key)
        if other is not key:
            raise CorruptVideo(f"keys {_shown(other)} and {_shown(key)} are of the same frame")
    return [found[name] for name in sorted(found)]  # text and number in turn, so like is compared with like


def _name(name: bytes) -> Name:
    parts = _NUMBERS.split(_SUFFIX.sub(b"", name))
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))


# A process opens an LMDB once, for all clips in it. Without a lock file there is nothing in it that a forked child may not go on with.
_OPEN: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_MOST_PIXELS = str(1 << 27)  # of one picture: its decoder makes none that is larger
_KINDS = ((b"\xff\xd8", "mjpeg"), (b"\x89PNG", "png"), (b"RIFF", "webp"), (b"BM", "bmp"))


class FramesSource(VideoSource):
    """A ``VideoSource`` over the frames of ``clip`` in the LMDB at ``path``, of ``fps`` frames a second; it has no sound.

    ``clip`` "": all keys of the LMDB are of one clip.
    ``size`` as in ``check_size``. Raises ``ModuleNotFoundError`` without the extra ``lmdb``, ``UnsupportedVideo`` where there is no such
    LMDB; ``CorruptVideo`` where no key begins with the clip's name, two are of the same frame, a value is no picture, or the LMDB is cut
    short.
    """

    def __init__(self, path: "str | os.PathLike[str]", clip: str = "", *, fps: float = 25.0, size: Size = None) -> None:
        if not fps > 0:
            raise ValueError(f"fps takes frames a second, above 0; got {fps!r}")
        self._path, self._clip = os.fspath(path), clip
        self.name, self.shard = self._clip, self._path
        self._fps, self._size = fps, size
        self._base: Any = None
        self._keys: List[bytes] = []
        self._pictures: Optional[Pictures] = None

    def __repr__(self) -> str:
        return f"<FramesSource {self._clip or 'one clip'} in {self._path}{', open' if self._base else ''}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_base": None, "_keys": [], "_pictures": None}

    def open(self) -> ClipInfo:
        if self._base is None:
            with self._named():
                base = self._opened()
                self._keys = _keys_in(base, self._clip)
                self._base = base
                first = self._decoded(0)
                self._pictures = Pictures(first.width, first.height, 0, self._size)
                self._width, self._height = first.width, first.height
        count = len(self._keys)
        times = array("d", (number / self._fps for number in range(count)))
        return ClipInfo(count, times, count / self._fps, self._width, self._height, keyframes=tuple(range(count)))

    def frames(self, indices: Sequence[int]) -> Any:
        self.open()
        assert self._pictures is not None
        for index in indices:
            if not 0 <= index < len(self._keys):
                raise IndexError(f"frame {index} of {len(self._keys)}")
        with self._named():
            found = room_for(len(indices), self._pictures.shape)
            for place, index in enumerate(indices):
                self._pictures.into(self._decoded(index), found[place])
        COUNTS.add("video_frames", len(indices))
        return found

    def version(self) -> str:
        found = os.stat(_data_file(self._path))
        return f"{found.st_size} {found.st_mtime_ns}"

    def close(self) -> None:
        self._base, self._keys = None, []

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What knows no names raises without them."""
        try:
            yield
        except VideoError as error:
            if self._pictures is None:  # so that another try opens it again
                self.close()
            raise error.of(self._clip or os.path.basename(self._path.rstrip("/")), self._path) from error

    def _opened(self) -> Any:
        lmdb = importlib.import_module("lmdb")
        path = os.path.realpath(self._path)
        found = _OPEN.get(path)
        if found is None:
            try:
                # Without its lock file: a data set may lie where nobody here may write.
                found = lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, create=False)
            except lmdb.Error as error:
                raise UnsupportedVideo(f"is in no LMDB: {error}") from None
            _check_whole(found, path)
            _OPEN[path] = found
        return found

    def _decoded(self, number: int) -> Any:
        with _reading(self._base) as transaction:
            value = bytes(transaction.get(self._keys[number], b""))
        kind = next((name for magic, name in _KINDS if value.startswith(magic)), None)
        if kind is None:
            raise CorruptVideo(f"frame {number} is no picture of a kind that is read: JPEG, PNG, WebP or BMP")
        try:
            context: Any = av.CodecContext.create(kind, "r")
            context.options = {"max_pixels": _MOST_PIXELS}
            frames = [*context.decode(packet_of(value, 0, 0)), *context.decode(None)]
        except FFmpegError as error:
            raise CorruptVideo(f"frame {number} cannot be decoded: {error.strerror}") from None
        if len(frames) != 1 or frames[0].is_corrupt:
            raise CorruptVideo(f"frame {number} is damaged")
        COUNTS.add("video_packets")
        return frames[0]


def _keys_in(base: Any, clip: str) -> List[bytes]:
    prefix = clip.rstrip("/").encode() + b"/" if clip else b""
    keys: List[bytes] = []
    with _reading(base) as transaction, transaction.cursor() as cursor:
        there = cursor.set_range(prefix) if prefix else cursor.first()
        while there and cursor.key().startswith(prefix):
            keys.append(bytes(cursor.key()))
            there = cursor.next()
    found = in_order(keys, prefix)
    if not found:
        raise CorruptVideo(f"no key begins with {prefix.decode()!r} and a frame's number" if clip else "no key is a frame's number")
    return found


@contextmanager
def _reading(base: Any) -> Iterator[Any]:
    lmdb = importlib.import_module("lmdb")
    try:
        with base.begin() as transaction:
            yield transaction
    except lmdb.Error as error:
        raise CorruptVideo(f"the LMDB cannot be read: {error}") from None


def _check_whole(base: Any, path: str) -> None:
    """Raises ``CorruptVideo`` for one that was cut: it is mapped, and reading behind a file's end ends the process."""
    pages, page_bytes = base.info()["last_pgno"] + 1, base.stat()["psize"]
    there = os.path.getsize(_data_file(path))
    if pages * page_bytes > there:
        base.close()
        raise CorruptVideo(f"the LMDB is cut short: {there} of its {pages * page_bytes} bytes are there")


def _data_file(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path
