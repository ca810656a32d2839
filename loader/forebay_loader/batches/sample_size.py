"""How large a sample is, in what a budget counts: bytes of its members, frames, tokens."""

from __future__ import annotations

import operator
from collections.abc import Mapping as MappingABC
from typing import Any, Callable, Hashable, Mapping, Optional, Union

from forebay_loader.base.shown_text import shown_shard
from forebay_loader.batches.batch_budget import BatchBudget, SampleSize

__all__ = ["Length", "SampleSizes", "bytes_of", "named_sample"]

Length = Union[str, int, Callable[[Any], Any]]  # a field, or a function of the sample; it gives a number or what has a length
_MEASURES = ("tokens", "frames", "bytes")
_NUMBER_BYTES = 8


class SampleSizes:
    """``sizes(sample)``: what ``budget`` asks for. ``length``: how tokens are counted, or frames where the budget is of frames alone; or
    of ``tokens``, ``frames`` and ``bytes`` each. ``shape``: of which field batches have one shape.

    Raises ``TypeError`` and ``ValueError`` for arguments, ``ValueError`` for a sample that cannot be counted, which it names.
    """

    def __init__(self, budget: BatchBudget, length: Union[Length, Mapping[str, Length], None], shape: Optional[Length] = None) -> None:
        if shape is not None and not callable(shape) and not isinstance(shape, (str, int)):
            raise TypeError(f"shape takes the name of a field or a function of a sample; got {shape!r}")
        self.shape = shape
        given = _by_measure(length, "frames" if budget.by_frames else "tokens")
        self._tokens = given.get("tokens") if budget.max_tokens is not None or (budget.buckets and not budget.by_frames) else None
        self._frames = given.get("frames", "frames") if budget.max_frames is not None else None
        self._bytes = given.get("bytes", bytes_of) if budget.max_bytes is not None else None
        if self._tokens is None and (budget.max_tokens is not None or (budget.buckets and not budget.by_frames)):
            raise ValueError("max_tokens and buckets need length=: the field whose length counts, or a function of a sample")

    def __call__(self, sample: Any) -> SampleSize:
        return SampleSize(
            _measured(sample, "tokens", self._tokens),
            _measured(sample, "frames", self._frames),
            _measured(sample, "bytes", self._bytes),
            None if self.shape is None else _shape(sample, self.shape),
        )


def bytes_of(sample: Any) -> int:
    """The bytes of its members, as they are in memory, decoded or not; names (``__key__``) do not count. Raises ``TypeError``."""
    if isinstance(sample, MappingABC):
        return sum(_bytes_of(value, name) for name, value in sample.items() if not str(name).startswith("__"))
    return _bytes_of(sample, "")


def _bytes_of(value: Any, name: Any) -> int:
    size = getattr(value, "nbytes", None)  # arrays, tensors, memoryviews
    if isinstance(size, int):
        return size
    if isinstance(value, (bytes, bytearray, str)):
        return len(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
    if value is None or isinstance(value, (int, float, complex)):
        return _NUMBER_BYTES
    if isinstance(value, MappingABC):
        return sum(_bytes_of(each, inner) for inner, each in value.items())
    if isinstance(value, (list, tuple)):
        return sum(_bytes_of(each, name) for each in value)
    if hasattr(value, "getbands") and hasattr(value, "size"):  # a picture of PIL's
        return int(value.size[0]) * int(value.size[1]) * len(value.getbands())
    raise TypeError(f"nobody here knows how many bytes a {type(value).__name__} has ({name!r}); say it with length={{'bytes': …}}")


def named_sample(sample: Any) -> str:
    """A sample as messages have it: its key and its shard, as far as it still has them."""
    if not isinstance(sample, MappingABC):
        return "a sample without a key"
    shard = f" of shard {shown_shard(sample['__url__'])}" if "__url__" in sample else ""
    return f"sample {sample.get('__key__', 'without a key')}{shard}"


def _by_measure(length: Any, usual: str) -> dict[str, Length]:
    if length is None:
        return {}
    given = dict(length) if isinstance(length, MappingABC) else {usual: length}
    for measure, how in given.items():
        if measure not in _MEASURES:
            raise ValueError(f"length takes 'tokens', 'frames' and 'bytes' where it is a dict; got {measure!r}")
        if not callable(how) and not isinstance(how, (str, int)):
            raise TypeError(f"length takes the name of a field or a function of a sample; got {how!r}")
    return given


def _measured(sample: Any, measure: str, how: Optional[Length]) -> int:
    if how is None:
        return 0
    try:
        found = _number(how(sample) if callable(how) else sample[how])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        cause = f"it has no field {how!r}" if isinstance(error, (KeyError, IndexError)) and not callable(how) else str(error)
        raise ValueError(f"{named_sample(sample)}: its {measure} cannot be counted: {cause}. length= says how they are") from error
    if found < 0:
        raise ValueError(f"{named_sample(sample)}: length= says {found} {measure}; a number from 0 is needed")
    return found


def _shape(sample: Any, how: Length) -> Hashable:
    """What a function says; of a field of four axes or more, as frames are, the shape without the first; else the whole shape."""
    try:
        found = how(sample) if callable(how) else tuple(sample[how].shape)
        hash(found)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        cause = f"it has no field {how!r}" if isinstance(error, (KeyError, IndexError)) and not callable(how) else str(error)
        raise ValueError(f"{named_sample(sample)}: its shape cannot be told: {cause}. shape= names an array, or is a function") from error
    return found if callable(how) or len(found) < 4 else found[1:]


def _number(value: Any) -> int:
    """A number as it is; else a length: the first one of an array or tensor."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return int(shape[0])
    try:
        return operator.index(value)
    except TypeError:
        return len(value)
