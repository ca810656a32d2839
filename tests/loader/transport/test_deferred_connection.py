"""A request is sent and left; its answer is read later, and trouble on the way is one error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fake_proxy import FakeServer

from forebay_loader.transport.deferred_connection import Answer, DeferredConnection
from forebay_loader.transport.endpoint import Endpoint

PLAN = "/v1/plans/job/0/0/1.1"
WITHIN_S = 60.0  # nothing here may end by its time limit, whatever else the machine does


@pytest.fixture
def asking() -> Iterator[DeferredConnection]:
    made = DeferredConnection()
    yield made
    made.close()


def put(asking: DeferredConnection, sidecar: FakeServer, token: str = "", **headers: str) -> None:
    asking.send(Endpoint(port=sidecar.port, token=token), "PUT", PLAN, b"{}", headers, connect_s=WITHIN_S, send_s=WITHIN_S)


def exchanged(asking: DeferredConnection, sidecar: FakeServer, times: int = 1) -> None:
    for _ in range(times):
        put(asking, sidecar)
        asking.receive(WITHIN_S)


def test_the_answer_comes_when_it_is_asked_for(asking: DeferredConnection, proxy: FakeServer) -> None:
    """Its status, and which sidecar it is from."""
    proxy.instance = "a"
    put(asking, proxy)
    assert asking.awaiting
    assert asking.receive(WITHIN_S) == Answer(204, "a")
    assert not asking.awaiting


def test_where_nothing_was_asked_nothing_is_read(asking: DeferredConnection, proxy: FakeServer) -> None:
    """Neither before the first request, nor a second time, nor after it was closed, which may be done twice."""
    assert asking.receive(WITHIN_S) is None
    exchanged(asking, proxy)
    assert asking.receive(WITHIN_S) is None
    put(asking, proxy)
    asking.close()
    asking.close()
    assert asking.receive(WITHIN_S) is None


def test_another_address_gets_a_socket_of_its_own(asking: DeferredConnection, proxy: FakeServer, origin: FakeServer) -> None:
    """A sidecar that moved is followed."""
    exchanged(asking, proxy)
    exchanged(asking, origin)
    assert (len(proxy.plans), len(origin.plans)) == (1, 1)


def test_the_token_travels(asking: DeferredConnection, proxy: FakeServer) -> None:
    """Beside the request's own headers."""
    put(asking, proxy, token="secret", Kind="plan")
    asking.receive(WITHIN_S)
    headers = proxy.plans[0].headers
    assert (headers["Forebay-Token"], headers["Kind"]) == ("secret", "plan")


def test_a_header_that_cannot_be_sent_is_the_callers(asking: DeferredConnection, proxy: FakeServer) -> None:
    """``ValueError``, not trouble of the sidecar's."""
    with pytest.raises(ValueError, match="header"):
        put(asking, proxy, Kind="two\nlines")
