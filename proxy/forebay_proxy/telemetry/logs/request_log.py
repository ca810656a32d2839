"""A debug line for each request that ended: the reader, its request and the answer, how long that took and how long it waited."""

from __future__ import annotations

import logging

from forebay_proxy.core.facts.requests import RequestDone
from forebay_proxy.core.shard import shown

__all__ = ["log_request"]

log = logging.getLogger("forebay")


def log_request(event: RequestDone) -> None:
    """A listener: at ``--log-level debug``, one line a request."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    served = event.served
    what = f"shard {shown(served.shard)}" if served else "no shard"
    who = f" for {served.reader}" if served and served.reader else ""
    how = f", {event.outcome.value}" if event.outcome else ""
    waited = f", waited {served.waited_s:.3f} s" if served and served.waited_s >= 0.001 else ""
    cut = f", cut: {served.cut}" if served and served.cut else ""
    log.debug(
        "%s %d %s%s%s: %d bytes in %.3f s%s%s", event.method, event.code, what, who, how, event.bytes_sent, event.seconds, waited, cut
    )
