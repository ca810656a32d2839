"""Which stages of a pipeline allow an exact state. They are known by name; any other stage may hold samples back or leave some out unseen.

webdataset's one-for-one stages and filters are safe. Its stages that hold, count or draw are replaced here by stages of ours with the same
output and a state. Forebay's own stages say what they are by ``state_kind``.
"""

from __future__ import annotations

import inspect
import math
import random
from itertools import islice
from typing import Any, Iterable, Iterator, Optional

from webdataset import filters

from forebay_loader.resume.cursor import Cursor
from forebay_loader.resume.held_batches import BatchRows, FullBatches, SeededPart, StreamSlice
from forebay_loader.resume.sample_buffer import SampleBuffer

__all__ = ["PASSED", "given_to", "kept_stage", "kind_of", "name_of", "share_of", "untold"]

_ONE_FOR_ONE = (
    "associate", "decode", "extract_keys", "info", "log_keys", "map", "map_dict", "map_tuple", "rename", "rename_keys", "select",
    "to_tuple", "xdecode",
)  # fmt: skip
_KINDS = {
    **{f"_{name}": "one" for name in _ONE_FOR_ONE},
    "_shuffle": "shuffle",
    "_batched": "batch",
    "_unbatched": "rows",
    "_unlisted": "rows",
    "_rsample": "part",
}
PASSED = ("shuffle", "slice", "part")  # stages that are skipped when a sample is read again for a later stage
_BATCHES = "behind batches"


def kind_of(stage: Any) -> str:
    """The kind of a stage: "one" (at most one output for an input), "shuffle", "batch", "budget", "rows", "slice", "part"; "" if it is not
    known.
    """
    told = getattr(stage, "state_kind", None)
    if isinstance(told, str):
        return told
    if isinstance(stage, filters.detshuffle):
        return "shuffle"
    function = getattr(stage, "f", None)
    if function is islice:
        return "slice"
    name = str(getattr(function, "__name__", ""))
    return _KINDS.get(name, "") if function is not None and function is getattr(filters, name, None) else ""


def untold(stages: Iterable[Any]) -> str:
    """Why the position of a pipeline of ``stages``, all after the reader, is not exactly known; "" if it is."""
    where = ""
    for stage in stages:
        kind, name = kind_of(stage), name_of(stage)
        if not kind:
            return f"its stage {name} is not known here, and may hold samples back or leave some out unseen"
        if where and kind not in ("one", "slice", "batch") and not (kind == "rows" and where == _BATCHES):
            return f"its stage {name} comes {where}, and what it holds cannot be made again"
        if kind == "shuffle" and isinstance(given_to(stage).get("rng"), random.Random):
            return f"its stage {name} draws from a generator of your own, from which others may draw too"
        where = {"batch": where or _BATCHES, "budget": "behind batches within a budget", "rows": "behind the rows of batches"}.get(
            kind, where
        )
    return ""


def kept_stage(stage: Any, data: Iterable[Any], cursor: Cursor) -> Optional[Iterator[Any]]:
    """The output of our replacement for a stage of webdataset; None if webdataset's own is used."""
    kind, given = kind_of(stage), given_to(stage)
    if getattr(stage, "state_kind", None) is not None or kind in ("", "one"):
        return None
    if kind == "shuffle":
        rng = _drawing(stage, given, cursor)
        return None if rng is None else SampleBuffer(rng, cursor, **given).shuffled(data)
    if kind == "batch":
        made = {"batchsize": 20, "collation_fn": filters.default_collation_fn, "partial": True, **given}
        return FullBatches(made["batchsize"], made["collation_fn"], cursor, partial=made["partial"]).batches(data)
    if kind == "rows":
        return BatchRows(stage.f, cursor).rows(data)
    if kind == "slice":
        return StreamSlice(stage.args, cursor).part(data)
    return SeededPart(given.get("p", 0.5), f"{name_of(stage)}/{cursor.key}", cursor).part(data)


def name_of(stage: Any) -> str:
    """The stage's name in a pipeline."""
    function = getattr(stage, "f", None)
    name = getattr(function, "__name__", None) or getattr(stage, "__name__", None) or type(stage).__name__
    return str(name).lstrip("_") if function is not None else str(name)


def share_of(stages: Iterable[Any]) -> float:
    """The fraction of samples that pass all ``rsample`` stages among ``stages``."""
    return float(math.prod(given_to(stage).get("p", 0.5) for stage in stages if kind_of(stage) == "part"))


def _drawing(stage: Any, given: dict[str, Any], cursor: Cursor) -> Optional[random.Random]:
    """The generator for ``stage``, removed from ``given``; None if the user gave one."""
    if isinstance(stage, filters.detshuffle):
        stage.epoch += 1  # as detshuffle does
        return random.Random(stage.seed + stage.epoch)  # noqa: S311  # an order, no secret
    own, seed = given.pop("rng", None), given.pop("seed", None)
    if own is not None:
        return None
    return random.Random(f"samples/{cursor.key}" if seed is None else seed)  # noqa: S311


def given_to(stage: Any) -> dict[str, Any]:
    """The arguments of a webdataset stage, by name."""
    if isinstance(stage, filters.detshuffle):
        return {"bufsize": stage.bufsize, "initial": stage.initial}
    if not hasattr(stage, "f") or stage.f is islice:
        return {}
    order = list(inspect.signature(stage.f).parameters)[1:]
    return {**dict(zip(order, stage.args)), **stage.kw}  # noqa: B905  # strict= is not of 3.9
