"""Several batches as one: tensors and arrays along their first axis, lists one behind the other, within tuples, lists and dicts of them.

What is a column and what is a list of samples shows in the first batch, for it is known how many samples that has. Columns that
``fb.padded`` has made are padded on, to the longest of them: the batch is then what it would have been in one piece.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping as MappingABC
from typing import Any, Iterator, Mapping, Optional, Sequence

from forebay_loader.batches.pad import Field, PadCollation, common_dtype

__all__ = ["ALIKE", "BatchJoin"]

ALIKE = (
    "They must be alike but for their first axis: where each is padded to its longest sample, let fb.padded do it (collate=, collation_fn= "
    "or collate_fn=), which pads on; or pad all to one length, or leave batch_ladder out"
)
_SAMPLES = "samples"  # the layout of what has one entry a sample; a list of layouts is of columns by place, a dict by name


class BatchJoin:
    """Puts together batches of ``size`` samples each. The last of a worker may have fewer. ``padding``: what has padded them."""

    def __init__(self, size: int, padding: Optional[PadCollation] = None) -> None:
        self._size = size
        self._padding = padding
        self._layout: Any = None
        self._axes: Mapping[tuple[Any, ...], Any] = {}  # of each column of the first batch, but for the first

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
        else:
            self._axes = self._axes_of(batch)

    def differs(self, batch: Any) -> str:
        """How ``batch`` differs from the first one so that they cannot be put together, in words; "" where they can, or nobody knows."""
        if self._layout is None:
            return ""
        found = self._axes_of(batch)
        for path, axes in self._axes.items():
            if found[path] != axes:
                name = " ".join(map(str, path)) if path else "a batch"
                return f"{name} has the shape {_shown(found[path])} in one batch, and {_shown(axes)} in another"
        return ""

    def __call__(self, parts: Sequence[Any]) -> Any:
        """One batch of all ``parts``. Raises ``ValueError`` where they do not go together."""
        for part in parts:
            self.look(part)
        if self._layout is None:
            raise ValueError(f"no batch had {self._size} samples, the first size of batch_ladder: what they are like cannot be told")
        try:
            return _joined(parts, self._layout, self._fills(parts))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"batch_ladder puts batches together, and these {len(parts)} do not fit: {str(error).rstrip('.')}. {ALIKE}"
            ) from error

    def _fills(self, parts: Sequence[Any]) -> dict[Field, Any]:
        """Of the columns that are padded in all ``parts``."""
        if self._padding is None:
            return {}
        fills = [self._padding.fills(part) for part in parts]
        return fills[0] if all(each.keys() == fills[0].keys() for each in fills) else {}

    def _axes_of(self, batch: Any) -> Mapping[tuple[Any, ...], Any]:
        padded = self._fills([batch])
        return {
            path: axes[1:] if axes is not None and len(path) == 1 and path[0] in padded else axes
            for path, axes in _axes(batch, self._layout, ())
        }

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


def _joined(parts: Sequence[Any], layout: Any, fills: Mapping[Field, Any]) -> Any:
    """``fills``: of the columns at this level that are padded on."""
    first = parts[0]
    if isinstance(layout, dict):
        return {name: _column([part[name] for part in parts], each, name, fills) for name, each in layout.items()}
    if isinstance(layout, list):
        columns = [_column([part[place] for part in parts], each, place, fills) for place, each in enumerate(layout)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, (list, tuple)):
        return type(first)(sample for part in parts for sample in part)
    if hasattr(first, "new_full"):
        return _joined_tensors(parts)
    return importlib.import_module("numpy").concatenate(parts)


def _column(parts: Sequence[Any], layout: Any, name: Field, fills: Mapping[Field, Any]) -> Any:
    if name in fills and len({part.shape[1] for part in parts}) > 1:
        return _padded_on(parts, fills[name])
    return _joined(parts, layout, {})


def _padded_on(parts: Sequence[Any], fill: Any) -> Any:
    """Tensors, or arrays, one behind the other, each padded to the widest."""
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), max(part.shape[1] for part in parts), *first.shape[2:])
    if hasattr(first, "new_full"):
        made = importlib.import_module("torch").full(
            shape, fill, dtype=common_dtype(parts), device=first.device, pin_memory=first.is_pinned()
        )
    else:
        numpy = importlib.import_module("numpy")
        made = numpy.full(shape, fill, dtype=numpy.result_type(*parts))
    row = 0
    for part in parts:
        made[row : row + part.shape[0], : part.shape[1]] = part
        row += part.shape[0]
    return made


def _axes(part: Any, layout: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Optional[tuple[int, ...]]]]:
    """Of each column: where it is, and its axes but for the first; None for what has none, or is not there."""
    if isinstance(layout, (dict, list)):
        for name, each in layout.items() if isinstance(layout, dict) else enumerate(layout):
            yield from _axes(_entry(part, name), each, (*path, name))
        return
    shape = getattr(part, "shape", None)
    yield path, None if shape is None else tuple(shape[1:])


def _entry(part: Any, name: Any) -> Any:
    """None where it is not there."""
    if isinstance(part, MappingABC):
        return part.get(name)
    return part[name] if isinstance(part, (list, tuple)) and name < len(part) else None


def _shown(axes: Optional[tuple[int, ...]]) -> str:
    return "of no array" if axes is None else f"({', '.join(['·', *map(str, axes)])})"


def _joined_tensors(parts: Sequence[Any]) -> Any:
    torch, kind = importlib.import_module("torch"), common_dtype(parts)
    alike = [part.to(kind) for part in parts]
    if not parts[0].is_pinned():
        return torch.cat(alike)
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return torch.cat(alike, out=torch.empty(shape, dtype=kind, pin_memory=True))  # as its parts: copied in the background


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
