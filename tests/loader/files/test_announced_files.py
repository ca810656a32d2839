"""What will be opened is told once, in its order, and withdrawn when it has been read."""

from __future__ import annotations

import json

import fsspec
from support.fake_proxy import FakeServer, ramp
from support.sidecar import wait_until

from forebay_loader.files.announced_files import AnnouncedFiles
from forebay_loader.files.target import Target
from forebay_loader.identity.reader_name import CLAIMS
from forebay_loader.transport.sidecar_instances import INSTANCES
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import proxy_url

DATA = ramp(1000)
URLS = [f"https://h/{number}.tar" for number in range(3)]


def source(url: str) -> Source:
    return Target(None, {}, "").source(url)[1]


def test_what_is_told_is_announced_and_opened_under_that_name(proxy: FakeServer) -> None:
    """In order, to one reader's plan; it is withdrawn when all of it was read."""
    for url in URLS:
        proxy.put(proxy_url("", source(url).url), DATA)
    fs = fsspec.filesystem("forebay")
    assert list(fs.cat(URLS).values()) == [DATA] * 3
    put, *rest = proxy.plans
    assert put.method == "PUT"
    assert json.loads(put.body)["shards"] == URLS
    reader = put.target.removeprefix("/v1/plans/").partition("?")[0]
    assert {request.headers["Forebay-Reader"] for request in proxy.requests if request.method == "GET"} == {reader}
    assert [request.method for request in rest] == ["DELETE"]


def test_the_last_one_read_ends_it(proxy: FakeServer) -> None:
    """In whatever order; what was never announced changes nothing."""
    sources = [source(url) for url in URLS]
    announced = AnnouncedFiles(sources)
    assert [announced.opened(each) for each in (source("https://h/9.tar"), sources[2], sources[0], sources[1])] == [
        False,
        False,
        False,
        True,
    ]
    assert [request.method for request in proxy.plans] == ["PUT", "DELETE"]


def test_another_sidecar_is_told_what_is_unread(proxy: FakeServer) -> None:
    """And how many there were before."""
    proxy.instance = "a"
    sources = [source(url) for url in URLS]
    announced = AnnouncedFiles(sources)
    announced.opened(sources[0])
    reader = CLAIMS.opening(sources[1].text)

    def heard_again() -> bool:
        INSTANCES.heard(reader, "b")  # not heard before the first message was answered
        return len(proxy.plans) == 2

    wait_until(heard_again)
    assert json.loads(proxy.plans[-1].body) == {"at": 1, "shards": URLS[1:]}


def test_what_is_unread_is_withdrawn(proxy: FakeServer) -> None:
    """From the sidecar, and from those who open."""
    announced = AnnouncedFiles([source(url) for url in URLS])
    names = {CLAIMS.opening(source(URLS[0]).text)}
    announced.leave()
    assert [request.method for request in proxy.plans] == ["PUT", "DELETE"]
    assert CLAIMS.opening(source(URLS[1]).text) not in names
