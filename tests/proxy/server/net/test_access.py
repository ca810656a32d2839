"""Who may talk: the rules on their own, then real clients of other users, browsers and addresses."""

from __future__ import annotations

import encodings.idna  # connect() looks it up, and another user may not read this interpreter's files
import os
import socket
import time
from pathlib import Path

import pytest
from support.http_server import listening, request

from forebay_proxy.core.facts.requests import ClientRefused
from forebay_proxy.server.net.access import Access, AccessQuestion, AccessRefused
from forebay_proxy.server.net.peers import Peer, Where

PATH = "/s3/b/0.tar"
NOBODY = 65534
OURS = Peer(Where.LOOPBACK, 1000, "127.0.0.1")
RULES = Access(1000, frozenset({1001}), frozenset({"sidecar.local"}), token="open sesame")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def asking(path: str = PATH, method: str = "GET", **headers: str | None) -> AccessQuestion:
    return AccessQuestion(method, path, **{"host": "127.0.0.1:7070", **headers})  # type: ignore[arg-type]


def refused(peer: Peer, wish: AccessQuestion, rules: Access = RULES) -> AccessRefused:
    with pytest.raises(AccessRefused) as caught:
        rules.check(peer, wish)
    return caught.value


@pytest.mark.parametrize("uid", [1000, 1001])
def test_our_own_user_and_the_allowed_ones_come_in(uid: int) -> None:
    """Over loopback and over the socket."""
    RULES.check(Peer(Where.LOOPBACK, uid, "127.0.0.1"), asking())
    RULES.check(Peer(Where.UNIX, uid), asking(host="anything"))


@pytest.mark.parametrize(
    "peer", [Peer(Where.LOOPBACK, 1001, "127.0.0.1"), Peer(Where.UNIX, 1001), Peer(Where.REMOTE, None, "10.0.0.1"), Peer(Where.UNIX, None)]
)
def test_only_the_owner_changes_the_rules(peer: Peer) -> None:
    """Neither who is allowed to read, nor who knows the token."""
    assert refused(peer, asking("/v1/allow", "POST", token="open sesame")).reason == "uid"
    RULES.check(OURS, asking("/v1/allow", "POST"))


@pytest.mark.parametrize("where", [Where.LOOPBACK, Where.UNIX])
def test_another_user_is_refused_with_the_flag_that_would_allow_it(where: Where) -> None:
    """Root too: it has no business with another user's credentials here."""
    error = refused(Peer(where, 0, "127.0.0.1"), asking())
    assert (error.status, error.reason, "--allow-uid 0" in error.next_step) == (403, "uid", True)


def test_a_user_the_kernel_does_not_tell_is_nobody() -> None:
    """Not even when somebody put it into the allowed ones by a slip."""
    error = refused(Peer(Where.LOOPBACK, None, "127.0.0.1"), asking())
    assert (error.reason, "socket" in error.next_step) == ("uid", True)


@pytest.mark.parametrize("where", [Where.LOOPBACK, Where.UNIX])
def test_the_uid_of_everybody_without_a_number_is_nobodys(where: Where) -> None:
    """Our own or an allowed one: anybody may have it. Where each user has a number it is one like any other."""
    for rules in (Access(NOBODY, anybodys_uid=NOBODY), Access(1000, frozenset({NOBODY}), anybodys_uid=NOBODY)):
        error = refused(Peer(where, NOBODY, "127.0.0.1"), asking(), rules)
        assert (error.status, error.reason, "user namespace" in str(error)) == (403, "uid", True)
        assert "another" in error.next_step or "other than 65534" in error.next_step
        assert rules.is_stranger(Peer(where, NOBODY))
    Access(NOBODY).check(Peer(where, NOBODY, "127.0.0.1"), asking())
    Access(1000, anybodys_uid=NOBODY).check(Peer(where, 1000, "127.0.0.1"), asking())


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_any_local_user_but_no_remote_one(path: str) -> None:
    """A node agent probes as somebody else."""
    RULES.check(Peer(Where.LOOPBACK, 0, "127.0.0.1"), asking(path))
    assert refused(Peer(Where.REMOTE, None), asking(path)).reason == "token"


def test_a_remote_client_needs_the_token() -> None:
    """The right one opens, anything else does not; it stays out of messages."""
    remote = Peer(Where.REMOTE, None, "10.0.0.1")
    RULES.check(remote, asking(token="open sesame", host="node17:7070"))
    for wrong in (None, "", "open", "open sesame "):
        error = refused(remote, asking(token=wrong))
        assert (error.reason, "sesame" in f"{error}{error.next_step}") == ("token", False)
    assert refused(remote, asking(token="x"), Access(1000)).reason == "token"
    assert refused(remote, asking(token=""), Access(1000, token="")).reason == "token"
    assert "sesame" not in repr(RULES) + repr(asking(token="open sesame"))


def test_the_token_is_no_way_round_the_user() -> None:
    """A local client is known by its uid, whatever it sends."""
    assert refused(Peer(Where.LOOPBACK, 0, "127.0.0.1"), asking(token="open sesame")).reason == "uid"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7070", "127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:7070", "127.1.2.3", "sidecar.local:7070", None]
)
def test_our_own_names_are_ours(host: str | None) -> None:
    """Loopback in any form, what it was told to bind; HTTP/1.0 may leave Host out."""
    RULES.check(OURS, asking(host=host))


@pytest.mark.parametrize(
    "path", ["/", "/page/status.js", "/page/status.css", "/v1/status", "/v1/shards", "/v1/plans", "/metrics", "/healthz"]
)
@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_browser_gets_the_page_and_what_it_reads(path: str, site: str) -> None:
    """Typed, bookmarked, or fetched by the page."""
    RULES.check(OURS, asking(path, fetch_site=site, origin="http://127.0.0.1:7070"))


@needs_root
async def test_a_client_that_closes_at_once_does_not_pass_for_root() -> None:
    """The kernel says uid 0 for an end that nobody holds any more; with a sidecar of root that would open the door."""
    async with listening() as world:
        pid = os.fork()
        if pid == 0:
            _leave_at_once(world.port)
        os.waitpid(pid, 0)  # blocks the loop on purpose: the server shall see the connection when its client has gone
        _await_orphan(world.port)
        await world.until(ClientRefused)
        assert world.operations.evicted == []


assert encodings.idna


def connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=120)


def _leave_at_once(port: int) -> None:
    try:
        os.setuid(NOBODY)
        sock = connected("127.0.0.1", port)
        sock.sendall(request("POST", "/v1/evict", {"Content-Length": "13"}, b'{"all": true}'))
        sock.close()
    finally:
        os._exit(0)


def _await_orphan(port: int) -> None:
    """Return when the kernel has forgotten who held the client's end: state 05 is FIN_WAIT2."""
    for _ in range(500):
        lines = Path("/proc/net/tcp").read_text().splitlines()
        if any(cells[2].endswith(f":{port:04X}") and cells[3] == "05" for cells in map(str.split, lines)):
            return
        time.sleep(0.01)
    pytest.skip("this kernel keeps the owner of a closed end")
