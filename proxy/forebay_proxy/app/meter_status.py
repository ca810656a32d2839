"""The stalls of one job's training processes, beside what this sidecar does for that job: the JSON of ``GET /v1/meter/{job}``.

One answer has all that the log line of rank 0 says, so that a line costs one question.
"""

from __future__ import annotations

from typing import Any

from forebay_proxy.app.plan_status import PlanStatus
from forebay_proxy.telemetry.counters import Counters
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.rank_balance import rank_balance

__all__ = ["MeterStatus"]


class MeterStatus:
    """Asks the parts when somebody asks; keeps nothing."""

    def __init__(self, *, meters: MeterBoard, announced: PlanStatus, counters: Counters, board: OriginBoard, instance: str) -> None:
        self._meters = meters
        self._announced = announced
        self._counters = counters
        self._board = board
        self._instance = instance

    def page(self, job: str) -> dict[str, Any]:
        """``ranks``: see ``MeterBoard.rows``; ``balance``: how evenly they were loaded in the last minute (``RankBalance``).

        ``sidecar``: sums since it started, and what lies ahead of the job's readers now.

        Origin bytes are of all jobs: a flight serves every job that waits for it.
        """
        rows = self._meters.rows(job)
        balance = rank_balance(rows)
        counted, ahead, (origin_bytes, origin_retries) = self._counters.of(job), self._announced.ahead(job), self._board.sums()
        return {
            "instance": self._instance,
            "job": job,
            "ranks": rows,
            "balance": balance.as_json() if balance else None,
            "sidecar": {
                "sent_bytes": counted.sent_bytes,
                "hit_bytes": counted.hit_bytes,
                "reader_wait_s": counted.reader_wait_s,
                "errors": counted.errors,
                "origin_bytes": origin_bytes,
                "origin_retries": origin_retries,
                "lead_bytes": ahead.bytes if ahead else None,
                "lead_shards": ahead.shards if ahead else None,
                "lead_s": ahead.seconds if ahead else None,
            },
        }
