"""What the time of a stall went for: pure arithmetic over what the page of the worker says whose batch was due."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from forebay_loader.meter.page import BookedSpan

__all__ = ["PageAccount", "attributed"]


class PageAccount(NamedTuple):
    """What a page says of a stall. Times in ns of one clock.

    ``begun_ns``: when the worker could first be seen; ``made_ns``: when it had made the batch that was due, None where that is not known;
    ``spans``: what it did, adjoining, in order.
    """

    begun_ns: int
    made_ns: Optional[int]
    spans: List[BookedSpan]


_REST = "other"


def attributed(start_ns: int, end_ns: int, told: Optional[PageAccount], *, ended: bool = False) -> Dict[str, int]:
    """The causes of the time from ``start_ns`` to ``end_ns``, in ns; together they are all of it.

    Before the worker could be seen: "start". After the batch was made: "transfer". What no span covers: as the covered part, and "other"
    where nothing is covered. ``told`` None: there was no page. ``ended``: no batch came, since the pass ended then: what
    follows the last span is the end of its workers, which counts as their start does.
    """
    if end_ns <= start_ns:
        return {}
    if told is None:
        return {"start" if ended else _REST: end_ns - start_ns}
    found: Dict[str, int] = {}
    if ended:
        last_ns = min(max([start_ns, *(ends for _, ends, _ in told.spans)]), end_ns)
        _add(found, "start", end_ns - last_ns)
        end_ns = last_ns
    working_ns = min(max(told.begun_ns, start_ns), end_ns)
    made_ns = end_ns if told.made_ns is None else min(max(told.made_ns, working_ns), end_ns)
    _add(found, "start", working_ns - start_ns)
    _add(found, "transfer", end_ns - made_ns)
    covered: Dict[str, int] = {}
    for begins, ends, cause in told.spans:
        _add(covered, cause, min(ends, made_ns) - max(begins, working_ns))
    for cause, nanoseconds in _stretched(covered, made_ns - working_ns).items():
        _add(found, cause, nanoseconds)
    return found


def _stretched(covered: Dict[str, int], whole: int) -> Dict[str, int]:
    """``covered``, so that its sum is ``whole``."""
    known = sum(covered.values())
    if known == whole:
        return covered
    if not known:
        return {_REST: whole}
    found = {cause: nanoseconds * whole // known for cause, nanoseconds in covered.items()}
    largest = max(found, key=lambda cause: found[cause])
    found[largest] += whole - sum(found.values())
    return found


def _add(to: Dict[str, int], cause: str, nanoseconds: int) -> None:
    if nanoseconds > 0:
        to[cause] = to.get(cause, 0) + nanoseconds
