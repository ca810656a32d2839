"""Talking to a sidecar: addresses, answers, refusals, and a connection that is held."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.fake_sidecar import FakeSidecar

from forebay_proxy.client import Sidecar, SidecarRefused, SidecarUnreachable
from forebay_proxy.errors import ConfigError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_status_over_tcp() -> None:
    """What the sidecar says comes back as a table."""
    with FakeSidecar() as fake:
        assert Sidecar(fake.url).status() == fake.status
        assert Sidecar(fake.url + "/").status() == fake.status


def test_status_over_a_unix_socket(tmp_path: Path) -> None:
    """The same API behind a path."""
    with FakeSidecar(on_unix=tmp_path / "s") as fake:
        assert Sidecar(f"unix:{tmp_path / 's'}").status() == fake.status
        assert Sidecar(f"unix://{tmp_path / 's'}").status() == fake.status


def test_no_proxy_variable_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corporate http_proxy never sees a request for the sidecar."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with FakeSidecar() as fake:
        Sidecar(fake.url).ready()


def test_the_token_is_sent() -> None:
    """A sidecar that asks for a token gets it; without it the refusal is the sidecar's own words."""
    with FakeSidecar(token="t") as fake:
        Sidecar(fake.url, token="t").ready()
        with pytest.raises(SidecarRefused, match="must send the header") as caught:
            Sidecar(fake.url).ready()
        assert (caught.value.status, caught.value.next_step) == (403, "mend it")


def test_nobody_there_is_unreachable() -> None:
    """The address and the cause are named."""
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SidecarUnreachable, match=f"{address}: connection refused"):
        Sidecar(address).status()


def test_silence_is_unreachable() -> None:
    """A sidecar that accepts and says nothing is given up on."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SidecarUnreachable, match="timed out"):
        Sidecar(f"http://127.0.0.1:{server.getsockname()[1]}").ready(timeout_s=0.05)


def test_another_server_is_no_sidecar() -> None:
    """An answer that is no JSON table is named for what it is."""
    with FakeSidecar() as fake:
        fake.status = ["not", "a", "table"]  # type: ignore[assignment]
        with pytest.raises(SidecarUnreachable, match="not a Forebay"):
            Sidecar(fake.url).status()


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:7070", "https://h:1", "http://", "http://h:99999", "http://u:p@h:1", "http://h/path", "unix:relative"]
)
def test_addresses_that_are_none(address: str) -> None:
    """The message shows what an address looks like and never repeats one, which might hold a password."""
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:7070") as caught:
        Sidecar(address)
    assert "u:p" not in str(caught.value)


def test_a_held_connection_lasts_and_comes_back() -> None:
    """It is one connection for all pings; a sidecar that went away is no error."""
    with FakeSidecar() as fake:
        hold = Sidecar(fake.url).hold()
        with hold:
            assert fake.open_connections == 0
            assert hold.ping()
            assert hold.ping()
            fake.wait_for_connections(1)
        fake.wait_for_connections(0)
    assert not hold.ping()


def test_warm_events_come_as_they_are() -> None:
    """The stream's lines are the events; headers for the origin travel with the request."""
    with FakeSidecar() as fake:
        body = json.dumps({"shards": ["s3://b/a.tar"]}).encode()
        events = list(Sidecar(fake.url).warm("application/json", body, (("Authorization", "Bearer x"),)))
    assert [event["event"] for event in events] == ["progress", "shard", "end"]
    method, path, headers, sent = fake.requests[0]
    assert (method, path, headers["Authorization"], sent) == ("POST", "/v1/warm", "Bearer x", body)
