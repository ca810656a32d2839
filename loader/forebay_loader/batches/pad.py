"""``fb.padded(…)``: samples of different lengths as one array each field, and a mask of what is real."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Mapping as MappingABC
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from forebay_loader.base.argument_types import whole

__all__ = ["PadCollation", "common_dtype", "padded", "padding_of"]

Field = Union[str, int]


def padded(*fields: Field, value: Any = 0, edges: Sequence[int] = ()) -> PadCollation:
    """A function that makes a batch of samples whose ``fields`` differ in length, for ``collate=`` and webdataset's ``collation_fn=``.

    Each field is padded at the end of its first axis: B x L x … as a numpy array, or as a tensor of torch if its values are tensors. The
    mask is B x L bool, True for real values. It is ``tokens_mask`` for a dictionary's field ``tokens``; for tuples the masks follow at the
    end, in the order of ``fields``. numpy chooses a dtype that holds the values of all samples. webdataset collates all other fields.

    Args:
        *fields: Names in a dictionary, or places in a tuple.
        value: The value that fills, or a dictionary of values by field. Fields that it leaves out are filled with 0.
        edges: L is the smallest of these that the longest sample fits into, so that there are few shapes. Beyond the last one L is the
            length of the longest sample.

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
    for edge in edges:
        whole("edges", edge, "lengths from 1", least=1)
    return PadCollation(fields, value, tuple(sorted(edges)))


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
    """A list of samples in, one batch out: a dict of columns, or a tuple of them."""

    def __init__(self, fields: Sequence[Field], value: Any = 0, edges: Sequence[int] = ()) -> None:
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
        own = [f"{field}_mask" for field in self._fields if field in rows[0] and f"{field}_mask" in rows[0]]
        if own:
            raise ValueError(
                f"samples have a field {_listed(own)} of their own, and fb.padded's mask is called so: rename it, in a map before"
            )
        columns, masks = {}, {}
        for name in names:
            values = [row[name] for row in rows]
            if name in self._fields:
                columns[name], masks[f"{name}_mask"] = self._padded(name, values)
            else:
                columns[name] = _collated(values)
        missing = [str(field) for field in self._fields if field not in columns]
        if missing:
            raise ValueError(f"samples have no field {_listed(missing)} to pad; they have {_listed(names)}")
        if isinstance(samples[0], MappingABC):
            return {**columns, **masks}
        return (*(columns[place] for place in range(len(names))), *(masks[f"{field}_mask"] for field in self._fields))

    def fills(self, batch: Any) -> dict[Field, Any]:
        """What fills each padded column of a batch, and its mask, by name or place; empty where the batch is not as this made it."""
        if isinstance(batch, MappingABC):
            masks: dict[Field, Field] = {field: f"{field}_mask" for field in self._fields}
        elif isinstance(batch, (list, tuple)):
            batch, masks = dict(enumerate(batch)), {field: len(batch) - len(self._fields) + at for at, field in enumerate(self._fields)}
        else:
            return {}
        found: dict[Field, Any] = {}
        for field, mask in masks.items():
            real, shape = getattr(batch.get(mask), "dtype", ""), getattr(batch.get(field), "shape", None)
            if shape is None or "bool" not in str(real) or tuple(batch[mask].shape) != tuple(shape[:2]):
                return {}
            found |= {field: self._fills.get(field, 0), mask: False}
        return found

    def _padded(self, name: Field, values: list[Any]) -> tuple[Any, Any]:
        numpy = importlib.import_module("numpy")
        tensors = hasattr(values[0], "new_full")
        arrays = values if tensors else [numpy.asarray(value) for value in values]
        flat = [array for array in arrays if not array.shape]
        rests = {tuple(array.shape[1:]) for array in arrays}
        if flat or len(rests) > 1:
            shapes = sorted({tuple(array.shape) for array in arrays})[:4]
            raise ValueError(f"{name!r} is padded along its first axis, and must be the same in the others; its shapes are {shapes}")
        longest = max(array.shape[0] for array in arrays)
        place = bisect_left(self._edges, longest)
        length = self._edges[place] if place < len(self._edges) else longest
        shape, fill = (len(arrays), length, *rests.pop()), self._fills.get(name, 0)
        if tensors:
            made, mask = (
                arrays[0].new_full(shape, fill, dtype=common_dtype(arrays)),
                importlib.import_module("torch").zeros(shape[:2], dtype=bool),
            )
        else:
            made, mask = numpy.full(shape, fill, dtype=common_dtype(arrays)), numpy.zeros(shape[:2], dtype=bool)
        if "int" in str(made.dtype) and made.reshape(-1)[:1].tolist() not in ([], [fill]):
            raise ValueError(f"{name!r} is padded with {fill!r}, which {made.dtype} cannot hold: say fb.padded(…, value=…)")
        for row, array in enumerate(arrays):
            made[row, : array.shape[0]] = array
            mask[row, : array.shape[0]] = True
        return made, mask


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
