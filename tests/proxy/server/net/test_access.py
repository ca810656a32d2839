"""Who may talk: the rules on their own, then real clients of other users, browsers and addresses."""

from __future__ import annotations

import asyncio
import encodings.idna  # connect() looks it up, and another user may not read this interpreter's files
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_cache import FakeShard
from support.http_server import World, listening, parse, request, talk

from forebay_proxy.core.facts.requests import ClientRefused
from forebay_proxy.server.net.access import Access, AccessQuestion, AccessRefused, ConnectionLimit
from forebay_proxy.server.net.listen import is_loopback_host
from forebay_proxy.server.net.peers import Peer, Where

NAME = "s3://b/0.tar"
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
    "host", ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "[evil]"]
)
def test_a_rebound_name_is_refused(host: str) -> None:
    """A web page's name that was made to resolve to 127.0.0.1 still stands in Host."""
    assert refused(OURS, asking(host=host)).reason == "browser"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:7070", ""])
def test_a_foreign_page_is_refused(origin: str) -> None:
    """Also one on another port of this machine."""
    assert refused(OURS, asking("/v1/status", origin=origin)).reason == "browser"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "anything"])
def test_a_browser_sent_by_another_site_is_refused(site: str) -> None:
    """Even for the page itself."""
    assert refused(OURS, asking("/", fetch_site=site)).reason == "browser"


@pytest.mark.parametrize(
    "path", ["/", "/page/status.js", "/page/status.css", "/v1/status", "/v1/shards", "/v1/plans", "/metrics", "/healthz"]
)
@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_browser_gets_the_page_and_what_it_reads(path: str, site: str) -> None:
    """Typed, bookmarked, or fetched by the page."""
    RULES.check(OURS, asking(path, fetch_site=site, origin="http://127.0.0.1:7070"))


@pytest.mark.parametrize(
    ("path", "method"), [(PATH, "GET"), ("/v1/evict", "POST"), ("/v1/warm", "POST"), ("/v1/status", "POST"), ("/v1/plans/a/b/c/d", "PUT")]
)
def test_a_browser_gets_nothing_else(path: str, method: str) -> None:
    """No shard and no command, even from our own page."""
    assert refused(OURS, asking(path, method, fetch_site="same-origin")).reason == "browser"


async def test_a_refusal_is_a_problem_and_an_event() -> None:
    """It says why; the cache is not asked; it is counted by its reason."""
    async with listening({NAME: FakeShard(b"x")}) as world:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            reply = await world.ask("GET", PATH, headers)
            assert (reply.status, reply.problem["type"]) == (403, "urn:forebay:problem:access-refused")
        assert world.cache.resolver == []
        assert world.of(ClientRefused) == [ClientRefused("browser")] * 3


async def test_a_preflight_gets_no_permission() -> None:
    """Without an Access-Control header the browser sends nothing further."""
    async with listening() as world:
        headers = {
            "Origin": "https://evil.example",
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "forebay-reader",
        }
        reply = await world.ask("OPTIONS", "/v1/plans/a/b/c/d", headers)
        assert (reply.status, [name for name in reply.headers if name.startswith("access-control")]) == (403, [])


async def test_the_user_is_looked_up_once_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict holds for all its requests."""
    asked = []
    monkeypatch.setattr(
        "forebay_proxy.server.http.connection.peer_of",
        lambda transport: asked.append(transport) or Peer(Where.LOOPBACK, os.getuid(), "127.0.0.1"),
    )
    async with listening({NAME: FakeShard(b"x")}) as world:
        await talk(world.port, request("GET", PATH, close=False) + request("GET", PATH, close=False) + request("GET", PATH))
        assert (len(world.cache.resolver), len(asked)) == (3, 1)


@needs_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_another_user_on_loopback_is_refused(host: str) -> None:
    """A real process of another uid, found out by the kernel; health still answers it; ours comes in."""
    async with listening({NAME: FakeShard(b"x")}, host=host) as world:
        reply = await as_user(NOBODY, lambda: connected(host, world.port), request("GET", PATH))
        assert reply.status == 403
        assert f"--allow-uid {NOBODY}" in reply.problem["next_step"]
        assert (await as_user(NOBODY, lambda: connected(host, world.port), request("GET", "/healthz"))).status == 200
        assert (await talk(world.port, request("GET", PATH), host=host)).status == 200
        assert world.of(ClientRefused) == [ClientRefused("uid")]


@needs_root
async def test_an_allowed_user_comes_in() -> None:
    """--allow-uid says so."""
    async with listening({NAME: FakeShard(b"x")}, access=Access(os.getuid(), frozenset({NOBODY}))) as world:
        assert (await as_user(NOBODY, lambda: connected("127.0.0.1", world.port), request("GET", PATH))).body == b"x"


@needs_root
async def test_another_user_on_the_socket_is_refused(open_folder: Path) -> None:
    """0600 keeps it out; where the mode was changed, the credential of its socket does."""
    path = open_folder / "f.sock"
    async with listening({NAME: FakeShard(b"x")}, socket=path):
        with pytest.raises(PermissionError):
            await as_user(NOBODY, lambda: unix_connected(path), request("GET", PATH))
        path.chmod(0o666)
        assert (await as_user(NOBODY, lambda: unix_connected(path), request("GET", PATH))).status == 403


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


async def test_an_address_of_the_machine_needs_the_token() -> None:
    """Not loopback: the same user without the token stays out."""
    host = own_address()
    async with listening({NAME: FakeShard(b"x")}, access=Access(os.getuid(), token="t0ken"), host=host) as world:
        assert (await talk(world.port, request("GET", PATH), host=host)).status == 403
        assert (await talk(world.port, request("GET", PATH, {"Forebay-Token": "wrong"}), host=host)).status == 403
        assert (await talk(world.port, request("GET", PATH, {"Forebay-Token": "t0ken", "Host": "any"}), host=host)).body == b"x"
        assert world.of(ClientRefused) == [ClientRefused("token")] * 2


def own_address() -> str:
    """An address of this machine other than loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address beside loopback")
        found: str = probe.getsockname()[0]
    if is_loopback_host(found):
        pytest.skip("this machine has no address beside loopback")
    return found


assert encodings.idna


def connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=120)


def unix_connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


async def as_user(uid: int, connect: Callable[[], socket.socket], sent: bytes):  # type: ignore[no-untyped-def]
    """``sent`` over a connection that a forked child of that uid made."""
    ours, theirs = socket.socketpair()
    with ours:
        pid = os.fork()
        if pid == 0:
            _child(uid, connect, sent, theirs)
        theirs.close()
        ours.setblocking(False)
        received = bytearray()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while part := await loop.sock_recv(ours, 1 << 16):
                received += part
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 13:
        raise PermissionError
    return parse(bytes(received))


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


def _child(uid: int, connect: Callable[[], socket.socket], sent: bytes, out: socket.socket) -> None:
    try:
        os.setuid(uid)
        sock = connect()
        sock.sendall(sent)
        while part := sock.recv(1 << 16):
            out.sendall(part)
        os._exit(0)
    except PermissionError:
        os._exit(13)
    finally:
        os._exit(1)


async def test_the_world_is_torn_down() -> None:
    """No listener outlives its server."""
    async with listening() as world:
        port = world.port
    with pytest.raises(ConnectionRefusedError):
        connected("127.0.0.1", port)
    assert isinstance(world, World)


@dataclass(eq=False)
class Visitor:
    idle: bool = True
    stranger: bool = False


def test_nobody_leaves_while_there_is_room() -> None:
    """Up to the bound, which counts the newcomer."""
    connection_limit = ConnectionLimit(3, 3)
    assert [connection_limit.enter(Visitor()) for _ in range(3)] == [None] * 3
    assert len(connection_limit) == 3


def test_the_idle_one_unheard_for_longest_leaves() -> None:
    """Whoever asked lately, or is being answered, stays."""
    connection_limit = ConnectionLimit(3, 3)
    busy, first, second = Visitor(idle=False), Visitor(), Visitor()
    for visitor in (busy, first, second):
        connection_limit.enter(visitor)
    connection_limit.heard(first)
    assert connection_limit.enter(Visitor()) is second


def test_the_newcomer_leaves_where_all_are_busy() -> None:
    """Nobody who is being served pays for it."""
    connection_limit = ConnectionLimit(1, 1)
    connection_limit.enter(Visitor(idle=False))
    newcomer = Visitor()
    assert connection_limit.enter(newcomer) is newcomer


def test_a_stranger_takes_a_strangers_place_only() -> None:
    """However many idle ones of ours there are."""
    connection_limit = ConnectionLimit(10, 1)
    ours, stranger, another = Visitor(), Visitor(stranger=True), Visitor(stranger=True)
    connection_limit.enter(ours)
    connection_limit.enter(stranger)
    assert connection_limit.enter(another) is stranger


def test_one_who_is_vouched_for_is_no_stranger_any_more() -> None:
    """Its place is free for the next."""
    connection_limit = ConnectionLimit(10, 1)
    remote = Visitor(stranger=True)
    connection_limit.enter(remote)
    remote.stranger = False
    assert connection_limit.enter(Visitor(stranger=True)) is None


def test_leaving_twice_is_no_error() -> None:
    """Nor is being heard after it."""
    connection_limit = ConnectionLimit(1, 1)
    visitor = Visitor()
    connection_limit.enter(visitor)
    connection_limit.leave(visitor)
    connection_limit.leave(visitor)
    connection_limit.heard(visitor)
    assert len(connection_limit) == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_the_bounds_hold_whoever_comes(comers: list[tuple[bool, bool]]) -> None:
    """When everybody who has to leave does; and who is busy never has to, unless it is the newcomer."""
    connection_limit, here = ConnectionLimit(5, 2), set()
    for idle, stranger in comers:
        newcomer = Visitor(idle, stranger)
        here.add(newcomer)
        leaver = connection_limit.enter(newcomer)
        if leaver is not None:
            assert leaver is newcomer or leaver.idle  # type: ignore[attr-defined]
            connection_limit.leave(leaver)
            here.discard(leaver)
        assert len(connection_limit) == len(here) <= 5
        assert sum(visitor.stranger for visitor in here) <= 2
