"""How many samples a batch holds: told where the loader made it, guessed where it passes on what its data set had batched already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

__all__ = ["samples_in"]

_SINGLE = (str, bytes, int, float, bool, type(None))
_MOST_ENTRIES = 64  # of a batch that are looked at
_DEPTH = 4


def samples_in(batch: Any, *, batched: bool) -> int:
    """``batched``: the loader collated it. Else a batch is what has entries, all of one length and none of them a single value."""
    if batched:
        return _leading(batch, _DEPTH) or 1
    if isinstance(batch, Mapping):
        entries = list(batch.values())[:_MOST_ENTRIES]
    elif isinstance(batch, (list, tuple)):
        entries = list(batch[:_MOST_ENTRIES])
    else:
        return _rows(batch) or 1
    lengths = {_rows(entry) for entry in entries}
    return (lengths.pop() or 1) if len(lengths) == 1 else 1


def _leading(value: Any, depth: int) -> Optional[int]:
    rows = _shape(value)
    if rows is not None or not depth:
        return rows
    if isinstance(value, Mapping):
        return next((found for entry in value.values() if (found := _leading(entry, depth - 1))), None)
    if isinstance(value, (list, tuple)) and value:
        if isinstance(value[0], _SINGLE):
            return len(value)
        return next((found for entry in value if (found := _leading(entry, depth - 1))), len(value))
    return None


def _rows(value: Any) -> Optional[int]:
    return len(value) if isinstance(value, (list, tuple)) else _shape(value)


def _shape(value: Any) -> Optional[int]:
    """The first dimension of a tensor or array."""
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, (tuple, list)) and len(shape) else None
