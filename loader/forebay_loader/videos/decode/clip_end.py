"""Whether a clip's file is all there, where its container says how long it is: demuxers give what comes before a cut, and say nothing.

Matroska and WebM have a size in each element, AVI in its RIFF chunks, FLV in its tags, Ogg in its pages. Sizes that are not known (a live
recording's) say nothing; MPEG-TS has none at all. Damage in the middle is left to who reads what is in it, and a cut between two of these
to ``early_end``.
"""

from __future__ import annotations

from typing import Dict, Iterator, Optional, Tuple

from forebay_loader.videos.decode.frames import Buffer
from forebay_loader.videos.errors import CorruptVideo

__all__ = ["check_end", "elements", "ogg_pages"]

_EBML, _SEGMENT, _CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_ANYWHERE = frozenset([0xEC, 0xBF])  # Void, CRC-32
# In a segment, and in a cluster: RFC 9559.
_TOP = _ANYWHERE | frozenset([0x114D9B74, 0x1549A966, 0x1654AE6B, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, _CLUSTER])
_IN_CLUSTER = frozenset([0xE7, 0xA7, 0xAB, 0xA0, 0xA3, 0x5854, 0xAF])
_UNKNOWN = -1
_FLV_TAGS = (8, 9, 18)


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
