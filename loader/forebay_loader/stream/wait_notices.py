"""Logs that a reader waits for a shard, and why, while the wait lasts.

A sidecar that retries at its origin may keep a request open for five minutes, and the training stands still. The sidecar knows the cause
and reports it at /v1/status. When the wait is long, the loader asks for it once, on a separate connection.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from forebay_loader.base.notices import log
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint, find_endpoint
from forebay_loader.transport.http import ask_status

__all__ = ["SAID", "cause_of", "say_wait"]

ANSWER_S = 2.0  # a live sidecar answers in milliseconds; a reader that already waits can wait so much longer
EVERY_S = 60.0  # for each process: in an outage, every shard that it reads waits


class _Said:
    """When this process last logged a wait."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._last_s = float("-inf")

    def lately(self) -> bool:
        return time.monotonic() - self._last_s < EVERY_S

    def now(self) -> None:
        self._last_s = time.monotonic()


SAID = _Said()


def say_wait(shard: str, reader: str, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
    """Log that ``reader`` has waited ``seconds`` for ``shard``, and why, unless this process has logged a wait in the last minute.

    ``over`` says whether the answer arrived while the cause was asked for. Then nothing is logged.
    """
    if SAID.lately():
        return
    began_s = time.monotonic()
    cause = cause_of(reader)
    if over():
        return
    SAID.now()
    log.warning("shard %s: waiting for %.0f s; %s", shard, seconds + time.monotonic() - began_s, cause)


def cause_of(reader: str, endpoint: Optional[Endpoint] = None) -> str:
    """What ``reader`` waits for, as the sidecar (at ``endpoint``) says. Never raises."""
    found = endpoint or find_endpoint()
    try:
        cause = None if found is None else _its_cause(ask_status(found, ANSWER_S), reader)
    except (Unanswered, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        cause = None
    return cause or "the sidecar has not answered, and does not say why (see its log)"


def _its_cause(table: Any, reader: str) -> str:
    """The cause of the longest of ``reader``'s waits."""
    mine = [row for row in table["readers"] if row["reader"] == reader and row.get("waiting_for")]
    return str(max(mine, key=lambda row: float(row["waited_s"]))["waiting_for"]) if mine else ""
