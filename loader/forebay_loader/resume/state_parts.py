"""Parses a state: which rank of how many it belongs to, and the position of each worker. Knows each form that a state comes in."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

from forebay_loader.resume.pass_state import unpacked

__all__ = [
    "FORMAT", "RankPart", "WorkerPart", "check_format", "is_state", "rank_part", "replays", "sealed", "states_in",
]  # fmt: skip

FORMAT = 3  # 1 only counted outputs; with 2, fb.rng and fb.video drew by the key alone
_DEEPEST = 8  # levels to search: torchdata's state has a worker's state five levels down


class WorkerPart(NamedTuple):
    """One worker's ``state``, None if nothing of it was handed out; and what was handed out ``since``."""

    where: str
    state: Optional[Mapping[str, Any]]
    since: Mapping[str, Any]

    @property
    def made_of(self) -> Mapping[str, Any]:
        return dict((self.state or {}).get("made_of", {}))

    @property
    def over(self) -> bool:
        return bool((self.state or {}).get("over") or self.since.get("over"))

    @property
    def done(self) -> Mapping[str, Any]:
        """What was done before this pass: that of the merged state which it resumes."""
        return dict((self.state or {}).get("done") or {})

    def etags(self) -> Iterator[tuple[int, str]]:
        """The shards with a known version, by number in the list."""
        state = self.state or {}
        yield from ((int(shard), str(etag)) for shard, etag in (state.get("done_etags") or {}).items())
        shards = unpacked(state.get("shards", "")) + unpacked(self.since.get("shards", ""))
        for item, etag in {**(state.get("etags") or {}), **(self.since.get("etags") or {})}.items():
            yield shards[int(item)], etag


class RankPart(NamedTuple):
    """The part of ``rank`` of ``size``: its ``epoch``, whether that is ``over``, and all its ``workers``.

    ``done`` and ``etags`` are of samples read before it began, in pass ``turn`` of the epoch. ``given`` is how many batches it has handed
    out since, if it counts them. ``passes`` passes of its loader's ``repeat(n)``, from epoch ``first`` on, are over.
    """

    rank: int
    size: int
    epoch: int
    over: bool
    done: Mapping[str, Any]
    etags: Mapping[str, str]
    workers: list[WorkerPart]
    turn: int = 0
    given: int = 0
    passes: int = 0
    first: int = 0


def check_format(state: Any, what: str = "this") -> None:
    """Raise ``ValueError`` if ``state`` is not ours, has another format, or does not match its checksum."""
    if not isinstance(state, Mapping) or not is_state(state):
        found = f"holds {sorted(map(str, state))[:6]}" if isinstance(state, Mapping) else f"is of type {type(state).__name__}"
        raise ValueError(f"{what} is no state of fb.WebLoader or fb.WebDataset: it {found}")
    version, seal = state["format"], state.get("seal")
    if version != FORMAT:
        why = f"and this Forebay reads {FORMAT}: a newer one wrote it, or it is damaged"
        if type(version) is int and 0 < version < FORMAT:
            why = (
                "written by an older Forebay, whose fb.rng and fb.video drew otherwise: what would have come, nobody can give now. "
                f"This one reads format {FORMAT}"
            )
        raise ValueError(f"{what} is a state of format {version!r}, {why}. set_epoch(n) without a state begins epoch n from its start")
    try:
        whole = isinstance(seal, Mapping) and _sum(state, seal["of"]) == seal["sum"]
    except (KeyError, TypeError, ValueError, RecursionError):  # a value that is no JSON
        whole = False
    if not whole:
        raise ValueError(
            f"{what} is damaged: a value in it was changed or lost since it was taken, for its checksum is another. Take one before it"
        )


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` with a checksum of its values. A user may add entries of other names."""
    names = sorted(name for name in state if name != "seal")
    return {**state, "seal": {"of": names, "sum": _sum(state, names)}}


def _sum(state: Mapping[str, Any], names: Iterable[str]) -> str:
    text = json.dumps([(name, state.get(name)) for name in names], sort_keys=True, default=repr)
    return blake2b(text.encode("ascii"), digest_size=8).hexdigest()


def is_state(found: Mapping[str, Any]) -> bool:
    """Whether a dictionary looks like a state of ours, of any format. A checkpoint may have an epoch and a format of its own."""
    return "format" in found and "epoch" in found and ("made_of" in found or "kind" in found)


def replays(state: Any) -> bool:
    """Whether a worker's state only counts outputs, and does not say which samples they were made of."""
    return isinstance(state, Mapping) and state.get("resume") == "replay"


def states_in(found: Any, path: str = "", deep: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the states in a checkpoint's dictionary or in torchdata's state, each with its path. A state is not searched for others."""
    if not isinstance(found, Mapping):
        return
    if is_state(found):
        yield path, found
    elif deep < _DEEPEST:
        for name, value in found.items():
            yield from states_in(value, f"{path}.{name}" if path else str(name), deep + 1)


def rank_part(state: Any, *, exact: bool = True) -> RankPart:
    """Parse one rank's ``state``. Raises ``ValueError`` if it is no state; if ``exact``, also for workers that resume by replay."""
    if isinstance(state, Mapping) and not is_state(state):
        inside = list(states_in(_stateful(state)))
        whole = next((name for name, each in inside if "kind" in each), None)
        if whole is not None:
            raise ValueError(f"this is a checkpoint, in which the state of a loader stands at {whole}: give that part of it")
        return _of_workers([each for _, each in inside], exact=exact)
    check_format(state)
    kind = state.get("kind")
    if kind == "merged":
        raise ValueError("this state is merged already: every rank of the new world loads it as it is")
    return _of_loader(state, exact=exact) if kind == "loader" else _of_workers([state], exact=exact)


def _stateful(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of torchdata's ``StatefulDataLoader``."""
    steps = state.get("_steps_since_snapshot", 0)
    if steps:
        raise ValueError(
            f"this state of StatefulDataLoader is {steps} steps behind its loader: snapshot_every_n_steps=1, which is the default, keeps up"
        )
    return state


def _of_workers(states: list[Mapping[str, Any]], *, exact: bool) -> RankPart:
    """Parse states that each name their own rank and worker."""
    if not states:
        check_format({})
    parts: dict[int, WorkerPart] = {}
    world: Optional[tuple[int, int, int]] = None
    for state in states:
        check_format(state)
        rank, size = _place(state, "rank")
        worker, workers = _place(state, "worker")
        if world is not None and world != (rank, size, workers):
            raise ValueError(f"one state holds workers of rank {world[0]} of {world[1]} and of rank {rank} of {size}: which rank is it of?")
        world = rank, size, workers
        parts[worker] = _part(rank, worker, state, {}, exact=exact)
    assert world is not None
    rank, size, workers = world
    missing = [worker for worker in range(workers) if worker not in parts]
    if missing:
        raise ValueError(
            f"this is the state of worker {', '.join(map(str, parts))} of {workers} on rank {rank}, and that of worker "
            f"{', '.join(map(str, missing))} is missing: fb.WebLoader and StatefulDataLoader give those of all workers together"
        )
    each = [parts[worker] for worker in range(workers)]
    return RankPart(rank, size, int(states[0]["epoch"]), all(part.over for part in each), {}, {}, each)


def _of_loader(state: Mapping[str, Any], *, exact: bool) -> RankPart:
    rank = int(state["rank"])
    workers = max(1, int(state["workers"]))  # 0: the training process reads itself
    entries: dict[int, Mapping[str, Any]] = {
        int(entry["worker"]): {**entry, "state": _at_start(entry["first"])} for entry in state.get("unstated", ())
    }
    entries.update({int(entry["worker"]): entry for entry in state["states"]})
    entries = {worker: _latest(f"rank {rank}, worker {worker}", entry, exact=exact) for worker, entry in entries.items()}
    parts = [_part(rank, each, entries.get(each, {}).get("state"), entries.get(each, {}), exact=exact) for each in range(workers)]
    over = bool(state.get("over")) or all(part.over for part in parts)
    merged, given = state.get("merged") or {}, int(state.get("given", 0))
    began = state.get("done") or {}, merged.get("etags") or {}, parts, int(merged.get("turn", 0)), given
    return RankPart(rank, int(state["size"]), int(state["epoch"]), over, *began, int(state.get("passes", 0)), int(state.get("first", 0)))


def _latest(where: str, entry: Mapping[str, Any], *, exact: bool) -> Mapping[str, Any]:
    """``entry``, for the pass of ``repeat(n)`` of which samples were handed out last."""
    beyond = entry.get("beyond", entry)
    if beyond is None and exact:
        raise ValueError(
            f"{where} has handed out samples of a pass of repeat(n) while some of the pass before wait in its loader's shuffle buffer, and "
            "a merged state is of one pass. Take the states of all ranks some batches later, when these have left it (after some ten times "
            "its length), or go on with as many ranks and workers, each with its own state"
        )
    return entry if beyond is None or beyond is entry else {**beyond, "state": _at_start(beyond["first"])}


def _at_start(first: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's state before its ``first`` one, when it had read nothing."""
    if replays(first):
        return dict(first)
    listed = unpacked(first["shards"])
    etags = {str(listed[int(item)]): etag for item, etag in (first.get("etags") or {}).items()}
    nothing = {"read": 0, "shards": "", "firsts": "", "ordinals": "", "buffers": [], "over": False, "etags": {}}
    return {**first, **nothing, "done_etags": {**(first.get("done_etags") or {}), **etags}}


def _part(rank: int, worker: int, state: Any, since: Mapping[str, Any], *, exact: bool) -> WorkerPart:
    where = f"rank {rank}, worker {worker}"
    if exact and replays(state):
        raise ValueError(
            f'{where} has a state of resume="replay", which counts outputs and does not say of which samples: it goes on '
            "in the same world only, unmerged"
        )
    return WorkerPart(where, state, since)


def _place(state: Mapping[str, Any], name: str) -> tuple[int, int]:
    own, _, all_of_them = state["made_of"][name].partition(" of ")
    return int(own), int(all_of_them)
