"""``fb.merge_states``: makes one state of the states of all ranks. It says which samples of the epoch are done, so any world can read the
rest.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

from forebay_loader.resume.done_ranges import consumed, joined
from forebay_loader.resume.state_parts import FORMAT, RankPart, WorkerPart, rank_part, sealed

__all__ = ["merge_states"]

Done = dict[str, Union[str, list[list[int]]]]
_OWN = ("rank", "worker")  # properties of a data set that differ between ranks and workers
_REFUSED = "these states cannot be merged"


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks of a run into one, from which a run of any size continues: with other ranks, other workers.

    Each rank of the new run loads the result. All samples of the epoch that were not read yet come exactly once over all ranks, in the
    order of seed and epoch. Samples that waited in shuffle buffers are read again. A rank may have ended the epoch before the others.

    Args:
        states: One ``state_dict()`` of each rank, all taken after the same step. They come from ``fb.WebLoader``, from torchdata's
            ``StatefulDataLoader``, or from an ``fb.WebDataset`` that is read without workers.

    Returns:
        The merged state.

    Raises:
        TypeError: ``states`` is no list of states.
        ValueError: A rank or a worker is missing or there twice; the states are of different epochs, passes of ``repeat(n)`` or data sets;
            or the rest cannot be shared out: shards drawn with replacement (``resampled=True``), ranks that each read everything,
            ``resume="replay"``, ``with_epoch(n)`` on the data set.

    Examples:
        >>> states = [fb.load_state(f"step-1000.rank-{rank}.json")["loader"] for rank in range(1)]
        >>> fb.save_state(fb.merge_states(states), "merged.json")
    """
    if isinstance(states, (str, bytes, Mapping)) or not isinstance(states, Iterable):
        raise TypeError(f"merge_states takes a list of states, one of each rank; got {type(states).__name__}")
    ranks = [rank_part(state) for state in states]
    if not ranks:
        raise ValueError(f"{_REFUSED}: the list is empty. Give the state of each rank")
    _check_world(ranks)
    parts = [part for rank in ranks for part in rank.workers]
    known = [part for part in parts if part.state is not None]
    told = ((part.where, {name: value for name, value in part.made_of.items() if name not in _OWN}) for part in known)
    made_of = _alike("what their data sets are made of", told) if known else {}
    _check_kind(made_of)
    epoch = _alike("epoch", ((f"rank {rank.rank}", rank.epoch) for rank in ranks))
    for rank in ranks:  # a rank that had nothing to read ended at once, and has no state
        if rank.given and all(part.state is None for part in rank.workers):
            raise ValueError(f"{_REFUSED}: rank {rank.rank} handed out {rank.given} batches, and none of its workers says where it stands")
    over = all(rank.over for rank in ranks)
    turn = _alike("pass within the epoch", _turns(ranks)) or 0
    passes = _alike("pass of the loader", ((f"rank {rank.rank}", (rank.passes, rank.first)) for rank in ranks if not rank.over)) or (0, 0)
    by_pieces = any("SharedOut" in str(stage) or "shares of" in str(stage) for stage in made_of.get("stages") or ())
    done = _done(known, [rank.done for rank in ranks if rank.turn == turn], by_pieces=by_pieces)
    found = {
        "format": FORMAT,
        "kind": "merged",
        "epoch": epoch,
        "turn": turn,
        **({"passes": passes[0], "first": passes[1]} if passes[0] else {}),
        "over": over,
        "size": len(ranks),
        "workers": len(ranks[0].workers),
        "made_of": made_of,
        "done": done,
        "etags": _etags(ranks, {shard for shard, told in done.items() if told != "all"}),
    }
    return sealed(found)


def _done(parts: Sequence[WorkerPart], before: Iterable[Mapping[str, Any]], *, by_pieces: bool) -> Done:
    ranges: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
    totals: dict[int, int] = {}
    whole: set[int] = set()
    readers: dict[int, WorkerPart] = {}
    for done in (*before, *(part.done for part in parts)):
        for name, told in done.items():
            if told == "all":
                whole.add(int(name))
            else:
                ranges[int(name)] += told
    for part in parts:
        found = consumed(part.state or {}, part.since, by_pieces=by_pieces)
        for shard in found.begun:
            other = readers.setdefault(shard, part)
            if other is not part:
                raise ValueError(
                    f"{_REFUSED}: {other.where} and {part.where} both read all of shard {shard} of the list, so nothing is shared out "
                    "between them. Where every rank reads everything, each goes on with a state of its own, in a world of any size"
                )
        for shard, each in found.ranges.items():
            ranges[shard] += each
        totals.update(found.totals)
    made: Done = {}
    for shard in sorted({*ranges, *totals, *whole}):
        parted = joined(ranges[shard])
        if shard in whole or (shard in totals and parted == joined([(0, totals[shard])])):
            made[str(shard)] = "all"
        elif parted:
            made[str(shard)] = [list(each) for each in parted]
    return made


def _etags(ranks: Iterable[RankPart], parted: set[str]) -> dict[str, str]:
    """The versions of the shards that are done in part. Raises ``ValueError`` if two workers read different versions of one."""
    found: dict[str, tuple[str, str]] = {}
    told = [(f"rank {rank.rank}", shard, etag) for rank in ranks for shard, etag in rank.etags.items()]
    told += [(part.where, str(shard), etag) for rank in ranks for part in rank.workers for shard, etag in part.etags()]
    for where, shard, etag in told:
        first, before = found.setdefault(shard, (where, etag))
        if before != etag:
            raise ValueError(
                f"{_REFUSED}: {first} read version {before} of shard {shard} of the list, and {where} version {etag}: it changed in "
                "between, and the numbers of its samples with it. Begin the epoch again"
            )
    return {shard: etag for shard, (_, etag) in sorted(found.items(), key=lambda one: int(one[0])) if shard in parted}


def _alike(what: str, told: Iterable[tuple[str, Any]]) -> Any:
    """The value, if all are equal. Raises ``ValueError`` with the first two that differ."""
    first: tuple[str, Any] | None = None
    for where, value in told:
        if first is None:
            first = where, value
        elif value != first[1]:
            was, now = _difference(first[1], value)
            raise ValueError(
                f"{_REFUSED}: {what} is {was} on {first[0]} and {now} on {where}. Take the states of all ranks after the same step"
            )
    return None if first is None else first[1]


def _difference(one: Any, other: Any) -> tuple[Any, Any]:
    """The entries in which two dictionaries differ."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one, other
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return {name: one.get(name) for name in names}, {name: other.get(name) for name in names}


def _check_world(ranks: Sequence[RankPart]) -> None:
    size = _alike("the number of ranks", ((f"rank {rank.rank}", rank.size) for rank in ranks))
    there = [rank.rank for rank in ranks]
    twice = sorted({rank for rank in there if there.count(rank) > 1})
    missing = sorted(set(range(size)).difference(there))
    if twice:
        raise ValueError(
            f"{_REFUSED}: {_of_ranks(twice)} is there more than once. Give one state of each of the {size} data-parallel ranks, though "
            "several processes may read the same"
        )
    if missing:
        raise ValueError(f"{_REFUSED}: of {size} ranks {_of_ranks(missing)} is missing. What it has read would be read again")
    _alike("the number of workers", ((f"rank {rank.rank}", len(rank.workers)) for rank in ranks))


def _turns(ranks: Iterable[RankPart]) -> Iterator[tuple[str, int]]:
    """Which pass of the epoch each worker is in.

    A worker without a state has not reported yet, so it is in the first pass of the rest. Or it had nothing to read and has ended.
    """
    for rank in ranks:
        for part in rank.workers:
            if part.state is not None:
                yield part.where, int(part.state.get("turn", 0))
            elif not rank.over:
                yield part.where, rank.turn


def _of_ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:8]))}{' …' if len(ranks) > 8 else ''}"


def _check_kind(made_of: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a data set whose epoch is not a set of samples that ranks share."""
    why, (times, _, each) = "", str(made_of.get("passes", "1 of -1 each")).partition(" of ")
    if "resampled=True" in str(made_of.get("order")):
        why = "shards are drawn with replacement, by each rank and worker for itself, without an epoch that could be shared out"
    elif made_of and made_of["shards"] is None:
        why = "shards come from a source of their own, whose order is not known here"
    elif times != "1" and not each.startswith(("-1 ", "0 ")):
        why = "with_epoch(n) on the data set counts what each worker yields, so an epoch is no set of samples"
    if why:
        raise ValueError(f"{_REFUSED}: {why}. Go on with as many ranks and workers, each with its own state")
