"""What is known of one clip, as bytes: a fixed head, then arrays and names whose lengths it says. Little-endian, nothing is unpickled.

| bytes | what |
|---|---|
| 8 | length of the clip in bytes |
| 8 | ``duration_s`` (double) |
| 8 x 4 | lengths of name, times, keyframes, motion and audio energy; width, height, ``audio_rate_hz`` |
| 2, 2 | ``rotation_deg``; flags: 1 motion is known, 2 audio energy is known, 4 ``mirrored`` |
| 4 | length of the version's name |
| 8 each | ``times_s`` (double) |
| 4 each | keyframes; motion; audio energy (float) |
| | name, version (UTF-8; of names in a tar whatever bytes they have) |
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from struct import Struct
from typing import Any, NamedTuple, Optional, Union

from forebay_loader.base.errors import LoaderError
from forebay_loader.videos.clip_info import ClipInfo

__all__ = ["RECORD_VERSION", "ClipRecord", "CorruptClipTable", "clip_name", "packed", "unpacked"]

_HEAD = Struct("<Qd8I2HI")
RECORD_VERSION = 1  # of these bytes
_MOTION, _AUDIO, _MIRRORED = 1, 2, 4
_TEXT = ("utf-8", "surrogateescape")  # a name in a tar may be of any bytes
Buffer = Union[bytes, memoryview]


class CorruptClipTable(LoaderError):
    """A file of clip metadata that is none, is of another version, or holds other bytes than were written; it is named in the text."""


class ClipRecord(NamedTuple):
    """One clip: its name (``clip_name``), its length in bytes, the version (ETag) of the shard it was seen in, and what is known of it."""

    name: str
    clip_bytes: int
    version: str
    info: ClipInfo


def clip_name(shard: str, member: str = "") -> str:
    """How a table calls a clip: the shard's URL without its query, and the member's name in it; of a clip that is a file, that alone."""
    return f"{shard.partition('?')[0]}\n{member}" if member else shard.partition("?")[0]


def packed(record: ClipRecord) -> bytes:
    """``record`` as bytes. Raises ``OverflowError`` for a number that has no room, such as a frame number beyond 32 bits."""
    info, name, version = record.info, record.name.encode(*_TEXT), record.version.encode(*_TEXT)
    motion, audio = _known(info.motion), _known(info.audio_energy)
    flags = _MOTION * (info.motion is not None) | _AUDIO * (info.audio_energy is not None) | _MIRRORED * info.mirrored
    head = _HEAD.pack(
        record.clip_bytes, info.duration_s, len(name), info.frames, len(info.keyframes), len(motion), len(audio), info.width, info.height,
        info.audio_rate_hz, info.rotation_deg, flags, len(version),
    )  # fmt: skip
    return b"".join((head, *(_bytes(part) for part in (info.times_s, array("I", info.keyframes), motion, audio)), name, version))


def unpacked(buffer: Buffer) -> ClipRecord:
    """The record in ``buffer``, which is read within its bounds. Raises ``CorruptClipTable`` for bytes that are none."""
    head, (times, keyframes, motion, audio, name, version) = _parts(buffer)
    flags = head[11]
    try:
        info = ClipInfo(
            head[3], _array("d", buffer[_HEAD.size : times]), head[1], head[7], head[8], head[10],
            tuple(_array("I", buffer[times:keyframes])), head[9],
            _array("f", buffer[keyframes:motion]) if flags & _MOTION else None,
            _array("f", buffer[motion:audio]) if flags & _AUDIO else None,
            bool(flags & _MIRRORED),
        )  # fmt: skip
        return ClipRecord(str(buffer[audio:name], *_TEXT), head[0], str(buffer[name:version], *_TEXT), info)
    except ValueError as error:  # counts that contradict each other
        raise CorruptClipTable(f"no record of a clip: {error}") from error


def _parts(buffer: Buffer) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Its head, and where times, keyframes, motion, audio energy, name and version end. Together they are exactly the buffer: no part can
    lie outside."""
    if len(buffer) < _HEAD.size:
        raise CorruptClipTable(f"no record of a clip: {len(buffer)} bytes")
    head = _HEAD.unpack_from(buffer)
    sizes = (_HEAD.size + 8 * head[3], 4 * head[4], 4 * head[5], 4 * head[6], head[2], head[12])
    ends = tuple(accumulate(sizes))
    if ends[-1] != len(buffer):
        raise CorruptClipTable(f"no record of a clip: its parts have {ends[-1]} bytes, and there are {len(buffer)}")
    return head, ends


def _known(values: Optional[array[float]]) -> array[float]:
    return array("f") if values is None else values


def _array(code: str, data: Buffer) -> Any:
    found: array[Any] = array(code)
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _bytes(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
