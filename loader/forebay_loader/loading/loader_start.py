"""What a loader's state says of the iteration to come, read and checked where it is loaded."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.identity.world import World
from forebay_loader.resume.later_state import later
from forebay_loader.resume.state_parts import FORMAT, check_seal, of_format

__all__ = ["LoaderStart", "start_of"]

_REFUSED = "the state that was loaded cannot be resumed"
_DAMAGED = "the state is damaged"
_ADVICE = "set_epoch(n) of the data set, without a state, begins epoch n from its start"


class LoaderStart(NamedTuple):
    """Where an iteration begins: after ``given`` of its batches, ``made`` before batch sizes changed, in the pass that comes after
    ``passes`` others, the first of which was of ``first``. ``next`` is the worker whose turn it is, ``states`` has one entry for each that
    has handed out a batch, ``unstated`` has what others handed out that begin anew all the same. ``counted``: ranks have shares of samples.
    ``merged``: of all ranks, for any number of them.
    """

    epoch: int
    given: int = 0
    made: int = 0
    passes: int = 0
    first: int = 0
    next: int = 0
    states: Sequence[Mapping[str, Any]] = ()
    counted: Optional[bool] = None
    unstated: Sequence[Mapping[str, Any]] = ()
    ladder: Optional[Mapping[str, Any]] = None
    stages: Optional[Mapping[str, Any]] = None
    merged: Optional[Mapping[str, Any]] = None

    @property
    def midway(self) -> bool:
        """Whether anything of the epoch has been handed out."""
        return bool(self.given or self.made or self.states or self.merged)


def start_of(state: Mapping[str, Any], world: World, workers: int) -> LoaderStart:
    """Raises ``ValueError`` for what is not the state of a loader of this rank with so many workers."""
    if not isinstance(state, MappingABC):
        raise ValueError(f"{_REFUSED}: it is of type {type(state).__name__}, and a loader takes its own state_dict(). {_ADVICE}")
    kind = state.get("kind", "a data set's")
    if kind not in ("loader", "merged"):
        raise ValueError(
            f"{_REFUSED}: it is {kind}, and a loader takes its own state_dict(), or what fb.merge_states(…) makes of all ranks'. {_ADVICE}"
        )
    if state.get("format") != FORMAT:
        raise ValueError(f"{_REFUSED}: it is {of_format(state.get('format'))}. {_ADVICE}")
    check_seal(state)
    if kind == "merged":
        return _merged(state)
    was = (_number(state, "rank"), _number(state, "size"), _number(state, "workers"))
    if was != (world.rank, world.size, workers):
        raise ValueError(
            f"{_REFUSED}: it is of rank {was[0]} of {was[1]} with {was[2]} workers, and this is rank {world.rank} of {world.size} with "
            f"{workers}. fb.merge_states([…]) of the states of all {was[1]} ranks can be loaded on any number of ranks and workers"
        )
    if state.get("over"):
        # What comes is an epoch of its own: nothing of the one before is needed but how large its batches were.
        upcoming = _number(state, "upcoming")
        return LoaderStart(upcoming, first=upcoming, ladder=_mapping(state, "ladder"))
    numbers: dict[str, Any] = {name: _number(state, name) for name in ("epoch", "given", "made", "passes", "first", "next")}
    rest: dict[str, Any] = {name: _mapping(state, name) for name in ("ladder", "stages", "merged")}
    counted = state.get("counted")
    if numbers["next"] >= max(1, workers) or counted not in (None, True, False):
        raise ValueError(f"{_DAMAGED}: its 'next' is {numbers['next']} of {workers} workers, its 'counted' {counted!r}")
    unstated = state.get("unstated", ())
    if not isinstance(unstated, (list, tuple)):
        raise ValueError(f"{_DAMAGED}: its 'unstated' is {str(unstated)[:60]!r}, no list of what workers say")
    found = LoaderStart(**numbers, **rest, states=_states(state.get("states"), workers), unstated=unstated, counted=counted)
    if found.made and not found.states and found.stages is None and found.merged is None:
        raise ValueError(f"{_DAMAGED}: {found.made} batches were handed out, and no worker says where it stands")
    return found


def _states(value: Any, workers: int) -> list[Mapping[str, Any]]:
    """An entry for each of some workers."""
    known = isinstance(value, (list, tuple)) and all(isinstance(one, MappingABC) for one in value)
    if not known or not all(isinstance(one.get("state"), MappingABC) for one in value):
        raise ValueError(f"{_DAMAGED}: its 'states' are no list of what workers say")
    found = [_number(one, "worker") for one in value]
    if len(set(found)) != len(found) or max(found, default=0) >= max(1, workers):
        raise ValueError(f"{_DAMAGED}: its 'states' are of workers {found}, and there are {max(1, workers)}")
    for one in value:
        _number(one, "since"), _number(one, "outputs")
        if "handed" in one:
            _number(one, "samples"), _number(one, "items")
    return [later(one) for one in value]


def _number(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{_DAMAGED}: its {name!r} is {value!r}, no whole number")
    return value


def _mapping(state: Mapping[str, Any], name: str) -> Optional[Mapping[str, Any]]:
    value = state.get(name)
    if value is not None and not isinstance(value, MappingABC):
        raise ValueError(f"{_DAMAGED}: its {name!r} is {value!r}, no dictionary")
    return value


def _merged(state: Mapping[str, Any]) -> LoaderStart:
    epoch = _number(state, "epoch")
    if state.get("over"):
        return LoaderStart(epoch + 1, first=epoch + 1)
    passes, first = (_number({"passes": 0, "first": epoch, **state}, name) for name in ("passes", "first"))
    return LoaderStart(epoch, passes=passes, first=first, merged=state)
