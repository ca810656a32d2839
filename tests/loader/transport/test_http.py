"""One client for one server: which socket a question takes, and what becomes of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_proxy import Cut, FakeServer, Refuse

from forebay_loader.transport import http
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint
from forebay_loader.transport.http import MAX_EXPLANATION_BYTES, Reply, ask, ask_status, connect

SHARD = "/s3/bucket/x.tar"
BODY = bytes(range(256)) * 400
WITHIN_S = 60.0


@pytest.fixture
def sidecar(proxy: FakeServer) -> FakeServer:
    proxy.put(SHARD, BODY)
    return proxy


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[FakeServer]:
    """A sidecar on a unix socket."""
    with FakeServer(str(tmp_path / "socket")).running() as server:
        server.put(SHARD, BODY)
        yield server


def at(sidecar: FakeServer, token: str = "") -> Endpoint:
    return Endpoint(port=sidecar.port, socket_path=sidecar.socket_path, token=token)


def asked(endpoint: Endpoint, **how: str) -> Reply:
    return ask(endpoint, SHARD, [("Kind", "test")], connect_s=WITHIN_S, silence_s=WITHIN_S, **how)


def connections(sidecar: FakeServer) -> int:
    return len({request.connection for request in sidecar.requests})


def test_a_unix_socket_serves_as_tcp_does(beside: FakeServer) -> None:
    """The same question, the same answer."""
    assert asked(at(beside)).content(len(BODY)) == BODY
    assert beside.requests[0].headers["Host"] == "localhost"


def test_headers_and_token_travel(sidecar: FakeServer) -> None:
    """Those of the question, and the endpoint's."""
    asked(at(sidecar, token="secret")).body.close()
    headers = sidecar.requests[0].headers
    assert (headers["Kind"], headers["Forebay-Token"]) == ("test", "secret")
    assert "Accept-Encoding" not in headers


def test_a_connection_whose_answer_was_left_is_not(sidecar: FakeServer) -> None:
    """The rest of one answer would be read as the next."""
    reply = asked(at(sidecar))
    assert reply.content(10) == BODY[:10]
    assert asked(at(sidecar)).content(len(BODY)) == BODY
    assert connections(sidecar) == 2


def test_threads_share_no_connection(sidecar: FakeServer) -> None:
    """Each has its idle one."""
    asked(at(sidecar)).content(len(BODY))
    other = threading.Thread(target=lambda: asked(at(sidecar)).content(len(BODY)))
    other.start()
    other.join()
    assert connections(sidecar) == 2


def test_a_child_shares_no_connection(sidecar: FakeServer) -> None:
    """Two processes on one would read each other's bytes."""
    asked(at(sidecar)).content(len(BODY))
    child = os.fork()
    if child == 0:
        os._exit(asked(at(sidecar)).content(len(BODY)) != BODY)
    assert os.waitpid(child, 0)[1] == 0
    assert connections(sidecar) == 2


def test_an_idle_connection_that_was_closed_is_made_anew(sidecar: FakeServer) -> None:
    """The sidecar may have been restarted in between."""
    asked(at(sidecar)).content(len(BODY))
    sidecar.stop()
    sidecar.start()
    assert asked(at(sidecar)).content(len(BODY)) == BODY


def test_a_cut_answer_is_never_a_short_one(sidecar: FakeServer) -> None:
    """Whoever asks for all of it hears of the cut."""
    sidecar.fault(SHARD, Cut(after=1000))
    with pytest.raises(Unanswered, match="cut off"):
        asked(at(sidecar)).content(len(BODY))


def test_a_refusal_is_explained(sidecar: FakeServer) -> None:
    """In the sidecar's words, after which the connection serves again."""
    sidecar.fault(SHARD, Refuse(403, "not yours"))
    reply = asked(at(sidecar))
    assert reply.status == 403
    assert b"not yours" in reply.explanation()
    asked(at(sidecar)).content(len(BODY))
    assert connections(sidecar) == 1


def test_nobody_there_is_said_with_the_address(sidecar: FakeServer) -> None:
    """And is no silence: asking again at once helps nothing."""
    sidecar.stop()
    with pytest.raises(Unanswered, match=f"no connection to http://127.0.0.1:{sidecar.port} .Connection refused") as caught:
        connect(at(sidecar), WITHIN_S)
    assert not caught.value.silent


def test_silence_is_told_apart() -> None:
    """It connects, and no byte comes for the whole limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unanswered, match=r"did not answer within 0\.01 s") as caught:
        ask(Endpoint(port=silent.getsockname()[1]), SHARD, [], connect_s=WITHIN_S, silence_s=0.01)
    assert caught.value.silent


def test_an_explanation_is_read_to_a_limit(sidecar: FakeServer) -> None:
    """A connection with a rest of it on its way is not used again."""
    sidecar.fault(SHARD, Refuse(403, "x" * 2 * MAX_EXPLANATION_BYTES))
    assert len(asked(at(sidecar)).explanation()) == MAX_EXPLANATION_BYTES
    asked(at(sidecar)).content(len(BODY))
    assert connections(sidecar) == 2


def test_silence_of_an_idle_connection_is_not_asked_again(sidecar: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh one would be silent as long."""
    asked(at(sidecar)).content(len(BODY))
    monkeypatch.setattr(http, "connect", lambda *_: pytest.fail("connected"))
    sidecar.turning.clear()
    try:
        with pytest.raises(Unanswered) as caught:
            ask(at(sidecar), SHARD, [], connect_s=WITHIN_S, silence_s=0.05)
    finally:
        sidecar.turning.set()
    assert caught.value.silent


def test_who_looks_is_given_the_socket_and_may_end_it(sidecar: FakeServer) -> None:
    """Before the answer is waited for; what it raises is raised."""
    looked = list[socket.socket]()

    def look(asking: socket.socket) -> None:
        looked.append(asking)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(at(sidecar), SHARD, [], connect_s=WITHIN_S, silence_s=WITHIN_S, look=look)
    assert [each.fileno() for each in looked] == [-1]


def test_what_is_no_http_is_not_quoted() -> None:
    """It may be anybody's."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"SECRET\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(Unanswered, match=r"broke off \(BadStatusLine\)"):
            ask(Endpoint(port=server.getsockname()[1]), SHARD, [], connect_s=WITHIN_S, silence_s=WITHIN_S)
        answering.join()


def test_a_status_that_is_no_json_is_told_apart(sidecar: FakeServer) -> None:
    """What answers there is no sidecar."""
    sidecar.put("/v1/status", b"<html>")
    with pytest.raises(ValueError, match="Expecting value"):
        ask_status(at(sidecar), WITHIN_S)
