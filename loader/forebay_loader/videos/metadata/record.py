"""What is known of one clip, as bytes: a line of JSON, then arrays whose lengths it says, little-endian. Nothing is unpickled.

The line has ``name``, ``clip_bytes``, ``version``, ``info`` (the numbers of a ``ClipInfo``) and ``lengths``: of ``times_s`` (double),
keyframes (32 bits), motion and audio energy (float), null where it is not known.
"""

from __future__ import annotations

import json
from array import array
from typing import Any, NamedTuple, Union

from forebay_loader.base.errors import LoaderError
from forebay_loader.videos.clip_info import ClipInfo

__all__ = ["RECORD_VERSION", "ClipRecord", "CorruptClipTable", "clip_name", "packed", "unpacked"]

RECORD_VERSION = 2  # of these bytes
_CODES = "dIff"  # of the arrays
_NUMBERS = {"duration_s": float, "width": int, "height": int, "rotation_deg": int, "audio_rate_hz": int, "mirrored": bool}
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
    """``record`` as bytes. Raises ``OverflowError`` for a frame number beyond 32 bits."""
    info = record.info
    arrays = (info.times_s, array("I", info.keyframes), info.motion, info.audio_energy)
    head = {
        "name": record.name,
        "clip_bytes": record.clip_bytes,
        "version": record.version,
        "info": {name: kind(getattr(info, name)) for name, kind in _NUMBERS.items()},
        "lengths": [None if part is None else len(part) for part in arrays],
    }
    return b"".join([json.dumps(head).encode(), b"\n", *(part.tobytes() for part in arrays if part is not None)])


def unpacked(buffer: Buffer) -> ClipRecord:
    """The record in ``buffer``, which is read within its bounds. Raises ``CorruptClipTable`` for bytes that are none."""
    line, _, data = bytes(buffer).partition(b"\n")
    try:
        head = json.loads(line)
        numbers = {name: _typed(head["info"][name], kind) for name, kind in _NUMBERS.items()}
        times_s, keyframes, motion, audio_energy = _arrays(head["lengths"], data)
        info = ClipInfo(len(times_s), times_s, keyframes=tuple(keyframes), motion=motion, audio_energy=audio_energy, **numbers)
        return ClipRecord(_typed(head["name"], str), _typed(head["clip_bytes"], int), _typed(head["version"], str), info)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptClipTable(f"no record of a clip: {error}") from error


def _arrays(lengths: Any, data: bytes) -> list[Any]:
    """Together they are exactly ``data``: none can lie outside. Raises ``ValueError``, ``TypeError``."""
    found: list[Any] = []
    place = 0
    for code, length in zip(_CODES, lengths):  # noqa: B905  # strict= is not of 3.9; the end is checked
        part: Any = None
        if length is not None:
            part = array(code)
            end = place + part.itemsize * _typed(length, int)
            part.frombytes(data[place:end])
            if len(part) != length:
                raise ValueError(f"{length} numbers of which {len(part)} are there")
            place = end
        found.append(part)
    if place != len(data):
        raise ValueError(f"its arrays have {place} bytes, and there are {len(data)}")
    return found


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} must be")
    return value
