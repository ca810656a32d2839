"""One index row: what the index claims about one version of one shard, and its JSON form. Pure.

A row that is read back is checked: every field has one type and one shape, and the key must follow from name and identity. So no row can
claim another shard's file. Anything else is refused.

The checksums are written as runs, ``[first segment, base64 of eight bytes each]``, next to the segment size. So a row is as long as
the stored part needs, whatever length the origin names.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from array import array
from dataclasses import dataclass
from typing import Any

from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.segments import MOST_BYTES, SegmentLayout
from forebay_proxy.core.shard import Pin, PinKind, Version, store_key

__all__ = ["MAX_ROW_BYTES", "InvalidRow", "Row", "commit_bytes", "decode", "encode"]

_KEY = re.compile(r"[0-9a-f]{64}")
_MAC = re.compile(r"[0-9a-f]{32}")
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]")  # texts of a row go back into headers, and into a hash
_FIELDS = frozenset({"url", "identity", "pin", "length", "encoding", "type", "access", "boot", "sums"})
_SUMS = frozenset({"segment", "runs"})
_OPTIONAL = frozenset({"modified", "chosen"})  # missing if the origin tells no date or has one variant only, and in rows of older sidecars
_PINS = [kind.value for kind in PinKind]
MAX_ROW_BYTES = 2**26  # the row of the longest shard takes 45 MB if all of it is stored, 50 MB if every other segment is
_SEGMENT_TEXT_BYTES = 25  # of a segment that stands alone; in a run each takes 11
# Copies of a row's text written by one commit: its pages in the log and then in the database, or twice in the log when they overwrite the
# text before. Measured: 2.04 at most.
_COPIES = 3


class InvalidRow(ValueError):
    """The text is not a row of ours."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the index claims about one version of one shard.

    Args:
        key: The store key.
        url: The shard's canonical name.
        version: The version.
        access: HMACs of the credentials that may read it; empty: every client that may use the sidecar.
        boot: The boot of the machine, and the folder, in which it was written.
        sums: The xxh3_64 of each stored segment.
        chosen: HMAC of the request headers that selected this variant; "" for none.
    """

    key: str
    url: str
    version: Version
    access: tuple[str, ...]
    boot: str
    sums: Checksums
    chosen: str = ""

    @property
    def claimed(self) -> int:
        """How many segments the row claims."""
        return len(self.sums)

    @classmethod
    def of(cls, url: str, version: Version, access: tuple[str, ...], boot: str, sums: Checksums, chosen: str = "") -> Row:
        """The row of one version; the key is computed."""
        return cls(store_key(url, version.identity, chosen), url, version, access, boot, sums, chosen)

    def check(self) -> None:
        """Raises ValueError for a row that could not be read back."""
        if self.key != store_key(self.url, self.version.identity, self.chosen) or not self.version.identity:
            raise ValueError(f"row of {self.url}: the key does not follow from name and identity")


def commit_bytes(segments: int) -> int:
    """By how many bytes one commit of a row with so many segments may grow the database and its log, apart from its other fields."""
    return _COPIES * _SEGMENT_TEXT_BYTES * segments


def encode(row: Row, layout: SegmentLayout) -> str:
    """The JSON text, ASCII only, of a row that passed ``check``. ``layout`` gives the segment size of its sums."""
    version = row.version
    fields: dict[str, Any] = {
        "url": row.url,
        "identity": version.identity,
        "pin": [version.pin.kind.value, version.pin.value],
        "length": version.length,
        "encoding": version.encoding,
        "type": version.content_type,
        "access": row.access,
        "boot": row.boot,
        "sums": {"segment": layout.segment_bytes, "runs": [[first, _text_of(sums)] for first, sums in row.sums.runs()]},
    }
    if version.modified:
        fields["modified"] = [version.modified, version.second_over]
    if row.chosen:
        fields["chosen"] = row.chosen
    return json.dumps(fields, separators=(",", ":"))


def decode(key: str, text: str, layout: SegmentLayout) -> Row:
    """The row stored under ``key``. Raises InvalidRow unless ``text`` has exactly the shape of ``encode``, and sums of this ``layout``."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRow("not JSON") from error
    if not isinstance(fields, dict) or fields.keys() - _OPTIONAL != _FIELDS:
        raise InvalidRow("other fields")
    length, pin, modified = fields["length"], fields["pin"], fields.get("modified", ["", False])
    access, chosen = fields["access"], [fields["chosen"]] if "chosen" in fields else []
    _must(_KEY.fullmatch(key), "key")
    _must(length is None or (type(length) is int and 0 <= length <= MOST_BYTES), "length")
    _must(isinstance(pin, list) and len(pin) == 2 and pin[0] in _PINS, "pin")
    _must(isinstance(modified, list) and len(modified) == 2 and isinstance(modified[1], bool), "modified")
    _must(isinstance(access, list) and all(isinstance(mac, str) and _MAC.fullmatch(mac) for mac in access + chosen), "access")
    for name in ("url", "identity", "encoding", "type", "boot"):
        _must(_is_text(fields[name]), name)
    _must(_is_text(pin[1]) and _is_text(modified[0]), "pin or modified")
    found = Pin(PinKind(pin[0]), pin[1])
    _must(bool(found) == bool(found.value), "pin")
    version = Version(fields["identity"], found, length, fields["encoding"], fields["type"], modified[0], modified[1])
    sums = _sums(fields["sums"], length, layout)
    row = Row.of(fields["url"], version, tuple(access), fields["boot"], sums, *chosen)
    _must(row.key == key and version.identity, "the key does not follow from name and identity")
    return row


def _must(holds: object, what: str) -> None:
    if not holds:
        raise InvalidRow(what)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not _UNFIT.search(value)


def _sums(value: object, length: int | None, layout: SegmentLayout) -> Checksums:
    most = layout.count(MOST_BYTES if length is None else length)
    if not isinstance(value, dict) or value.keys() != _SUMS or type(value["segment"]) is not int or not isinstance(value["runs"], list):
        raise InvalidRow("sums")
    _must(value["segment"] == layout.segment_bytes, "sums of other segments")
    sums = Checksums()
    for run in value["runs"]:
        _add(sums, run, most)
    return sums


def _add(sums: Checksums, run: object, most: int) -> None:
    if not isinstance(run, list) or len(run) != 2 or type(run[0]) is not int or not 0 <= run[0] < most:
        raise InvalidRow("sums")
    try:
        sums.extend(run[0], _values(run[1]))
    except ValueError as error:
        raise InvalidRow("sums") from error
    if sums.last >= most:
        raise InvalidRow("sums do not fit the length")


def _values(value: object) -> array[int]:
    try:
        raw = base64.b64decode(value, validate=True) if isinstance(value, str) else b"?"
    except (binascii.Error, ValueError) as error:
        raise InvalidRow("sums") from error
    if len(raw) % 8:
        raise InvalidRow("sums")
    return _little_endian(array("Q", raw))


def _text_of(sums: array[int]) -> str:
    return base64.b64encode(_little_endian(sums).tobytes()).decode("ascii")


def _little_endian(sums: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return sums
    swapped = sums[:]
    swapped.byteswap()
    return swapped
