"""What a sample holds, taken apart into one JSON text and plain arrays, and put together again. Nothing is ever pickled.

Exactly these types are kept, each as itself: None, bool, int, float, str, bytes, numpy arrays and scalars of numbers, texts and times,
``array.array``, dense torch tensors on the CPU, ``ClipInfo``, and lists, tuples and dicts of these. Anything else is refused by its name:
a subclass would come back as another type. Bytes lie in the arrays too, so the text is short. Floats are written in hexadecimal, which is
exact, and a dict as pairs, which keeps the order.
"""

from __future__ import annotations

import json
import sys
from array import array
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy
import xxhash

from forebay_loader.memos.errors import MemoRefused
from forebay_loader.samples.shard_name import VisitedShard
from forebay_loader.videos.clip_info import ClipInfo

__all__ = ["PLACE", "KeptValue", "digest_of", "mark_of", "put_together", "taken_apart"]

_KINDS = "biufcSUmM"  # of numpy: all that is plain bytes; objects and records are not
_TORCH = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")
_SHARED = (bytes, str, VisitedShard, int, float, bool, type(None))  # nobody can have changed them since
_OWN = (list, dict, numpy.ndarray)  # made anew each time: the same one came in, and not one that is shared
_LONG = 1024  # bytes of a text: a shorter one may stand in the code, or in a table, from which both came
PLACE = ("__url__", "__local_path__")  # where a sample lies: it may be signed anew, or moved
_MOST_DEEP = 64


@dataclass(frozen=True)
class KeptValue:
    """``text``: JSON, ASCII, of what refers to the arrays by their numbers. ``arrays``: C-contiguous."""

    text: bytes
    arrays: Sequence[Any]


def taken_apart(
    value: Any, *, given: Mapping[str, Any] | None = None, marks: Mapping[str, str] | None = None, views: bool = False
) -> KeptValue:
    """``value`` as text and arrays; it must not change while they are used, for nothing is copied that need not be.

    What stands in a dict ``value`` under the name that it had in ``given``, is the same object and was not changed, is only referred to.
    ``marks``: of the members of ``given`` that ``key=`` does not name, their marks before; None where all count.
    ``views``: memory that was handed out as a view counts as its bytes, for digests. Raises ``MemoRefused``.
    """
    parts = _PartsTaken(views)
    if given is not None and type(value) is dict:
        pairs = [[parts.node(name, 1), _same(name, one, given, marks) or parts.node(one, 1, f"[{name!r}]")] for name, one in value.items()]
        node: Any = {"d": pairs}
    else:
        node = parts.node(value, 0)
    shapes = [[one.dtype.str, list(one.shape)] for one in parts.arrays]
    return KeptValue(json.dumps({"value": node, "arrays": shapes}, separators=(",", ":")).encode(), parts.arrays)


def put_together(kept: KeptValue, given: Mapping[str, Any] | None = None) -> Any:
    """What was taken apart; its arrays are those of ``kept``. Raises ``ValueError`` where the text is not of ours, ``KeyError`` where it
    refers to something that ``given`` has not, or has otherwise."""
    return _value(json.loads(kept.text)["value"], kept.arrays, given or {})


def mark_of(value: Any) -> Optional[str]:
    """What tells a value from others; None for one that cannot be kept."""
    try:
        return digest_of(taken_apart(value, views=True)).hex()
    except MemoRefused:
        return None


def digest_of(kept: KeptValue, size: int = 16) -> bytes:
    """Of ``size`` bytes."""
    digest = blake2b(kept.text, digest_size=size)
    for one in kept.arrays:
        digest.update(xxhash.xxh3_128_digest(one.reshape(-1).view("u1")) if one.nbytes else b"")
    return digest.digest()


def _same(name: Any, value: Any, given: Mapping[str, Any], marks: Mapping[str, str] | None) -> Any:
    """A reference to ``given``; None where it is another object, or one that may have changed.

    That a small number or text is the same object proves nothing: Python has one 7 for all, and the transform may have made it. It is
    referred to with its mark, so that a sample which has another one there is made anew.
    """
    if type(name) is not str or name not in given or given[name] is not value:
        return None
    shared = type(value) in _SHARED or (type(value) is memoryview and value.readonly)
    if marks is None or (shared and name in ("__key__", *PLACE)):
        return {"g": name} if shared else None
    mark = marks.get(name)
    if mark is None or mark != mark_of(value):
        return None
    torch = sys.modules.get("torch")
    own = type(value) in _OWN or (torch is not None and type(value) is torch.Tensor)
    long = type(value) in (bytes, str, memoryview) and len(value) >= _LONG
    return {"g": name} if own or long else {"g": name, "as": mark}


class _PartsTaken:
    """The arrays that were met so far."""

    def __init__(self, views: bool) -> None:
        self.arrays: List[Any] = []
        self._views = views

    def node(self, value: Any, deep: int, where: str = "") -> Any:  # noqa: PLR0911  # a type each
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is VisitedShard:
            return str(value)  # of another sample's shard: which visit it was, a later one must not be told
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 63 else {"i": hex(value)}
        if kind is float:
            return {"f": value.hex() if value == value else numpy.float64(value).tobytes().hex()}  # noqa: PLR0124  # NaNs differ in bits
        if kind is bytes or (self._views and kind in (memoryview, bytearray)):
            return {"b": self._add(numpy.frombuffer(value, dtype="u1"))}
        if kind is list or kind is tuple or kind is dict:
            return self._nested(value, deep, where)
        return self._array(value, where)

    def _nested(self, value: Any, deep: int, where: str) -> Any:
        if deep > _MOST_DEEP:
            raise MemoRefused(f"what is made holds lists or dicts in one another deeper than {_MOST_DEEP}, or one that holds itself")
        if type(value) is dict:
            return {"d": [[self.node(key, deep + 1, where), self.node(one, deep + 1, f"{where}[{key!r}]")] for key, one in value.items()]}
        return {"l" if type(value) is list else "t": [self.node(one, deep + 1, f"{where}[{at}]") for at, one in enumerate(value)]}

    def _array(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind is numpy.ndarray and value.dtype.kind in _KINDS and value.dtype.names is None:
            return {"a": self._add(value)}
        if isinstance(value, numpy.generic) and value.dtype.kind in _KINDS and kind is value.dtype.type:
            return {"n": self._add(numpy.asarray(value))}
        if kind is array:
            return {"y": self._add(numpy.frombuffer(value.tobytes(), dtype="u1")), "of": value.typecode}
        if kind is ClipInfo:
            return {"clip": {one.name: self.node(getattr(value, one.name), 1, where) for one in fields(value)}}
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self._tensor(value, torch, where)
        raise _refusal(value, where)

    def _tensor(self, value: Any, torch: Any, where: str) -> Any:
        name = str(value.dtype).rpartition(".")[2]
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        if not plain or value.is_quantized or name not in (*_TORCH, "bfloat16"):
            raise _refusal(value, where, f" ({value.dtype}, {value.layout}, on {value.device}{', with a gradient' * value.requires_grad})")
        value = value.contiguous().resolve_conj().resolve_neg()
        return {"p": self._add((value.view(torch.int16) if name == "bfloat16" else value).numpy()), "of": name}

    def _add(self, value: Any) -> int:
        self.arrays.append(value if value.flags.c_contiguous else value.copy(order="C"))
        return len(self.arrays) - 1


def _refusal(value: Any, where: str, which: str = "") -> MemoRefused:
    kind = type(value)
    dtype = f" of {value.dtype}" if kind is numpy.ndarray else ""
    return MemoRefused(
        f"a memo keeps numbers, texts, bytes, arrays, tensors and lists and dicts of these, and "
        f"{f'what stands in {where}' if where else 'this'} is a {kind.__module__}.{kind.__qualname__}{dtype}{which}: "
        f"nothing is pickled. Convert it, or leave it out of what is kept"
    )


def _value(node: Any, arrays: Sequence[Any], given: Mapping[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    mark = next(iter(node))
    return _MADE[mark](node, arrays, given)


def _float(text: str) -> float:
    if len(text) == 16 and "x" not in text:
        return float(numpy.frombuffer(bytes.fromhex(text), dtype="f8")[0])
    return float.fromhex(text)


def _tensor(node: Any, arrays: Sequence[Any], given: Mapping[str, Any]) -> Any:
    import torch  # noqa: PLC0415  # whoever kept a tensor has it

    made = torch.from_numpy(arrays[node["p"]])
    return made.view(torch.bfloat16) if node["of"] == "bfloat16" else made


def _given(node: Any, given: Mapping[str, Any]) -> Any:
    found = given[node["g"]]
    if "as" in node and mark_of(found) != node["as"]:
        raise KeyError(node["g"])
    return found


_MADE: Dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "i": lambda node, arrays, given: int(node["i"], 16),
    "f": lambda node, arrays, given: _float(node["f"]),
    "b": lambda node, arrays, given: arrays[node["b"]].tobytes(),
    "l": lambda node, arrays, given: [_value(one, arrays, given) for one in node["l"]],
    "t": lambda node, arrays, given: tuple(_value(one, arrays, given) for one in node["t"]),
    "d": lambda node, arrays, given: {_value(key, arrays, given): _value(one, arrays, given) for key, one in node["d"]},
    "a": lambda node, arrays, given: arrays[node["a"]],
    "n": lambda node, arrays, given: arrays[node["n"]][()],
    "y": lambda node, arrays, given: array(node["of"], arrays[node["y"]].tobytes()),
    "p": _tensor,
    "g": lambda node, arrays, given: _given(node, given),
    "clip": lambda node, arrays, given: ClipInfo(**{name: _value(one, arrays, given) for name, one in node["clip"].items()}),
}
