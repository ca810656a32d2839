"""Sends a process's totals to the sidecar, and reads those of the whole node. It never raises and never delays training."""

from __future__ import annotations

import json
import time
from typing import Dict, Optional
from urllib.parse import quote

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once
from forebay_loader.meter.report.node_view import NodeSums, read_node
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.deferred_connection import DeferredConnection
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.http import ask
from forebay_proxy.wire.protocol.meter import MeterBody, encode_meter

__all__ = ["MeterClient"]

STEP_S = 2.0  # nobody waits for this thread, and its next line is due 30 s later
PAUSE_S = 60.0  # after a refusal: an older sidecar does not know the path
MAX_PAGE_BYTES = 4 << 20  # enough for all processes that a sidecar remembers


class MeterClient:
    """The client of one process, named ``job/rank/main/opener``. Not thread-safe."""

    def __init__(self) -> None:
        self._connection = DeferredConnection()
        self._quiet_until_s = float("-inf")

    def tell(self, name: str, totals: MeterBody) -> bool:
        """Send ``totals``. Returns whether the sidecar accepted them."""
        if time.monotonic() < self._quiet_until_s:
            return False
        status = self._send("POST", name, encode_meter(totals), {"Content-Type": "application/json"})
        if status == 204:
            COUNTS.add("meter_sent")
        elif status is not None:
            self._quiet_until_s = time.monotonic() + PAUSE_S
            notice_once("meter refused", f"the sidecar does not take what this process tells of its stalls (HTTP {status})")
        return status == 204

    def end(self, name: str) -> None:
        """Tell the sidecar that the process ends: it waits for nothing any more."""
        if time.monotonic() >= self._quiet_until_s:
            self._send("DELETE", name, b"", {})

    def _send(self, method: str, name: str, content: bytes, headers: Dict[str, str]) -> Optional[int]:
        """Return the status of the answer; None if there is no sidecar or no answer."""
        try:
            endpoint = find_endpoint()
            if endpoint is None:
                return None
            self._connection.send(endpoint, method, f"/v1/meter/{name}", content, headers, connect_s=STEP_S, send_s=STEP_S)
            answer = self._connection.receive(STEP_S)
        except (Unanswered, ValueError):
            self._fail()
            return None
        if answer is None or answer.status != 204:
            self._fail()
        return answer and answer.status

    def node(self, job: str) -> Optional[NodeSums]:
        """The totals of all ranks of ``job`` on this node and of their sidecar; None if there is no answer."""
        endpoint = find_endpoint()
        if endpoint is None:
            return None
        try:
            reply = ask(endpoint, f"/v1/meter/{quote(job, safe='')}", [], connect_s=STEP_S, silence_s=STEP_S)
            content = reply.content(MAX_PAGE_BYTES)
            return read_node(json.loads(content)) if reply.status == 200 else None
        except (Unanswered, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _fail(self) -> None:
        COUNTS.add("meter_failed")
        self._connection.close()
