"""Where the next iteration of a loader starts, read from a loaded state and checked."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.identity.world import World
from forebay_loader.resume.later_state import later
from forebay_loader.resume.state_parts import check_format

__all__ = ["LoaderStart", "start_of"]

_REFUSED = "the state that was loaded cannot be resumed"
_ADVICE = "set_epoch(n) of the data set, without a state, begins epoch n from its start"


class LoaderStart(NamedTuple):
    """Where an iteration starts: after ``given`` of its batches.

    - ``made``: the same count in batches of the user's size, before a ladder joined them.
    - ``passes``: the number of passes before the current one; the first of them was of epoch ``first``.
    - ``next``: the worker that makes the next batch.
    - ``states``: one entry for each worker that has handed out a batch.
    - ``unstated``: what other workers have handed out, though they start again from their beginning.
    - ``counted``: ranks have shares of samples.
    - ``merged``: a merged state of all ranks, for any number of ranks.
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
        """Whether any batch of the epoch was handed out."""
        return bool(self.given or self.made or self.states or self.merged)


def start_of(state: Mapping[str, Any], world: World, workers: int) -> LoaderStart:
    """Parse ``state``. Raises ``ValueError`` if it is not of a loader of this rank with so many workers."""
    check_format(state, "the state that was loaded")
    kind = state.get("kind", "a data set's")
    if kind not in ("loader", "merged"):
        raise ValueError(
            f"{_REFUSED}: it is {kind}, and a loader takes its own state_dict(), or what fb.merge_states(…) makes of all ranks'. {_ADVICE}"
        )
    if kind == "merged":
        epoch = state["epoch"]
        if state["over"]:
            return LoaderStart(epoch + 1, first=epoch + 1)
        return LoaderStart(epoch, passes=state.get("passes", 0), first=state.get("first", epoch), merged=state)
    was = (state["rank"], state["size"], state["workers"])
    if was != (world.rank, world.size, workers):
        raise ValueError(
            f"{_REFUSED}: it is of rank {was[0]} of {was[1]} with {was[2]} workers, and this is rank {world.rank} of {world.size} with "
            f"{workers}. fb.merge_states([…]) of the states of all {was[1]} ranks can be loaded on any number of ranks and workers"
        )
    if state["over"]:
        # The next epoch needs nothing of the finished one, except its batch size.
        return LoaderStart(state["upcoming"], first=state["upcoming"], ladder=state.get("ladder"))
    told = {name: state[name] for name in LoaderStart._fields if name in state}
    found = LoaderStart(**{**told, "states": [later(one) for one in state["states"]]})
    if found.made and not found.states and found.stages is None and found.merged is None:
        raise ValueError(f"{_REFUSED}: {found.made} batches were handed out, and no worker says where it stands. {_ADVICE}")
    return found
