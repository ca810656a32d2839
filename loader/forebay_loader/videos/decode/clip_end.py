"""Whether a clip's file is all there, where its container says how long it is: demuxers give what comes before a cut, and say nothing.

Matroska and WebM have a size in each element, AVI in its RIFF chunks, FLV in its tags, Ogg in its pages. Sizes that are not known (a live
recording's) say nothing; MPEG-TS has none at all. Damage in the middle is left to who reads what is in it.

What was cut between two of these is a notice (``early_end``), where the clip says how long it is: Matroska and FLV write a length in
seconds, ASF one in bytes that not every tool keeps true; Ogg marks the last page of a stream, and a transport stream's packets have one
size.
"""

from __future__ import annotations

import struct
from typing import Dict, Iterator, Optional, Tuple

from forebay_loader.videos.decode.frames import Buffer
from forebay_loader.videos.errors import CorruptVideo

__all__ = ["check_end", "early_end"]

_EBML, _SEGMENT, _CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_ANYWHERE = frozenset([0xEC, 0xBF])  # Void, CRC-32
# In a segment, and in a cluster: RFC 9559.
_TOP = _ANYWHERE | frozenset([0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, _CLUSTER])
_IN_CLUSTER = frozenset([0xE7, 0xA7, 0xAB, 0xA0, 0xA3, 0x5854, 0xAF])
_UNKNOWN = -1
_FLV_TAGS = (8, 9, 18)
_LEAST_S = 2.0  # rounding, and a track of captions that ends last
_SHARE = 0.05
_INFO, _DURATION, _TICK = 0x1549A966, 0x4489, 0x2AD7B1
_TS_BYTES, _TS_SYNC = 188, 0x47
_ASF = b"0&\xb2u"
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")  # the GUID of its file properties
_FLV_SAYS = b"\x00\x08duration\x00"  # of onMetaData, before a double


def check_end(data: Buffer) -> None:
    """Raise ``CorruptVideo`` where the clip ``data`` ends before its container does."""
    begin = bytes(data[:13])
    if begin[:4] == _EBML.to_bytes(4, "big"):
        end = _matroska_end(data)
    elif begin[:4] == b"RIFF" and begin[8:12] in (b"AVI ", b"AVIX"):
        end = _riff_end(data)
    elif begin[:3] == b"FLV":
        end = _flv_end(data, int.from_bytes(begin[5:9], "big"))
    elif begin[:4] == b"OggS":
        end = max(end for _, _, end in _pages(data))
    else:
        return
    if end > len(data):
        raise CorruptVideo(f"cut short: its container ends at byte {end}, and there are {len(data)}")


def _matroska_end(data: Buffer) -> int:
    """Where the last element ends that a walk from the begin meets; elements of unknown size are walked into."""
    at, inside = 0, frozenset([_EBML])
    while at < len(data):
        found = _element(data, at)
        if found is None:
            return at
        kind, body, size = found
        if kind not in inside:
            return at  # bytes behind the end, or damage
        if size != _UNKNOWN and kind == _SEGMENT:
            return body + size
        at = body if size == _UNKNOWN else body + size
        inside = frozenset([_SEGMENT]) if kind == _EBML else _TOP if kind == _SEGMENT else inside | _IN_CLUSTER
    return at


def elements(data: Buffer, at: int = 0) -> Iterator[Tuple[int, int, int]]:
    """(ID, where its body begins, its size) of the elements of a Matroska clip from byte ``at``; into segments, and no other, it walks."""
    found = _element(data, at)
    while found is not None:
        yield found
        kind, body, size = found
        found = _element(data, body if size == _UNKNOWN or kind == _SEGMENT else body + size)


def ogg_pages(data: Buffer) -> Dict[int, bool]:
    """Of each stream of an Ogg clip whether its last page is marked as the last (RFC 3533, 6)."""
    return {serial: last for serial, last, _ in _pages(data)}


def _pages(data: Buffer) -> Iterator[Tuple[int, bool, int]]:
    """(stream, whether it is its last, where it ends) of each page; the first at least, however short."""
    at = 0
    while bytes(data[at : at + 4]) == b"OggS":
        head = bytes(data[at : at + 27]).ljust(27, b"\0")
        sizes = bytes(data[at + 27 : at + 27 + head[26]])
        at += 27 + head[26] + sum(sizes)
        yield int.from_bytes(head[14:18], "little"), bool(head[5] & 4), at


def _flv_end(data: Buffer, at: int) -> int:
    """Where the last tag ends, with the size of it that follows; what is no tag of sound, pictures or script is behind the end."""
    at += 4
    while at < len(data) and data[at] & 0x1F in _FLV_TAGS:
        at += 15 + int.from_bytes(data[at + 1 : at + 4], "big")
    return at


def _element(data: Buffer, at: int) -> Optional[Tuple[int, int, int]]:
    """(ID, where its body begins, its size or ``_UNKNOWN``), or None where no element's head is (RFC 8794, 4)."""
    head = bytes(data[at : at + 12])
    id_length = _length(head[:1])
    size_length = _length(head[id_length : id_length + 1])
    if not 0 < id_length <= 4 or not size_length or len(head) < id_length + size_length:
        return None
    size = int.from_bytes(head[id_length : id_length + size_length], "big") & ((1 << 7 * size_length) - 1)
    unknown = size == (1 << 7 * size_length) - 1
    return int.from_bytes(head[:id_length], "big"), at + id_length + size_length, _UNKNOWN if unknown else size


def _length(first: bytes) -> int:
    """How many bytes a number of variable size has, by the leading zeros of its first; 0 where it is none."""
    return 9 - first[0].bit_length() if first and first[0] else 0


def _riff_end(data: Buffer) -> int:
    """Where the last RIFF chunk ends of those that follow each other (OpenDML has one a GiB). One that was never filled in says nothing."""
    at = end = 0
    while bytes(data[at : at + 4]) == b"RIFF":
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if size in (0, 0xFFFFFFFF):
            break
        end = at + 8 + size
        at = end + (size & 1)
    return end


def early_end(data: Buffer, end_s: float) -> str:
    """Why the clip ``data``, whose last packet ends at ``end_s`` by its container's clock, may be part of one; "" where nothing says so."""
    head = bytes(data[:4])
    if head == b"OggS":
        return "" if all(ogg_pages(data).values()) else "its last page is not marked as such"
    if head[:1] == bytes([_TS_SYNC]) and len(data) % _TS_BYTES and bytes(data[_TS_BYTES : _TS_BYTES + 1]) == head[:1]:
        return f"its last packet has {len(data) % _TS_BYTES} of {_TS_BYTES} bytes"
    if head == _ASF:
        said = _asf_bytes(data)
        return f"it says that it has {said} bytes, and there are {len(data)}" if said > len(data) else ""
    said_s = _matroska_s(data) if head == b"\x1aE\xdf\xa3" else _flv_s(data) if head[:3] == b"FLV" else None
    if said_s is None or not said_s - end_s > max(_LEAST_S, _SHARE * said_s):
        return ""
    return f"it says that it lasts {said_s:.1f} s, and what is in it ends at {end_s:.1f} s"


def _matroska_s(data: Buffer) -> Optional[float]:
    for kind, body, size in elements(data):
        if kind == _INFO:
            inside = {part: bytes(data[at : at + length]) for part, at, length in elements(data[: body + size], body)}
            said, tick = inside.get(_DURATION, b""), inside.get(_TICK, b"")
            if len(said) in (4, 8):
                (ticks,) = struct.unpack(">f" if len(said) == 4 else ">d", said)
                return float(ticks) * (int.from_bytes(tick, "big") or 1_000_000) / 1e9
            return None
    return None


def _asf_bytes(data: Buffer) -> int:
    """0 where it does not say, or was broadcast (ASF 3.2)."""
    head = bytes(data[: 64 << 10])
    at = head.find(_ASF_FILE)
    if at < 0 or len(head) < at + 92 or head[at + 88] & 1:
        return 0
    return int.from_bytes(head[at + 40 : at + 48], "little")


def _flv_s(data: Buffer) -> Optional[float]:
    head = bytes(data[:4096])
    at = head.find(_FLV_SAYS) + len(_FLV_SAYS)
    if at < len(_FLV_SAYS) or at + 8 > len(head):
        return None
    (said_s,) = struct.unpack(">d", head[at : at + 8])
    return float(said_s)
