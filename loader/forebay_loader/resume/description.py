"""A state in words, for people who look at a checkpoint at three in the morning."""

from __future__ import annotations

import json
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

from forebay_loader.base.shown_text import size_text
from forebay_loader.resume.done_ranges import Range, consumed, held_refs
from forebay_loader.resume.state_parts import WorkerPart, check_format, is_state, rank_part, replays, states_in

__all__ = ["describe_state"]

Ranges = Iterable[Union[Range, "list[int]"]]


def describe_state(state: Mapping[str, Any]) -> str:
    """What ``state`` holds, in lines of words: the epoch, how much of it is done, what waits in buffers, and how large the state is.

    Example::

        print(fb.describe_state(fb.load_state("step-1000.rank-0.json")))

    - ``state``: a ``state_dict()`` of ``fb.WebLoader`` or ``fb.WebDataset``, of torchdata's ``StatefulDataLoader``, a merged state, or a
      checkpoint's dictionary that holds some; each is then told after its name.

    Raises ``ValueError`` where there is no state in it, or a damaged one.
    """
    if isinstance(state, Mapping) and (is_state(state) or "_snapshot" in state):
        return "\n".join(_lines(state))
    found = [(name, each) for name, each in _named(state)]
    if not found:
        check_format(state)
    return "\n".join(f"{name}: {line}" if not at else f"  {line}" for name, each in found for at, line in enumerate(_lines(each)))


def _named(state: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The states of a checkpoint; torchdata's as one."""
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(value, Mapping) and "_snapshot" in value:
            yield str(name), value
        else:
            yield from states_in(value, str(name))


def _lines(state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("kind") == "merged":
        yield from _merged_lines(state)
    else:
        yield from _rank_lines(state)


def _merged_lines(state: Mapping[str, Any]) -> Iterator[str]:
    check_format(state)
    done = state["done"]
    whole = sum(told == "all" for told in done.values())
    yield (
        f"epoch {state['epoch']}{_over(state)}, merged from {_many(int(state.get('size', 0)), 'rank')} with "
        f"{_many(int(state.get('workers', 0)), 'worker')} each: goes on in a world of any size"
    )
    samples = sum(_samples(told) for told in done.values() if told != "all")
    yield _shards(whole, len(done) - whole, state.get("made_of", {})) + f"; {_many(samples, 'sample')} of those that are done in part"
    yield _size(state)


def _rank_lines(state: Mapping[str, Any]) -> Iterator[str]:
    rank = rank_part(state, exact=False)
    known = [part for part in rank.workers if part.state is not None]
    given = f", {_many(int(state['given']), 'batch')} handed out" if "given" in state else ""
    over = " (over)" if rank.over else ""
    yield f"epoch {rank.epoch}{over}, rank {rank.rank} of {rank.size}, {_many(len(rank.workers), 'worker')}{given}"
    if any(replays(part.state) for part in known):
        outputs = sum(int((part.state or {}).get("yielded", 0)) + int(part.since.get("outputs", 0)) for part in known)
        yield f"{_many(outputs, 'output')} of its workers' data sets: resumed by replay, which makes them again"
    else:
        yield from _exact_lines(known)
    yield _size(state)


def _exact_lines(known: Sequence[WorkerPart]) -> Iterator[str]:
    ended, begun, samples = _reading(known)
    made_of = known[0].made_of if known else {}
    yield f"{_shards(ended, begun, made_of)}; {_many(samples, 'sample')} done"
    held = sum(len(held_refs(part.state or {})) for part in known)
    buffers = sum(len((part.state or {}).get("buffers", ())) for part in known)
    yield f"{_many(held, 'sample')} in {_many(buffers, 'buffer')}: they are read again"


def _reading(parts: Iterable[WorkerPart]) -> tuple[int, int, int]:
    """Shards whose end was read, shards begun and not ended, samples that are done."""
    ended: set[int] = set()
    begun: set[int] = set()
    samples = 0
    for part in parts:
        found = consumed(part.state or {}, part.since)
        ended.update(found.totals)
        begun.update(found.ranges)
        samples += sum(_samples(each) for each in found.ranges.values())
    return len(ended), len(begun - ended), samples


def _samples(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _shards(ended: int, begun: int, made_of: Mapping[str, Any]) -> str:
    listed = made_of.get("shards")
    return f"{_many(ended, 'shard')} read to the end and {begun:,} in part{'' if listed is None else f', of {listed:,} in the list'}"


def _over(state: Mapping[str, Any]) -> str:
    return " (over)" if state.get("over") else ""


def _size(state: Mapping[str, Any]) -> str:
    return f"{size_text(len(json.dumps(state, default=repr)))} as JSON"


def _many(count: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
