"""``fb.describe_state``: a state in a few readable lines."""

from __future__ import annotations

import json
from typing import Any, Iterable, Iterator, Mapping, Sequence

from forebay_loader.base.shown_text import size_text
from forebay_loader.resume.done_ranges import consumed, held_refs
from forebay_loader.resume.state_parts import check_format, is_state, rank_part, replays, states_in

__all__ = ["describe_state"]


def describe_state(state: Mapping[str, Any]) -> str:
    """Say in a few lines what ``state`` holds: the epoch, how much of it is done, what waits in buffers, and how large the state is.

    Args:
        state: A ``state_dict()`` of ``fb.WebLoader``, ``fb.WebDataset`` or torchdata's ``StatefulDataLoader``, a merged state, or a
            checkpoint's dictionary with some of these. Each is then described under its name.

    Returns:
        The lines as one text.

    Raises:
        ValueError: There is no state in it, or a damaged one.

    Examples:
        >>> print(fb.describe_state(fb.load_state("step-1000.rank-0.json")))  # doctest: +ELLIPSIS
        loader: ...
    """
    if isinstance(state, Mapping) and (is_state(state) or "_snapshot" in state):
        return "\n".join(_lines(state))
    found = [(name, each) for name, each in _named(state)]
    if not found:
        check_format(state)
    return "\n".join(f"{name}: {line}" if not at else f"  {line}" for name, each in found for at, line in enumerate(_lines(each)))


def _named(state: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The states in a checkpoint. A state of torchdata's loader counts as one."""
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(value, Mapping) and "_snapshot" in value:
            yield str(name), value
        else:
            yield from states_in(value, str(name))


def _lines(state: Mapping[str, Any]) -> Iterator[str]:
    yield from _merged_lines(state) if state.get("kind") == "merged" else _rank_lines(state)
    yield f"{size_text(len(json.dumps(state, default=repr)))} as JSON"


def _merged_lines(state: Mapping[str, Any]) -> Iterator[str]:
    check_format(state)
    done, over = state["done"], " (over)" if state["over"] else ""
    yield (
        f"epoch {state['epoch']}{over}, merged from {_many(state['size'], 'rank')} with {_many(state['workers'], 'worker')} each: "
        "goes on in a world of any size"
    )
    parts = [told for told in done.values() if told != "all"]
    shards = _shards(len(done) - len(parts), len(parts), state["made_of"])
    yield f"{shards}; {_many(sum(map(_samples, parts)), 'sample')} of those that are done in part"


def _rank_lines(state: Mapping[str, Any]) -> Iterator[str]:
    rank = rank_part(state, exact=False)
    known = [(part.state, part.since) for part in rank.workers if part.state is not None]
    given = f", {_many(state['given'], 'batch')} handed out" if "given" in state else ""
    over = " (over)" if rank.over else ""
    yield f"epoch {rank.epoch}{over}, rank {rank.rank} of {rank.size}, {_many(len(rank.workers), 'worker')}{given}"
    if any(replays(each) for each, _ in known):
        outputs = sum(each["yielded"] + since.get("outputs", 0) for each, since in known)
        yield f"{_many(outputs, 'output')} of its workers' data sets: resumed by replay, which makes them again"
        return
    found = [consumed(each, since) for each, since in known]
    ended = {shard for one in found for shard in one.totals}
    begun = {shard for one in found for shard in one.ranges} - ended
    samples = sum(_samples(ranges) for one in found for ranges in one.ranges.values())
    yield f"{_shards(len(ended), len(begun), known[0][0]['made_of'] if known else {})}; {_many(samples, 'sample')} done"
    held = sum(len(held_refs(each)) for each, _ in known)
    buffers = sum(len(each["buffers"]) for each, _ in known)
    yield f"{_many(held, 'sample')} in {_many(buffers, 'buffer')}: they are read again"


def _samples(ranges: Iterable[Sequence[int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _shards(ended: int, begun: int, made_of: Mapping[str, Any]) -> str:
    listed = made_of.get("shards")
    return f"{_many(ended, 'shard')} read to the end and {begun:,} in part{'' if listed is None else f', of {listed:,} in the list'}"


def _many(count: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
