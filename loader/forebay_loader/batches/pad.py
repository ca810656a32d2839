"""``fb.padded(…)``: samples of different lengths as one array each field, and a mask of what is real."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Mapping as MappingABC
from contextlib import suppress
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from forebay_loader.base.argument_types import whole

__all__ = ["PadCollation", "common_dtype", "padded", "padding_of"]

Field = Union[str, int]


Edges = Union[Sequence[int], Mapping[int, Sequence[int]]]


def padded(*fields: Field, value: Any = 0, axes: int = 1, edges: Edges = ()) -> PadCollation:
    """A function that makes a batch of samples whose ``fields`` differ in length, for ``collate=`` and webdataset's ``collation_fn=``.

    Each field is padded at the end of its first axis: B x L x … as a numpy array, or as a tensor of torch if its values are tensors. The
    mask is B x L bool, True for real values. It is ``tokens_mask`` for a dictionary's field ``tokens``; for tuples the masks follow at the
    end, in the order of ``fields``. With ``axes=3``, for frames of T x H x W x C, each padded axis has its own mask: ``frames_mask`` B x T,
    ``frames_mask1`` B x H and ``frames_mask2`` B x W. A value is real where all masks are True. numpy chooses a dtype that holds the values
    of all samples. webdataset collates all other fields.

    Args:
        *fields: Names in a dictionary, or places in a tuple.
        value: The value that fills, or a dictionary of values by field. Fields that it leaves out are filled with 0.
        axes: How many axes of a sample are padded, from the first on.
        edges: L is the smallest of these that the longest sample fits into, so that there are few shapes. Beyond the last one L is the
            length of the longest sample. A dictionary gives the edges of each axis, from 0 on.

    Returns:
        The function. It gets a list of samples and returns the batch.

    Raises:
        TypeError: An argument has the wrong kind.
        ValueError: An argument has a value that cannot be. When it is called: samples lack the field, differ in other axes, have a field
            with the mask's name, or have a dtype that cannot hold ``value``.

    Examples:
        >>> collate = fb.padded("tokens", value=50256)
        >>> batch = collate([{"tokens": numpy.array([1, 2, 3])}, {"tokens": numpy.array([4])}])
        >>> batch["tokens"].tolist(), batch["tokens_mask"].tolist()
        ([[1, 2, 3], [4, 50256, 50256]], [[True, True, True], [True, False, False]])
    """
    for field in fields:
        if not isinstance(field, (str, int)):
            raise TypeError(f"padded takes names of fields, or places in a tuple; got {field!r}")
    if not fields:
        raise ValueError("padded takes at least one field")
    whole("axes", axes, "a number of axes from 1", least=1)
    by_axis = edges if isinstance(edges, MappingABC) else {0: edges}
    if any(axis not in range(axes) for axis in by_axis):
        raise ValueError(f"edges takes axes from 0 to {axes - 1}, which axes= pads; got {_listed(by_axis)}")
    for edge in (edge for edges in by_axis.values() for edge in edges):
        whole("edges", edge, "lengths from 1", least=1)
    return PadCollation(fields, value, [sorted(by_axis.get(axis, ())) for axis in range(axes)])


def padding_of(*pipelines: Any) -> Optional[PadCollation]:
    """What pads the batches that come out of ``pipelines``, each the input of the next; None where none of ours does."""
    found = None
    for pipeline in pipelines:
        for stage in getattr(pipeline, "pipeline", ()):
            given = (*getattr(stage, "args", ()), *(getattr(stage, "kw", None) or {}).values())  # of webdataset's .batched
            for each in (getattr(stage, "collate", None), getattr(stage, "collate_fn", None), *given):
                found = each if isinstance(each, PadCollation) else found
    return found


class PadCollation:
    """A list of samples in, one batch out: a dict of columns, or a tuple of them. ``edges``: of each axis that is padded."""

    def __init__(self, fields: Sequence[Field], value: Any = 0, edges: Sequence[Sequence[int]] = ((),)) -> None:
        self._fields = tuple(fields)
        self._fills: Mapping[Any, Any] = value if isinstance(value, MappingABC) else dict.fromkeys(fields, value)
        self._edges = tuple(edges)

    def __repr__(self) -> str:
        return f"<PadCollation of {', '.join(map(str, self._fields)) or 'nothing: as webdataset'}>"

    def __call__(self, samples: Sequence[Any]) -> Any:
        rows: list[Any] = [one if isinstance(one, MappingABC) else dict(enumerate(one)) for one in samples]
        names = list(rows[0])
        for row in rows[1:]:
            if row.keys() != rows[0].keys():
                raise ValueError(f"samples of one batch have different fields: {_listed(names)}, and {_listed(row)}")
        own = [mask for field in self._fields if field in rows[0] for mask in self._masks(field) if mask in rows[0]]
        if own:
            raise ValueError(
                f"samples have a field {_listed(own)} of their own, and fb.padded's mask is called so: rename it, in a map before"
            )
        columns: dict[Field, Any] = {}
        masks: dict[Field, Any] = {}
        for name in names:
            values = [row[name] for row in rows]
            if name in self._fields:
                columns[name], of_axes = self._padded(name, values)
                masks.update(zip(self._masks(name), of_axes))  # noqa: B905  # strict= is not of 3.9
            else:
                columns[name] = _collated(values)
        missing = [str(field) for field in self._fields if field not in columns]
        if missing:
            raise ValueError(f"samples have no field {_listed(missing)} to pad; they have {_listed(names)}")
        if isinstance(samples[0], MappingABC):
            return {**columns, **masks}
        return (*(columns[place] for place in range(len(names))), *(masks[mask] for field in self._fields for mask in self._masks(field)))

    def fills(self, batch: Any) -> dict[Field, tuple[Any, int]]:
        """What fills each padded column of a batch, and its masks, and along how many axes, by name or place; empty where the batch is not
        as this made it."""
        axes = len(self._edges)
        if isinstance(batch, MappingABC):
            masks: dict[Field, Sequence[Field]] = {field: self._masks(field) for field in self._fields}
        elif isinstance(batch, (list, tuple)):
            first = len(batch) - len(self._fields) * axes
            batch, masks = (
                dict(enumerate(batch)),
                {field: range(first + at * axes, first + (at + 1) * axes) for at, field in enumerate(self._fields)},
            )
        else:
            return {}
        found: dict[Field, tuple[Any, int]] = {}
        for field, of_axes in masks.items():
            shape = tuple(getattr(batch.get(field), "shape", ()))
            for axis, mask in enumerate(of_axes, 1):
                real = batch.get(mask)
                if len(shape) <= axis or "bool" not in str(getattr(real, "dtype", "")) or tuple(real.shape) != (shape[0], shape[axis]):
                    return {}
                found[mask] = False, 1
            found[field] = self._fills.get(field, 0), axes
        return found

    def _masks(self, field: Field) -> list[Field]:
        """Their names, of each axis that is padded."""
        return [f"{field}_mask{axis or ''}" for axis in range(len(self._edges))]

    def _padded(self, name: Field, values: list[Any]) -> tuple[Any, list[Any]]:
        numpy = importlib.import_module("numpy")
        tensors = hasattr(values[0], "new_full")
        arrays = values if tensors else [numpy.asarray(value) for value in values]
        axes = len(self._edges)
        flat = [array for array in arrays if len(array.shape) < axes]
        rests = {tuple(array.shape[axes:]) for array in arrays}
        if flat or len(rests) > 1:
            shapes = sorted({tuple(array.shape) for array in arrays})[:4]
            along = "first axis" if axes == 1 else f"first {axes} axes"
            raise ValueError(f"{name!r} is padded along its {along}, and must be the same in the others; its shapes are {shapes}")
        lengths = []
        for axis, edges in enumerate(self._edges):
            longest = max(array.shape[axis] for array in arrays)
            place = bisect_left(edges, longest)
            lengths.append(edges[place] if place < len(edges) else longest)
        shape, fill = (len(arrays), *lengths, *rests.pop()), self._fills.get(name, 0)
        if tensors:
            zeros, made = importlib.import_module("torch").zeros, arrays[0].new_full(shape, fill, dtype=common_dtype(arrays))
        else:
            zeros, made = numpy.zeros, numpy.zeros(shape, dtype=common_dtype(arrays))
            with suppress(OverflowError):  # then it is not there, as is said below
                made[...] = fill
        masks = [zeros((len(arrays), length), dtype=bool) for length in lengths]
        if "int" in str(made.dtype) and made.reshape(-1)[:1].tolist() not in ([], [fill]):
            raise ValueError(f"{name!r} is padded with {fill!r}, which {made.dtype} cannot hold: say fb.padded(…, value=…)")
        for row, array in enumerate(arrays):
            made[(row, *map(slice, array.shape[:axes]))] = array
            for mask, length in zip(masks, array.shape):  # noqa: B905
                mask[row, :length] = True
        return made, masks


def common_dtype(arrays: Sequence[Any]) -> Any:
    """One that holds the values of all ``arrays``, or tensors: numpy's choice, of those that have values where any has.

    Torch's own would be that of the floats, however large the integers beside them: 16777217 beside a float32 becomes 16777216.
    """
    numpy = importlib.import_module("numpy")
    valued = [array for array in arrays if 0 not in array.shape] or arrays
    if not hasattr(arrays[0], "new_full"):
        return numpy.result_type(*(array.dtype for array in valued))
    found = valued[0].dtype
    for array in valued[1:]:
        found = _of_both(found, array.dtype)
    return found


def _of_both(one: Any, other: Any) -> Any:
    torch = importlib.import_module("torch")
    both = torch.promote_types(one, other)
    counting = next((each for each in (one, other) if not each.is_floating_point and each != torch.bool), None)
    if not both.is_floating_point or counting is None:
        return both
    most = torch.iinfo(counting).max
    return next((kind for kind in (both, torch.float32) if most * torch.finfo(kind).eps <= 1), torch.float64)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))


def _collated(values: list[Any]) -> Any:
    """A column as webdataset makes it; through tuples of one, which both of its versions take."""
    filters = importlib.import_module("webdataset.filters")
    return filters.default_collation_fn([(value,) for value in values])[0]
