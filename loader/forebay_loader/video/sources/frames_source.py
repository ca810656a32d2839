"""Frames that were decoded before: an LMDB with one picture a key. A clip's frames are the keys that begin with its name, in their order.

So every layout is read that counts with leading zeros: ``clip7/000000``, ``clip7/000001.jpg`` …, as BasicSR and many recipes have it.
Values are JPEG, PNG, WebP or BMP, told apart by their first bytes.
"""

from __future__ import annotations

import importlib
import os
import weakref
from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple

import av
import numpy
from av.error import FFmpegError

from forebay_loader.base.counters import COUNTS
from forebay_loader.video.clip_info import ClipInfo
from forebay_loader.video.decode.frame_size import Size
from forebay_loader.video.decode.frames import packet_of
from forebay_loader.video.decode.pictures import Pictures
from forebay_loader.video.errors import CorruptVideo, UnsupportedVideo

__all__ = ["FramesSource"]

# A process opens an LMDB once, for all clips in it. Without a lock file there is nothing in it that a forked child may not go on with.
_OPEN: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_KINDS = ((b"\xff\xd8", "mjpeg"), (b"\x89PNG", "png"), (b"RIFF", "webp"), (b"BM", "bmp"))


class FramesSource:
    """A ``VideoSource`` over the frames of ``clip`` in the LMDB at ``path``, of ``fps`` frames a second; it has no sound.

    ``size`` as in ``check_size``. Raises ``ModuleNotFoundError`` without the extra ``lmdb``, ``UnsupportedVideo`` where there is no such
    LMDB, ``CorruptVideo`` where no key begins with the clip's name, or a value is no picture.
    """

    def __init__(self, path: "str | os.PathLike[str]", clip: str, *, fps: float = 25.0, size: Size = None) -> None:
        if not fps > 0:
            raise ValueError(f"fps takes frames a second, above 0; got {fps!r}")
        self._path, self._clip = os.fspath(path), clip
        self._fps, self._size = fps, size
        self._base: Any = None
        self._keys: List[bytes] = []
        self._pictures: Optional[Pictures] = None

    def __repr__(self) -> str:
        return f"<FramesSource {self._clip} in {self._path}{', open' if self._base else ''}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_base": None, "_keys": [], "_pictures": None}

    def open(self) -> ClipInfo:
        if self._base is None:
            self._base = self._opened()
            self._keys = self._found()
            first = self._decoded(0)
            self._pictures = Pictures(first.width, first.height, 0, self._size)
            self._width, self._height = first.width, first.height
        count = len(self._keys)
        times = array("d", (number / self._fps for number in range(count)))
        return ClipInfo(count, times, count / self._fps, self._width, self._height, keyframes=tuple(range(count)))

    def frame(self, index: int) -> Any:
        return self.frames([index])[0]

    def frames(self, indices: Sequence[int]) -> Any:
        self.open()
        assert self._pictures is not None
        found = numpy.empty((len(indices), *self._pictures.shape), numpy.uint8)
        for place, index in enumerate(indices):
            if not 0 <= index < len(self._keys):
                raise IndexError(f"frame {index} of {len(self._keys)}")
            self._pictures.into(self._decoded(index), found[place])
        COUNTS.add("video_frames", len(indices))
        return found

    def audio(self, begin_s: float, end_s: float) -> Tuple[Any, int]:
        return numpy.zeros((0, 0), numpy.float32), 0

    def close(self) -> None:
        self._base, self._keys = None, []

    def __enter__(self) -> FramesSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Any:
        lmdb = importlib.import_module("lmdb")
        path = os.path.realpath(self._path)
        found = _OPEN.get(path)
        if found is None:
            try:
                # Without its lock file: a data set may lie where nobody here may write.
                found = lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, create=False)
            except lmdb.Error as error:
                raise UnsupportedVideo(f"is in no LMDB: {error}", self._clip, self._path) from None
            _OPEN[path] = found
        return found

    def _found(self) -> List[bytes]:
        prefix = self._clip.rstrip("/").encode() + b"/"
        keys: List[bytes] = []
        with self._base.begin() as transaction, transaction.cursor() as cursor:
            there = cursor.set_range(prefix)
            while there and cursor.key().startswith(prefix):
                keys.append(cursor.key())
                there = cursor.next()
        if not keys:
            raise CorruptVideo(f"no key begins with {prefix.decode()!r}", self._clip, self._path)
        return keys

    def _decoded(self, number: int) -> Any:
        with self._base.begin() as transaction:
            value = transaction.get(self._keys[number])
        kind = next((name for magic, name in _KINDS if value.startswith(magic)), None)
        if kind is None:
            raise CorruptVideo(f"frame {number} is no picture of a kind that is read: JPEG, PNG, WebP or BMP", self._clip, self._path)
        try:
            context: Any = av.CodecContext.create(kind, "r")
            frames = [*context.decode(packet_of(value, 0, 0)), *context.decode(None)]
        except FFmpegError as error:
            raise CorruptVideo(f"frame {number} cannot be decoded: {error.strerror}", self._clip, self._path) from None
        if len(frames) != 1 or frames[0].is_corrupt:
            raise CorruptVideo(f"frame {number} is damaged", self._clip, self._path)
        COUNTS.add("video_packets")
        return frames[0]
