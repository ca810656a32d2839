"""The frames of clips in LMDB: an entry a frame, and one more that says that all are there.

An entry is that of a memo, with its checksum. A clip is looked up by its last one, which has its ``ClipInfo`` and the size of its frames
and is written behind all others: where the process that writes is killed, the clip is not there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy

from forebay_loader.memos.entry import EntryDamaged, packed
from forebay_loader.memos.frames.jpeg import JpegReader, JpegWriter
from forebay_loader.memos.kept_value import KeptValue
from forebay_loader.memos.stores.choice import take_folder
from forebay_loader.memos.stores.lmdb_store import LmdbStore, parts_of
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata import record
from forebay_loader.videos.sources.video_source import room_for

__all__ = ["ASKS", "FrameStore", "KeptClip", "clip_key", "spool_most"]

ASKS = "fb.frames"
_FORMAT = 1  # of keys, entries and pixels: what was kept under another is not found
_END = 0xFFFFFFFF  # in the place of a frame's number
_COMMIT_BYTES = 16 << 20


def spool_most(size_bytes: int) -> int:
    """How many bytes of ``size_bytes`` may be clips that wait."""
    return min(1 << 30, size_bytes // 10)


def clip_key(identity: Sequence[Any], size: Any, quality: Optional[int]) -> bytes:
    """20 bytes. ``identity`` says which bytes the clip has."""
    return blake2b(repr((_FORMAT, tuple(identity), size, quality)).encode(), digest_size=20).digest()


class KeptClip(NamedTuple):
    """A clip of which all frames are kept, ``height`` x ``width`` each."""

    key: bytes
    info: ClipInfo
    height: int
    width: int


class FrameStore:
    """In ``folder``, which is made. Raises ``MemoError`` where it is of something else; all raise ``OSError``."""

    def __init__(self, folder: str, size_bytes: int) -> None:
        room = size_bytes - spool_most(size_bytes)
        told = take_folder(folder, {"store": "frames", "parts": parts_of(room)}, ASKS)
        self._store = LmdbStore(folder, room, int(told["parts"]), ASKS)

    def find(self, key: bytes) -> Optional[KeptClip]:
        """The clip, or None. Raises ``EntryDamaged``."""
        found = self._store.get(_entry_key(key, _END))
        if found is None:
            return None
        told = json.loads(found.text)
        info = record.unpacked(found.arrays[0].tobytes()).info
        return KeptClip(key, info, told["height"], told["width"])

    def frames(self, clip: KeptClip, indices: Sequence[int], jpegs: JpegReader) -> Any:
        """Frames by number, T x H x W x 3 uint8, as ``VideoSource.frames``. Raises ``EntryDamaged``, also for one that is not there."""
        found = room_for(len(indices), (clip.height, clip.width, 3))
        first: dict[int, int] = {}
        for place, number in enumerate(indices):
            if not 0 <= number < clip.info.frames:
                raise IndexError(f"frame {number} of {clip.info.frames}")
            if first.setdefault(number, place) != place:
                found[place] = found[first[number]]
                continue
            kept = self._store.get(_entry_key(clip.key, number))
            if kept is None:
                raise EntryDamaged("it is not there")
            (data,) = kept.arrays
            try:
                if data.ndim == 1:
                    jpegs.into(data, found[place])
                else:
                    found[place] = data
            except ValueError as error:
                raise EntryDamaged(str(error)) from None
        return found

    def keep(self, key: bytes, info: ClipInfo, frames: Iterator[Tuple[int, Any]], quality: Optional[int]) -> None:
        """Keep all ``frames`` of a clip, each with its number, some MB a commit. Raises ``StoreFull``; then none is kept.

        Raises ``ValueError`` where a frame is missing, and what ``frames`` raises.
        """
        writer = None if quality is None else JpegWriter(quality)
        entries: List[bytes] = []
        numbers: List[int] = []
        waiting, shape = 0, (0, 0)
        try:
            self._store.drop([_entry_key(key, _END)])  # what is written anew is not there meanwhile
            for number, pixels in frames:
                shape = pixels.shape[:2]
                data = pixels if writer is None else numpy.frombuffer(writer.written(pixels), numpy.uint8)
                entries.append(_entry(_entry_key(key, number), data))
                numbers.append(number)
                waiting += len(entries[-1])
                if waiting > _COMMIT_BYTES:
                    self._store.put(entries)
                    entries, waiting = [], 0
            if sorted(numbers) != list(range(info.frames)):
                raise ValueError(f"{len(numbers)} of its {info.frames} frames came")
            self._store.put(entries)
            said = numpy.frombuffer(record.packed(record.ClipRecord("", 0, "", info)), numpy.uint8)
            self._store.put([_entry(_entry_key(key, _END), said, height=shape[0], width=shape[1])])
        except BaseException:
            with suppress(OSError):  # where it is full, that may need room too
                self._store.drop([_entry_key(key, number) for number in numbers])
            raise

    def close(self) -> None:
        self._store.close()


def _entry_key(key: bytes, number: int) -> bytes:
    """All of a clip lie beside each other, and in one file: its last byte says which."""
    return key[:-1] + number.to_bytes(4, "big") + key[-1:]


def _entry(key: bytes, data: Any, **more: int) -> bytes:
    text = json.dumps({**more, "arrays": [[data.dtype.str, list(data.shape)]]}).encode()
    return packed(key, KeptValue(text, [numpy.ascontiguousarray(data)]))
