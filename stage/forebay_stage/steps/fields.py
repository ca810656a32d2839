"""Which field of a sample is its video."""

from __future__ import annotations

from forebay_stage.steps.checks import Sample

__all__ = ["VIDEOS", "video_field"]

VIDEOS = frozenset({"mp4", "m4v", "mov", "webm", "mkv"})


def video_field(sample: Sample, field: str) -> str | None:
    """``field``, or the one field that is called like a video; None without. Raises ``ValueError`` where there are several."""
    if field:
        return field if field in sample else None
    found = [name for name in sample if not name.startswith("__") and name.rpartition(".")[2] in VIDEOS]
    if len(found) > 1:
        raise ValueError(f"it has the videos {' and '.join(found)}: say which one is meant with field=")
    return found[0] if found else None
