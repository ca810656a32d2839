"""What all plans together may hold, because it is held in memory: a client that makes up readers must not eat the node. Pure."""

from __future__ import annotations

from forebay_proxy.core.errors import ForebayError

__all__ = [
    "MOST_NAME_BYTES", "MOST_READERS", "MOST_SHARDS", "PlanGap", "PlansFull", "check_entries", "check_names", "check_readers", "fits",
]  # fmt: skip

MOST_READERS = 4096  # eight ranks of 32 workers with two openers each are 512
MOST_SHARDS = 1 << 21  # entries; the largest public set has 585,270 shards. 0.3 GB when all come as indices, 1.5 GB as lists
MOST_NAME_BYTES = 512 << 20  # the most one plan may bring (wire/plan.py), which is far more than two million ordinary names
_STEP = "withdraw plans that are not needed (DELETE), or announce a shorter future"


class PlansFull(ForebayError):
    """All plans together hold as much as may be held. What the reader announced before stays."""

    status = 429
    retryable = True
    title = "Too many plans"


class PlanGap(ForebayError):
    """What is to be appended begins behind what is held: a message was lost, or the plan has ended. What is held stays."""

    status = 409
    title = "Plan has a gap"

    def __init__(self, held: int, at: int) -> None:
        super().__init__(f"the plan ends after {held} entries, and these begin at {at}", next_step="send the whole plan (PUT)")


def check_readers(count: int) -> None:
    """Whether a new reader may come to ``count`` others. Raises ``PlansFull``."""
    if count >= MOST_READERS:
        raise PlansFull(f"{count} readers have announced plans, and {MOST_READERS} may", next_step=_STEP)


def fits(count: int) -> bool:
    """Whether so many entries may be held."""
    return count <= MOST_SHARDS


def check_entries(count: int) -> None:
    """Whether so many entries may be held. Raises ``PlansFull``."""
    if not fits(count):
        raise PlansFull(f"all plans together would hold {count} shards, and {MOST_SHARDS} are taken", next_step=_STEP)


def check_names(size: int) -> None:
    """Whether names and patterns of ``size`` bytes may be held. Raises ``PlansFull``."""
    if size > MOST_NAME_BYTES:
        raise PlansFull(f"the names in all plans together would take {size} bytes, and {MOST_NAME_BYTES} are taken", next_step=_STEP)
