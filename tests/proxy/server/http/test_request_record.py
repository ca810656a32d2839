"""What a request's record reports at its end."""

from __future__ import annotations

import time

import pytest

from forebay_proxy.core.events import Events, RequestFailed
from forebay_proxy.core.facts.requests import RequestDone
from forebay_proxy.server.http.request_record import RequestRecord


@pytest.mark.parametrize(("code", "failed"), [(399, []), (400, [RequestFailed(400, "no such option")])])
def test_an_error_is_told_beside_the_request(code: int, failed: list[RequestFailed]) -> None:
    """400 is the first status that is one."""
    events, told = Events(), list[object]()
    events.listen(told.append)
    record = RequestRecord("GET", events, time.monotonic, error="no such option")
    record.answered(code)
    record.close()
    assert [type(fact) for fact in told[:1]] == [RequestDone]
    assert told[1:] == failed
