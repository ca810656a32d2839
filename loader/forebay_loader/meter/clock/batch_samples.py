"""How many samples a batch holds: known if the loader collated it, guessed if the data set had already batched it.

Called at each step, so the usual types of batches are checked first. General checks (``Mapping``, any sequence) take ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Iterable, Optional

from forebay_loader.base.carrier import Carried

__all__ = ["samples_in"]

_SINGLE = (str, bytes, int, float, bool, type(None))
_MOST_ENTRIES = 64  # entries of a batch that are checked
_DEPTH = 4


def samples_in(batch: Any, *, batched: bool) -> int:
    """The number of samples in ``batch``.

    ``batched``: the loader collated it. Otherwise it counts as a batch if all its entries have the same length and none is a single value.
    """
    if isinstance(batch, Carried):
        batch = batch.batch
    if batched:
        return _leading(batch, _DEPTH) or 1
    entries: Iterable[Any]
    if type(batch) is dict or (not isinstance(batch, (list, tuple)) and isinstance(batch, Mapping)):
        entries = batch.values()
    elif isinstance(batch, (list, tuple)):
        entries = batch
    else:
        return _rows(batch) or 1
    first: Optional[int] = None
    for entry in islice(entries, _MOST_ENTRIES):
        rows = _rows(entry)
        if rows is None or (first is not None and rows != first):
            return 1
        first = rows
    return first or 1


def _leading(value: Any, depth: int) -> Optional[int]:
    rows = _shape(value)
    if rows is not None or not depth:
        return rows
    if isinstance(value, (list, tuple)):
        if not value:
            return None
        return len(value) if isinstance(value[0], _SINGLE) else _leading_of(value, depth - 1) or len(value)
    return _leading_of(value.values(), depth - 1) if isinstance(value, Mapping) else None


def _leading_of(entries: Iterable[Any], depth: int) -> Optional[int]:
    for entry in entries:
        found = _leading(entry, depth)
        if found:
            return found
    return None


def _rows(value: Any) -> Optional[int]:
    return len(value) if isinstance(value, (list, tuple)) else _shape(value)


def _shape(value: Any) -> Optional[int]:
    """The first dimension of a tensor or array."""
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, (tuple, list)) and len(shape) else None
