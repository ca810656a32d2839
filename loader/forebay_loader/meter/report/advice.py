"""Whether more workers would pay: said only where it was measured. Pure.

Workers that compute while cores are idle are too few. Let the trainer have waited for the share s of its time: it would take batches
1 / (1 - s) times as fast, and that many times more workers would make them, if there are cores for them. Workers that wait for bytes are
not too few: more of them would share the same origin, or disk.
"""

from __future__ import annotations

import math
from typing import Optional

from forebay_loader.base.size_text import size_text
from forebay_loader.meter.report.cores import CoreUse
from forebay_loader.meter.report.node_view import NodeView, stall_share

__all__ = ["advice"]

MUCH = 0.02  # of the time: less is not worth a thought
_WORK = ("read", "decode", "map", "collate")  # what a core does
_NEARLY_ALL = (
    0.95  # nobody can say how many workers hide a stall of nearly all of the time: one step of this size, then it is measured anew
)


def advice(view: NodeView, cores: Optional[CoreUse]) -> str:
    """For the slowest rank of ``view``; "" where there is nothing to say. ``cores``: of the same interval, None where not known."""
    body = view.ranks.get(view.slowest or "")
    if body is None or stall_share(body) < MUCH:
        return ""
    stall_s = sum(body.stall_s.values())
    if sum(body.stall_s[cause] for cause in _WORK) >= stall_s / 2:
        alike = sum(stall_share(each) >= stall_share(body) / 2 for each in view.ranks.values())
        return "" if cores is None or body.workers is None else _workers(body.workers, stall_share(body), cores, alike)
    if body.stall_s["origin"] >= stall_s / 2 and view.sidecar is not None and view.seconds > 0:
        return f"more workers would not pay: the origin gives {size_text(view.sidecar.origin_bytes / view.seconds)}/s"
    if body.stall_s["disk"] >= stall_s / 2:
        return "more workers would not pay: they wait for the cache's disk"
    return ""


def _workers(workers: int, share: float, cores: CoreUse, ranks: int) -> str:
    share = min(share, _NEARLY_ALL)
    # Without workers the trainer makes batches itself, and they cost it the share s: workers beside it have the rest of the time for that.
    wanted = math.ceil(workers / (1 - share) if workers else share / (1 - share))
    room = int(cores.idle * cores.count / ranks)  # of each that waits as long
    enough = min(wanted, workers + room)
    if enough <= workers:
        return f"more workers would not pay: {cores.idle * cores.count:.1f} of {cores.count:g} cores idle"
    return f"workers {workers} -> {enough} would pay: cores idle {100 * cores.idle:.0f} %"
