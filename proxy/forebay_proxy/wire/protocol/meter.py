"""What a training process tells the sidecar (``POST /v1/meter/…``): its stalls by cause and its derived caches, totals since it began, as
JSON. Pure.

*Stall* is time of the training process inside ``next(loader)``; *reader wait* is time of its workers without bytes, which prefetch may
hide. Sums only grow. So a message that is lost costs nothing, and one that comes twice adds nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

__all__ = [
    "CAUSES",
    "CAUSE_INDEX",
    "DERIVED",
    "MAX_BODY_BYTES",
    "MAX_FOLDERS",
    "MAX_FOLDER_NAME",
    "InvalidMeter",
    "MeterBody",
    "decode_meter",
    "encode_meter",
]


# What is waited for, in the order of a sample's way.
CAUSES: Tuple[str, ...] = (
    "origin",  # bytes that were on their way from an origin
    "proxy",  # the sidecar: it had the bytes, or nothing to ask an origin for, and took its time
    "disk",  # a read of the cache's file by the worker itself
    "read",  # taking tars apart: bytes that were here
    "decode",
    "map",  # the user's own stages and data set
    "collate",
    "transfer",  # the batch was made, and on its way from its worker to the trainer
    "start",  # of workers: processes, imports; and their end
    "other",  # none of these could be told
)
CAUSE_INDEX: Dict[str, int] = {cause: index for index, cause in enumerate(CAUSES)}

# Kinds of derived caches, and what is counted of each: of ``fb.memo`` and ``fb.frames``, ``memo_hits``, ``frames_hits`` … of
# ``fb.counters()``.
DERIVED: Dict[str, Tuple[str, ...]] = {
    "memo": ("hits", "made", "kept", "dropped", "damaged", "off"),
    "frames": ("hits", "kept", "dropped", "damaged", "off"),
}
MAX_FOLDERS = 8  # of a kind in one process
MAX_FOLDER_NAME = 64

MAX_BODY_BYTES = 16 << 10  # one has less than 1 kB, and a shard's name
_MAX_WHOLE = (1 << 53) - 1
_MAX_S = 1e12  # some thousand years: adding such sums loses no microsecond of a day
_MAX_TEXT = {"slowest_shard": 2048, "slowest_function": 256}
_BY_CAUSE = ("stall_s", "reader_wait_s")
_SUMS = ("steps", "samples", "skipped")
_LEVELS = ("batch_size", "workers", "slowest_worker", "loader", "loader_passes", "loader_steps")
_NOW = ("step_s", "ended_s", "pending_s", "idle_cores")
_TEXTS = ("slowest_shard", "slowest_function")
_BY_KIND = ("derived", "folders")
_FIELDS = ("wall_s", *_BY_CAUSE, *_SUMS, *_LEVELS, *_NOW, *_TEXTS, "pending", *_BY_KIND)
_NEEDED = ("wall_s", "stall_s", "steps")


class InvalidMeter(ValueError):
    """The body tells no totals. The message names the field, and says what would be right."""


def _nothing() -> dict[str, float]:
    return dict.fromkeys(CAUSES, 0.0)


@dataclass(frozen=True)
class MeterBody:
    """One training process's totals. ``stall_s`` and ``reader_wait_s`` have every cause.

    ``wall_s``: for how long it was metered; ``steps``: batches given to the trainer; ``skipped``: samples and shards left out after errors.
    Of now, and no sums: ``batch_size`` (samples), ``workers``, the ``slowest_worker``, the shard that it reads and the function that takes
    most of its time; None: not known.
    ``loader``: which loader the process asked last, by the order in which it first read them; ``loader_passes`` begun and ``loader_steps``
    given by it so far. ``step_s``: the trainer has its last batch for so long and has not asked for the next; ``ended_s``: the pass ended
    so long ago, and no loader was asked since. Both None: a batch is being waited for, or the loop was left. ``pending_s``: stall that is
    in no sum yet, since nobody is sure what it went for; it looks like ``pending``. ``idle_cores``: of those it may use. Bodies
    that differ only in these are equal.
    ``derived``: what the derived caches of the process and its workers counted, by kind, a sum as all others. ``folders``: of each kind,
    bytes on the disk now and the limit, by the folder's base name, ``@``, and what tells folders of one name apart.
    """

    wall_s: float
    stall_s: Mapping[str, float]
    steps: int
    reader_wait_s: Mapping[str, float] = field(default_factory=_nothing)
    samples: int = 0
    skipped: int = 0
    batch_size: Optional[int] = None
    workers: Optional[int] = None
    slowest_worker: Optional[int] = None
    slowest_shard: Optional[str] = None
    slowest_function: Optional[str] = None
    loader: Optional[int] = None
    loader_passes: Optional[int] = None
    loader_steps: Optional[int] = None
    step_s: Optional[float] = field(default=None, compare=False)
    ended_s: Optional[float] = field(default=None, compare=False)
    pending_s: Optional[float] = field(default=None, compare=False)
    pending: Optional[str] = field(default=None, compare=False)
    idle_cores: Optional[float] = field(default=None, compare=False)
    derived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    folders: Mapping[str, Mapping[str, Tuple[int, int]]] = field(default_factory=dict)

    def since(self, earlier: Optional[MeterBody]) -> MeterBody:
        """What has come on top of ``earlier``: all of it where there is none, or where the meter began anew. No sum is below 0."""
        if earlier is None or self.wall_s < earlier.wall_s:
            return self
        return replace(
            self,
            wall_s=self.wall_s - earlier.wall_s,
            stall_s=_grown(self.stall_s, earlier.stall_s),
            reader_wait_s=_grown(self.reader_wait_s, earlier.reader_wait_s),
            steps=max(0, self.steps - earlier.steps),
            samples=max(0, self.samples - earlier.samples),
            skipped=max(0, self.skipped - earlier.skipped),
            derived={
                kind: {name: max(0, count - earlier.derived.get(kind, {}).get(name, 0)) for name, count in counts.items()}
                for kind, counts in self.derived.items()
            },
        )


def encode_meter(totals: MeterBody) -> bytes:
    """``totals`` as ``decode_meter`` reads them; seconds to the microsecond."""
    content: dict[str, Any] = {name: getattr(totals, name) for name in (*_SUMS, *_LEVELS, *_NOW, *_TEXTS, "pending")}
    content["wall_s"] = round(totals.wall_s, 6)
    content |= {name: {cause: round(s, 6) for cause, s in getattr(totals, name).items() if s} for name in _BY_CAUSE}
    content |= {name: getattr(totals, name) or None for name in _BY_KIND}  # an older sidecar knows neither
    return json.dumps({name: value for name, value in content.items() if value is not None}, separators=(",", ":")).encode("ascii")


def decode_meter(body: bytes) -> MeterBody:
    """The totals in ``body``. Raises ``InvalidMeter`` naming the first bad field; a field that is not known is bad."""
    content = _parsed(body)
    for name in content:
        if name not in _FIELDS:
            raise InvalidMeter(f"unknown field {name[:40]!r}; known are {', '.join(_FIELDS)}")
    for name in _NEEDED:
        if name not in content:
            raise InvalidMeter(f'the field {name} is missing; write {{"wall_s": 60.0, "stall_s": {{"origin": 1.5}}, "steps": 100}}')
    values: dict[str, Any] = {"wall_s": _seconds("wall_s", content["wall_s"])}
    values |= {name: _by_cause(name, content.get(name, {})) for name in _BY_CAUSE}
    values |= {name: _whole(name, content.get(name, 0)) for name in _SUMS}
    values |= {name: None if content.get(name) is None else _whole(name, content[name]) for name in _LEVELS}
    values |= {name: None if content.get(name) is None else _seconds(name, content[name]) for name in _NOW}
    values["derived"] = {
        kind: {name: _whole(f"derived.{kind}.{name}", counts.get(name, 0)) for name in DERIVED[kind]}
        for kind, counts in _by_kind("derived", content.get("derived", {})).items()
        if _named(f"derived.{kind}", counts, DERIVED[kind])
    }
    values["folders"] = {kind: _folders(f"folders.{kind}", told) for kind, told in _by_kind("folders", content.get("folders", {})).items()}
    values |= {name: _text(name, content.get(name)) for name in _TEXTS}
    return MeterBody(**values, pending=_cause(content.get("pending")))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidMeter("the body is not JSON") from None
    if not isinstance(content, dict):
        raise InvalidMeter("the body is not a JSON object")
    return content


def _named(name: str, value: Any, known: Tuple[str, ...]) -> bool:
    """True: ``value`` is an object of ``known`` names. Raises ``InvalidMeter``."""
    if not isinstance(value, dict):
        raise InvalidMeter(f"{name} is not an object of whole numbers by name")
    for one in value:
        if one not in known:
            raise InvalidMeter(f"{name} has the unknown name {one[:40]!r}; known are {', '.join(known)}")
    return True


def _by_kind(name: str, value: Any) -> dict[str, Any]:
    """One value for each kind of derived cache."""
    _named(name, value, tuple(DERIVED))
    return dict(value)


def _folders(name: str, value: Any) -> dict[str, Tuple[int, int]]:
    if not isinstance(value, dict) or len(value) > MAX_FOLDERS:
        raise InvalidMeter(f"{name} is not an object of at most {MAX_FOLDERS} folders")
    for folder, sizes in value.items():
        if len(folder) > MAX_FOLDER_NAME or not folder.isprintable() or not isinstance(sizes, list) or len(sizes) != 2:
            raise InvalidMeter(f"{name} is not [bytes, limit] by names of at most {MAX_FOLDER_NAME} printable characters")
    return {folder: (_whole(f"{name}: bytes", held), _whole(f"{name}: limit", limit)) for folder, (held, limit) in value.items()}


def _by_cause(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise InvalidMeter(f"{name} is not an object of seconds by cause")
    for cause in value:
        if cause not in CAUSES:
            raise InvalidMeter(f"{name} has the unknown cause {cause[:40]!r}; known are {', '.join(CAUSES)}")
    return {cause: _seconds(f"{name}.{cause}", value.get(cause, 0)) for cause in CAUSES}


def _seconds(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MAX_S:  # NaN, which json takes, is in no range
        raise InvalidMeter(f"{name} is not a number from 0 to {_MAX_S:g}")
    return float(value)


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_WHOLE:
        raise InvalidMeter(f"{name} is not a whole number from 0 to {_MAX_WHOLE}")
    return int(value)


def _text(name: str, value: Any) -> Optional[str]:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_TEXT[name] or not value.isprintable()):
        raise InvalidMeter(f"{name} is not a name of at most {_MAX_TEXT[name]} printable characters")
    return value


def _cause(value: Any) -> Optional[str]:
    if value is not None and (not isinstance(value, str) or value not in CAUSES):
        raise InvalidMeter(f"pending is no cause; known are {', '.join(CAUSES)}")
    return value


def _grown(now: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {cause: max(0.0, now[cause] - earlier[cause]) for cause in CAUSES}
