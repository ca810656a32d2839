"""What --log-level debug says of each request."""

from __future__ import annotations

import logging

import pytest
from support.house import reader

from forebay_proxy.core.facts.requests import RequestDone, RequestOutcome, Served
from forebay_proxy.telemetry.logs.request_log import log_request


def test_a_request_is_one_debug_line_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    """Who, what, how, how much, how long; nothing above debug."""
    served = Served("https://o/a.tar?sig=S3CRET", reader(), None, 100, None, 0.25, "", began_at=0.0)
    done = RequestDone("GET", 200, RequestOutcome.MISS, 100, 0.3, 0.5, served=served)
    caplog.set_level(logging.INFO, "forebay")
    log_request(done)
    assert caplog.messages == []
    caplog.set_level(logging.DEBUG, "forebay")
    log_request(done)
    log_request(RequestDone("GET", 404, None, 0, 0.1, 0.1))
    assert caplog.messages == [
        f"GET 200 shard https://o/a.tar for {reader()}, miss: 100 bytes in 0.500 s, waited 0.250 s",
        "GET 404 no shard: 0 bytes in 0.100 s",
    ]
