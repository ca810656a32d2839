"""Tells a person that a shard is waited for, and why, while it lasts.

A sidecar that asks its origin again keeps our question without a word, for five minutes if it must: a training that stands still and says
nothing. The sidecar knows the cause, and tells it in /v1/status. It is asked once, where the wait is long, on a connection of its own.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from forebay_loader.base.notices import log
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint, find_endpoint
from forebay_loader.transport.http import ask_status

__all__ = ["SAID", "cause_of", "say_wait"]

ANSWER_S = 2.0  # a live sidecar answers in milliseconds; who waits already may wait so much longer for a line
EVERY_S = 60.0  # in a process: it reads one shard after the other, and in an outage each of them waits


class _Said:
    """When this process said last that it waits."""

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
    """Say that ``reader`` has waited ``seconds`` for ``shard``, and for what, unless this process has said so within the minute.

    ``over`` tells whether the answer came while the cause was asked for: then there is nothing to say.
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
    """What the sidecar (at ``endpoint``) says that ``reader`` waits for. Never raises."""
    found = endpoint or find_endpoint()
    try:
        cause = None if found is None else _its_cause(ask_status(found, ANSWER_S), reader)
    except (Unanswered, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        cause = None
    return cause or "the sidecar has not answered, and does not say why (see its log)"


def _its_cause(table: Any, reader: str) -> str:
    """Of the shards that ``reader`` waits for, the one it has waited for longest."""
    mine = [row for row in table["readers"] if row["reader"] == reader and row.get("waiting_for")]
    return str(max(mine, key=lambda row: float(row["waited_s"]))["waiting_for"]) if mine else ""
