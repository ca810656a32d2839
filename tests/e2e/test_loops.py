"""A sidecar never asks itself, whatever lies on the way round; and two sidecars in a row are fine."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest
from support.netns import lonely_network
from support.nginx import nginx
from support.ports import free_ports
from support.sidecar import running
from support.tinyproxy import tinyproxy

SIZE = ("--cache-size", "100MB")
AT_ONCE_S = 8.0  # of a busy machine; silence would end it after 15 s at the earliest


def problem(url: str, **headers: str) -> dict[str, object]:
    """The problem document that answers ``url``, at once."""
    began = time.monotonic()
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(urllib.request.Request(url, headers=headers), timeout=120)
    except urllib.error.HTTPError as error:
        with error:
            found: dict[str, object] = json.loads(error.read())
        assert time.monotonic() - began < AT_ONCE_S
        return found
    raise AssertionError(f"{url} was answered")


def turning(path: str, back_to: int | Path, onto: str = "") -> str:
    """A server's options: below ``path`` it asks the sidecar at ``back_to`` (port or unix socket) for a shard of its own below ``onto``."""
    place = f"127.0.0.1:{back_to}" if isinstance(back_to, int) else f"unix:{back_to}:"
    return f"location {path} {{ proxy_pass http://{place}/http/$http_host{onto}$uri; proxy_read_timeout 20s; }}"


@pytest.mark.needs("nginx")
@pytest.mark.parametrize("by_socket", [False, True])
def test_a_web_server_that_points_back_is_noticed(tmp_path: Path, by_socket: bool) -> None:
    """The request comes round once, and both rounds end with 508 and the reason; the unix socket is the same sidecar."""
    here, socket_path = free_ports(1)[0], tmp_path / "s"
    with (
        nginx(tmp_path / "nginx", tmp_path, turn=turning("/", socket_path if by_socket else here)) as web,
        running(tmp_path, *SIZE, "--port", str(here), "--socket", str(socket_path), allow=[web.base("turn")]) as sidecar,
    ):
        found = problem(sidecar.proxied(web.url("a.tar", "turn")))
        assert (found["status"], found["title"], found["retryable"]) == (508, "Loop detected", False)
        assert "leads back to a Forebay" in str(found["detail"])
        assert [served.status for served in web.log("turn")] == [508]


@pytest.mark.needs("nginx")
def test_a_circle_of_two_sidecars_is_noticed(tmp_path: Path) -> None:
    """Each passes on whom the request has passed, so the first knows it again."""
    one, two = free_ports(2)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    turns = turning("/there", two, "/back") + turning("/back", one, "/there")
    with (
        nginx(tmp_path / "nginx", tmp_path, turn=turns) as web,
        running(tmp_path / "one", *SIZE, "--port", str(one), allow=[web.base("turn")]) as first,
        running(tmp_path / "two", *SIZE, "--port", str(two), allow=[web.base("turn")]),
    ):
        assert problem(first.proxied(web.url("there/a.tar", "turn")))["status"] == 508
        assert [served.path for served in web.log("turn")] == ["/back/there/a.tar", "/there/a.tar"]  # the inner one ends first


@pytest.mark.needs("nginx")
def test_two_sidecars_in_a_row_work(tmp_path: Path) -> None:
    """The second one's bytes are the origin's, and both hold them afterwards."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.tar").write_bytes(b"x" * 100_000)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        nginx(tmp_path / "nginx", tmp_path / "files") as web,
        running(tmp_path / "two", *SIZE, allow=[web.base()]) as second,
        running(tmp_path / "one", *SIZE, allow=[second.url]) as first,
    ):
        path = first.proxied(second.proxied(web.url("a.tar"))).removeprefix(first.url)
        assert first.ask(path) == first.ask(path) == b"x" * 100_000
        assert len(web.log()) == 1
        assert len(first.shards()) == len(second.shards()) == 1


def test_an_upstream_proxy_that_points_back_is_noticed(tmp_path: Path) -> None:
    """HTTP_PROXY leads to a proxy whose own upstream is this sidecar."""
    here = free_ports(1)[0]
    with (
        lonely_network("10.7.7.7"),
        tinyproxy(tmp_path, upstream=here) as proxy,
        running(tmp_path, *SIZE, "--port", str(here), environ={"HTTP_PROXY": proxy.url}) as sidecar,
    ):
        found = problem(sidecar.proxied("http://10.7.7.7:8000/a.tar"))
        assert found["status"] == 508
        assert len(proxy.asked()) == 1
