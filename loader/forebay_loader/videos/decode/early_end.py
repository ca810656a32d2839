"""How long a clip says that it is, and whether that much came: notices, for what says nothing of its bytes may have been cut between two.

Matroska and FLV write a length in seconds, ASF one in bytes that not every tool keeps true; Ogg marks the last page of a stream, and a
transport stream's packets have one size.
"""

from __future__ import annotations

import struct
from typing import Optional

from forebay_loader.videos.decode.clip_end import elements, ogg_pages
from forebay_loader.videos.decode.frames import Buffer

__all__ = ["early_end"]

_LEAST_S = 2.0  # rounding, and a track of captions that ends last
_SHARE = 0.05
_INFO, _DURATION, _TICK = 0x1549A966, 0x4489, 0x2AD7B1
_TS_BYTES, _TS_SYNC = 188, 0x47
_ASF = b"0&\xb2u"
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")  # the GUID of its file properties
_FLV_SAYS = b"\x00\x08duration\x00"  # of onMetaData, before a double


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
