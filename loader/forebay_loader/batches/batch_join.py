"""Several batches as one: tensors and arrays along their first axis, lists one behind the other, within tuples, lists and dicts of them.

What is a column and what is a list of samples shows in the first batch, for it is known how many samples that has.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping as MappingABC
from typing import Any, Optional, Sequence

__all__ = ["BatchJoin"]

_SAMPLES = "samples"  # the layout of what has one entry a sample; a list of layouts is of columns by place, a dict by name


class BatchJoin:
    """Puts together batches of ``size`` samples each. The last of a worker may have fewer."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._layout: Any = None

    def look(self, batch: Any) -> None:
        """Learn from a batch what batches are like. ``ValueError`` for one that has not ``size`` samples, unless it has fewer."""
        if self._layout is not None:
            return
        try:
            self._layout = self._laid_out(batch, top=True)
        except ValueError:
            samples = _first_axis(batch)
            if samples is None or samples >= self._size:
                raise
            # else it is of a worker that had no more, and the next one tells

    def __call__(self, parts: Sequence[Any]) -> Any:
        """One batch of all ``parts``. Raises ``ValueError`` where they do not go together."""
        for part in parts:
            self.look(part)
        if self._layout is None:
            raise ValueError(f"no batch had {self._size} samples, the first size of batch_ladder: what they are like cannot be told")
        try:
            return _joined(parts, self._layout)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"batch_ladder puts batches together, and these {len(parts)} do not fit: {error}. They must be alike but for their first "
                "axis: where they are padded to the longest of each, pad all to one length, or leave batch_ladder out"
            ) from error

    def _laid_out(self, part: Any, *, top: bool = False) -> Any:
        if isinstance(part, MappingABC):
            return {name: self._laid_out(each) for name, each in part.items()}
        if not isinstance(part, (list, tuple)):
            if _first_axis(part) == self._size and getattr(part, "shape", None) is not None:
                return _SAMPLES
            raise ValueError(self._unlike(part))
        columns = bool(part) and all(_entries(each) == self._size for each in part)
        if len(part) != self._size:
            return [self._laid_out(each) for each in part] if part else _SAMPLES
        if top and columns:
            raise ValueError(f"a batch of {len(part)} with {self._size} entries each: samples or columns? Give batch_ladder other sizes")
        return _SAMPLES

    def _unlike(self, part: Any) -> str:
        shape = getattr(part, "shape", None)
        found = f"a {type(part).__name__}" if shape is None else f"a {type(part).__name__} of shape {tuple(shape)}"
        return (
            f"batch_ladder begins with {self._size}, the size of the loader's own batches, and one of them has {found}: batches must be "
            f"tensors, arrays or lists with {self._size} entries, or tuples, lists or dicts of these"
        )


def _joined(parts: Sequence[Any], layout: Any) -> Any:
    first = parts[0]
    if isinstance(layout, dict):
        return {name: _joined([part[name] for part in parts], each) for name, each in layout.items()}
    if isinstance(layout, list):
        columns = [_joined([part[place] for part in parts], each) for place, each in enumerate(layout)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, (list, tuple)):
        return type(first)(sample for part in parts for sample in part)
    if hasattr(first, "new_full"):
        return _joined_tensors(parts)
    return importlib.import_module("numpy").concatenate(parts)


def _joined_tensors(parts: Sequence[Any]) -> Any:
    torch = importlib.import_module("torch")
    if not parts[0].is_pinned():
        return torch.cat(list(parts))
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return torch.cat(list(parts), out=torch.empty(shape, dtype=parts[0].dtype, pin_memory=True))  # as its parts: copied in the background


def _entries(part: Any) -> Optional[int]:
    """Of an array, a list, a tuple, or the first column of a dict."""
    if isinstance(part, MappingABC):
        return _entries(next(iter(part.values()), None))
    if isinstance(part, (list, tuple)):
        return len(part)
    return _first_axis(part)


def _first_axis(batch: Any) -> Optional[int]:
    """The length of the first array in a batch; None where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    inner = batch.values() if isinstance(batch, MappingABC) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for found in map(_first_axis, inner) if found is not None), None)
