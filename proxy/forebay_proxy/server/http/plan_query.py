"""What somebody asks of the announced plans: the query of ``GET /v1/plans``. Pure."""

from __future__ import annotations

from urllib.parse import parse_qsl

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["MOST_ROWS", "parse_plan_query"]

MOST_ROWS = 256  # in one answer: about 120 kB and 5 ms of the loop


def parse_plan_query(query: str) -> tuple[str | None, ReaderName | None, int]:
    """``?job=&after=&limit=``: of which job (None: of all), behind which reader, how many at most. Raises ``InvalidRequest``."""
    asked = dict(parse_qsl(query))
    limit = asked.get("limit", str(MOST_ROWS))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and int(limit) > 0):
        raise InvalidRequest(f"limit is {limit[:40]!r}, not a number of plans", next_step=f"leave it out, or write ?limit={MOST_ROWS}")
    try:
        after = ReaderName.parse(asked["after"]) if "after" in asked else None
    except ValueError as error:
        raise InvalidRequest(f"after: {error}", next_step="give the `next` of the answer before, percent-encoded once more") from error
    return asked.get("job"), after, min(int(limit), MOST_ROWS)
