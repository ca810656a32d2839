"""What a table knows of clips, for people and for programs: ``forebay index --video TABLE --list``."""

from __future__ import annotations

import json
from typing import Any, Iterator

from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord

__all__ = ["listed"]

_HEAD = ("clip", "frames", "seconds", "size", "keyframes", "motion", "loudness")


def listed(table: ClipTable, *, as_json: bool) -> Iterator[str]:
    """A line for each clip, by name. ``motion`` and ``loudness`` are means over the clip, 0 to 1; "-" (null) where nobody looked.

    Raises ``FileNotFoundError`` and ``CorruptClipTable``.
    """
    rows = sorted((_row(record) for record in table.records()), key=lambda row: row["clip"])
    if as_json:
        yield from map(json.dumps, rows)
        return
    texts = [_HEAD, *(tuple(_text(row[name]) for name in _HEAD) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts)]  # noqa: B905  # 3.9
    for clip, *others in texts:
        yield "  ".join([clip.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:]))])  # noqa: B905  # 3.9


def _row(record: ClipRecord) -> "dict[str, Any]":
    info = record.info
    return {
        "clip": record.name.replace("\n", "/"),
        "frames": info.frames,
        "seconds": round(info.duration_s, 3),
        "size": f"{info.width}x{info.height}",
        "keyframes": len(info.keyframes),
        "motion": _mean(info.motion),
        "loudness": _mean(info.audio_energy),
    }


def _mean(values: Any) -> Any:
    return round(sum(values) / len(values), 4) if values else None


def _text(value: Any) -> str:
    """A name may hold anything, a terminal's commands too."""
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)
    return "-" if value is None else str(value)
