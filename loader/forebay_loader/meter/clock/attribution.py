"""What the time of a stall went for: pure arithmetic over what the page of the worker says whose batch was due.

A worker that makes later batches while the due one is on its way is what the trainer waits for: a faster way would not bring the next one
sooner. So only the time in which the worker stands idle counts as "transfer".
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from forebay_loader.meter.page import BookedSpan

__all__ = ["PageAccount", "attributed", "stretched"]

_REST = "other"


class PageAccount(NamedTuple):
    """What a page says of a stall: when the worker could first be seen (ns), and what it did, adjoining, in order."""

    begun_ns: int
    spans: List[BookedSpan]


def attributed(start_ns: int, end_ns: int, told: Optional[PageAccount], *, ended: bool = False) -> Dict[str, int]:
    """The causes of the time from ``start_ns`` to ``end_ns``, in ns; together they are all of it.

    Before the worker could be seen: "start". What no span covers: as the covered part, and "other" where nothing is covered. ``told``
    None: there was no page. ``ended``: no batch came, since the pass ended then: what follows the last span is the end of its workers,
    which counts as their start does.
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
    _add(found, "start", working_ns - start_ns)
    covered: Dict[str, int] = {}
    for begins, ends, cause in told.spans:
        _add(covered, cause, min(ends, end_ns) - max(begins, working_ns))
    if sum(covered.values()) != end_ns - working_ns:
        covered = stretched(covered, end_ns - working_ns)
    for cause, nanoseconds in covered.items():
        _add(found, cause, nanoseconds)
    return found


def stretched(covered: Dict[str, int], whole: int) -> Dict[str, int]:
    """The known causes of ``covered``, so that their sum is ``whole``."""
    known = {cause: nanoseconds for cause, nanoseconds in covered.items() if cause != _REST}
    total = sum(known.values())
    if not total:
        return {_REST: whole}
    found = {cause: nanoseconds * whole // total for cause, nanoseconds in known.items()}
    largest = max(found, key=lambda cause: found[cause])
    found[largest] += whole - sum(found.values())
    return found


def _add(to: Dict[str, int], cause: str, nanoseconds: int) -> None:
    if nanoseconds > 0:
        to[cause] = to.get(cause, 0) + nanoseconds
